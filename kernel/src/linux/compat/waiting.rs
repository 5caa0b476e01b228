//! Waiting for files, futexes and children.

use abi::{Result, raw::general as raw};
use nucleus::user;

use super::{
    row::{Row, differs, shim},
    translate::{
        Difference::{self, FileSets, InOut, Out, OutInfo, Set, Times, Unsigned, Wait},
        call_native, times_in, wait_in,
    },
};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    differs(7, raw::__NR_wait4, &[Set(3, 0)]),
    // The arguments are in memory.
    shim(82, raw::__NR_select, |call| {
        let [files, read, write, except, time]: [u32; 5] = call.read(0)?;
        call.args = [files, read, write, except, time, 0].map(u64::from);
        call_native(call, raw::__NR_select, &SELECT)
    }),
    differs(114, raw::__NR_wait4, &[Out(3, USAGE)]),
    differs(142, raw::__NR_select, &SELECT),
    shim(240, raw::__NR_futex, |call| futex(call, false)),
    differs(284, raw::__NR_waitid, &[OutInfo(2), Out(4, USAGE)]),
    differs(
        308,
        raw::__NR_pselect6,
        &[Wait(4, false), Unsigned(5, 2), FileSets],
    ),
    differs(309, raw::__NR_ppoll, &[Wait(2, false)]),
    differs(337, raw::__NR_recvmmsg, &[InOut(4, 2)]),
    differs(
        413,
        raw::__NR_pselect6,
        &[Wait(4, true), Unsigned(5, 2), FileSets],
    ),
    differs(414, raw::__NR_ppoll, &[Wait(2, true)]),
    shim(417, raw::__NR_recvmmsg, |call| {
        let rest = call.address(4);
        times_in(call, 4, 1)?;
        let received = call.native(raw::__NR_recvmmsg)?;
        if rest.0 != 0 {
            let left: [u64; 2] = call.read(4)?;
            user::write(rest, &left)?;
        }
        Ok(received)
    }),
    shim(422, raw::__NR_futex, |call| futex(call, true)),
    differs(441, raw::__NR_epoll_pwait2, &[Times(3, 1)]),
];

/// The differences of `select`.
const SELECT: [Difference; 2] = [Wait(4, false), FileSets];

/// Words of a `struct rusage`.
pub(super) const USAGE: usize = 18;

/// `futex`: the fourth argument is a time, or a number for the operations that move waiters.
fn futex(call: &mut Call<'_>, wide: bool) -> Result<usize> {
    let options = raw::FUTEX_PRIVATE_FLAG | raw::FUTEX_CLOCK_REALTIME;
    if matches!(
        call.unsigned(1) & !options,
        raw::FUTEX_WAIT
            | raw::FUTEX_WAIT_BITSET
            | raw::FUTEX_LOCK_PI
            | raw::FUTEX_LOCK_PI2
            | raw::FUTEX_WAIT_REQUEUE_PI
    ) {
        wait_in(call, 3, wide)?;
    }
    call.native(raw::__NR_futex)
}
