//! POSIX message queues.

use abi::{Result, raw::general as raw};

use super::{
    row::{Row, give, same, shim},
    sysv::event_in,
    time::{narrow_in, wide_in},
};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    shim(277, raw::__NR_mq_open, |call| {
        attributes_in(call, 3)?;
        call.native(raw::__NR_mq_open)
    }),
    same(278, raw::__NR_mq_unlink),
    shim(279, raw::__NR_mq_timedsend, |call| {
        narrow_in::<2>(call, 4)?;
        call.native(raw::__NR_mq_timedsend)
    }),
    shim(280, raw::__NR_mq_timedreceive, |call| {
        narrow_in::<2>(call, 4)?;
        call.native(raw::__NR_mq_timedreceive)
    }),
    shim(281, raw::__NR_mq_notify, |call| {
        event_in(call, 1)?;
        call.native(raw::__NR_mq_notify)
    }),
    shim(282, raw::__NR_mq_getsetattr, |call| {
        attributes_in(call, 1)?;
        let to = call.lay_room(2, ATTRIBUTES * 8)?;
        call.native(raw::__NR_mq_getsetattr)?;
        if to.0 != 0 {
            let wide: [u64; ATTRIBUTES] = call.read(2)?;
            give(to, &wide.map(|word| word as u32))?;
        }
        Ok(0)
    }),
    shim(418, raw::__NR_mq_timedsend, |call| {
        wide_in::<1>(call, 4)?;
        call.native(raw::__NR_mq_timedsend)
    }),
    shim(419, raw::__NR_mq_timedreceive, |call| {
        wide_in::<1>(call, 4)?;
        call.native(raw::__NR_mq_timedreceive)
    }),
];

/// Words of a `struct mq_attr`.
const ATTRIBUTES: usize = 8;

/// Makes argument `n` point to the wide form of a `struct mq_attr`, unless it is null.
fn attributes_in(call: &mut Call<'_>, n: usize) -> Result<()> {
    narrow_in::<ATTRIBUTES>(call, n)
}
