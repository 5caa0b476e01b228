//! Buffers in several pieces.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user::desk};

use super::row::{Row, shim, take};
use crate::linux::syscall::Call;

pub(super) const CALLS: &[Row] = &[
    shim(145, raw::__NR_readv, |call| plain(call, raw::__NR_readv)),
    shim(146, raw::__NR_writev, |call| plain(call, raw::__NR_writev)),
    shim(316, raw::__NR_vmsplice, |call| {
        plain(call, raw::__NR_vmsplice)
    }),
    shim(333, raw::__NR_preadv, |call| at(call, raw::__NR_preadv)),
    shim(334, raw::__NR_pwritev, |call| at(call, raw::__NR_pwritev)),
    shim(347, raw::__NR_process_vm_readv, |call| {
        between(call, raw::__NR_process_vm_readv)
    }),
    shim(348, raw::__NR_process_vm_writev, |call| {
        between(call, raw::__NR_process_vm_writev)
    }),
    shim(378, raw::__NR_preadv2, |call| at(call, raw::__NR_preadv2)),
    shim(379, raw::__NR_pwritev2, |call| at(call, raw::__NR_pwritev2)),
    shim(440, raw::__NR_process_madvise, |call| {
        plain(call, raw::__NR_process_madvise)
    }),
];

/// The most buffers of a call (`UIO_MAXIOV`).
const MOST: usize = 1024;

/// Makes argument `n` point to the 64-bit form of the `count` `struct iovec`s that it points to.
pub(super) fn lay(call: &mut Call<'_>, n: usize, count: usize) -> Result<()> {
    if count > MOST {
        return Err(Errno::EINVAL);
    }
    let from = call.address(n);
    let to = desk::reserve(count * 16).map_err(|_| Errno::ENOMEM)?;
    for i in 0..count {
        let [at, len]: [u32; 2] = take(VirtAddr(from.0 + i * 8))?;
        if len > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        let wide = [u64::from(at), u64::from(len)];
        nucleus::user::write(to + i * 16, &wide).map_err(|_| Errno::EFAULT)?;
    }
    call.args[n] = to.0 as u64;
    Ok(())
}

/// Descriptor, vector, count and what follows.
fn plain(call: &mut Call<'_>, native: u32) -> Result<usize> {
    lay(call, 1, call.size(2))?;
    call.native(native)
}

/// With an offset in two halves, and flags for those that have them.
fn at(call: &mut Call<'_>, native: u32) -> Result<usize> {
    lay(call, 1, call.size(2))?;
    // The upper half of the offset is a 64-bit program's own argument and counts for nothing there.
    call.args[3] = call.joined(3, 4);
    call.args[4] = 0;
    call.native(native)
}

/// The caller's buffers and those of another process.
fn between(call: &mut Call<'_>, native: u32) -> Result<usize> {
    lay(call, 1, call.size(2))?;
    lay(call, 3, call.size(4))?;
    call.native(native)
}
