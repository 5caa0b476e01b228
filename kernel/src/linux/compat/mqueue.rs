//! POSIX message queues.

use abi::raw::general as raw;

use super::{
    row::{Row, differs, same},
    translate::Difference::{Event, Narrow, Out, Times},
};

pub(super) const CALLS: &[Row] = &[
    differs(277, raw::__NR_mq_open, &[Narrow(3, ATTRIBUTES)]),
    same(278, raw::__NR_mq_unlink),
    differs(279, raw::__NR_mq_timedsend, &[Narrow(4, 2)]),
    differs(280, raw::__NR_mq_timedreceive, &[Narrow(4, 2)]),
    differs(281, raw::__NR_mq_notify, &[Event(1)]),
    differs(
        282,
        raw::__NR_mq_getsetattr,
        &[Narrow(1, ATTRIBUTES), Out(2, ATTRIBUTES)],
    ),
    differs(418, raw::__NR_mq_timedsend, &[Times(4, 1)]),
    differs(419, raw::__NR_mq_timedreceive, &[Times(4, 1)]),
];

/// Words of a `struct mq_attr`.
const ATTRIBUTES: usize = 8;
