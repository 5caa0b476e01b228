//! Waiting for files, futexes and children.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user, user::compat_scratch};

use super::{
    row::{Row, differs, shim},
    translate::{
        Difference::{InOut, Out, OutInfo, Set, Times},
        narrow_in, narrow_out, times_in,
    },
};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    differs(7, raw::__NR_wait4, &[Set(3, 0)]),
    shim(82, raw::__NR_select, |call| {
        let words: [u32; 5] = call.read(0)?;
        call.args = [0; 6];
        for (argument, word) in call.args.iter_mut().zip(words) {
            *argument = u64::from(word);
        }
        select(call)
    }),
    differs(114, raw::__NR_wait4, &[Out(3, USAGE)]),
    shim(142, raw::__NR_select, select),
    shim(240, raw::__NR_futex, |call| futex(call, false)),
    differs(284, raw::__NR_waitid, &[OutInfo(2), Out(4, USAGE)]),
    shim(308, raw::__NR_pselect6, |call| pselect(call, false)),
    shim(309, raw::__NR_ppoll, |call| ppoll(call, false)),
    differs(337, raw::__NR_recvmmsg, &[InOut(4, 2)]),
    shim(413, raw::__NR_pselect6, |call| pselect(call, true)),
    shim(414, raw::__NR_ppoll, |call| ppoll(call, true)),
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

/// Words of a `struct rusage`.
pub(super) const USAGE: usize = 18;

/// Files that a set of `select` tells of at most.
const FILES_MAX: usize = 1 << 20;

/// The sets of `select`, in the scratch space: 64-bit programs round their lengths up to longer
/// words.
struct Sets {
    /// Where they came from.
    from: [VirtAddr; 3],
    /// Bytes of each.
    len: usize,
}

impl Sets {
    /// Lays the sets of arguments 1 to 3 for as many files as argument 0 says.
    fn lay(call: &mut Call<'_>) -> Result<Sets> {
        let files = usize::try_from(call.int(0)).map_err(|_| Errno::EINVAL)?;
        let len = files.min(FILES_MAX).div_ceil(32) * 4;
        let from = [call.address(1), call.address(2), call.address(3)];
        for (i, from) in from.iter().enumerate().filter(|(_, from)| from.0 != 0) {
            let to = compat_scratch::reserve(len.next_multiple_of(8))?;
            copy(to, *from, len)?;
            call.args[i + 1] = to.0 as u64;
        }
        Ok(Sets { from, len })
    }

    /// Copies back the sets that a body left.
    fn give(&self, call: &Call<'_>) -> Result<()> {
        for (i, from) in self.from.iter().enumerate().filter(|(_, from)| from.0 != 0) {
            copy(*from, call.address(i + 1), self.len)?;
        }
        Ok(())
    }
}

/// Copies bytes between the program and the scratch space.
fn copy(mut to: VirtAddr, mut from: VirtAddr, len: usize) -> Result<()> {
    let mut piece = [0; 256];
    let mut left = len;
    while left > 0 {
        let piece = &mut piece[..left.min(256)];
        user::copy_in(piece, from)?;
        user::copy_out(to, piece)?;
        (to, from, left) = (to + piece.len(), from + piece.len(), left - piece.len());
    }
    Ok(())
}

/// `select`; the time that is left goes back to the program.
fn select(call: &mut Call<'_>) -> Result<usize> {
    let time = call.address(4);
    narrow_in(call, 4, 2)?;
    let sets = Sets::lay(call)?;
    let result = call.native(raw::__NR_select);
    // As on Linux, a time that can't be written back is not an error.
    let _ = narrow_out(call, 4, 2, time);
    let ready = result?;
    sets.give(call)?;
    Ok(ready)
}

/// Lays the time of argument `n`; gives where it came from.
fn lay_time(call: &mut Call<'_>, n: usize, wide: bool) -> Result<VirtAddr> {
    let from = call.address(n);
    match wide {
        true => times_in(call, n, 1)?,
        false => narrow_in(call, n, 2)?,
    }
    Ok(from)
}

/// Brings the time that is left, in argument `n`, back to where it came from.
fn give_time(call: &Call<'_>, n: usize, to: VirtAddr, wide: bool) {
    if to.0 == 0 {
        return;
    }
    // As on Linux, a time that can't be written back is not an error.
    let _ = match wide {
        true => call
            .read::<[u64; 2]>(n)
            .and_then(|left| Ok(user::write(to, &left)?)),
        false => narrow_out(call, n, 2, to),
    };
}

/// `pselect6`: behind the time a pointer to the mask and its length.
fn pselect(call: &mut Call<'_>, wide: bool) -> Result<usize> {
    let time = lay_time(call, 4, wide)?;
    if call.args[5] != 0 {
        let [mask, len]: [u32; 2] = call.read(5)?;
        call.lay(5, &[u64::from(mask), u64::from(len)])?;
    }
    let sets = Sets::lay(call)?;
    let result = call.native(raw::__NR_pselect6);
    give_time(call, 4, time, wide);
    let ready = result?;
    sets.give(call)?;
    Ok(ready)
}

fn ppoll(call: &mut Call<'_>, wide: bool) -> Result<usize> {
    let time = lay_time(call, 2, wide)?;
    let result = call.native(raw::__NR_ppoll);
    give_time(call, 2, time, wide);
    result
}

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
        lay_time(call, 3, wide)?;
    }
    call.native(raw::__NR_futex)
}
