//! The scratch space: where the kernel lays structures that it has translated for a 32-bit program,
//! for bodies of system calls that expect them in the program's memory.
//!
//! A scratch space is a task's own and holds kernel bytes. Its addresses are no program's and not
//! canonical, so no program can name one but by what the kernel puts into the arguments of a call,
//! and a use outside of this file's functions faults. The copy functions of [`user`](crate::user)
//! come here with what they refuse otherwise, which costs programs' own addresses nothing.

use alloc::vec::Vec;

use super::BadAddress;
use crate::{OutOfMemory, VirtAddr, task};

/// The address of a scratch space's first byte.
const START: usize = 1 << 62;
/// Bytes that a scratch space holds at most.
const SIZE_MAX: usize = 1 << 20;
/// Bytes that an empty scratch space keeps.
const KEPT: usize = 4096;

/// Lays `len` zero bytes in the current task's scratch space; gives their address, a multiple of 8.
///
/// # Errors
/// No memory, or more than the scratch space holds.
pub fn reserve(len: usize) -> Result<VirtAddr, OutOfMemory> {
    task::with_compat_scratch(|scratch| {
        let at = scratch.len().next_multiple_of(8);
        let end = at.checked_add(len).filter(|end| *end <= SIZE_MAX);
        let end = end.ok_or(OutOfMemory)?;
        scratch
            .try_reserve(end - scratch.len())
            .map_err(|_| OutOfMemory)?;
        scratch.resize(end, 0);
        Ok(VirtAddr(START + at))
    })
    .unwrap_or(Err(OutOfMemory))
}

/// Lays `bytes` in the current task's scratch space; gives their address, a multiple of 8.
///
/// # Errors
/// As [`reserve`].
pub fn put(bytes: &[u8]) -> Result<VirtAddr, OutOfMemory> {
    let at = reserve(bytes.len())?;
    // The place was made just now.
    let _ = change(at, bytes.len(), |place| place.copy_from_slice(bytes));
    Ok(at)
}

/// Clears the current task's scratch space.
pub fn clear() {
    task::with_compat_scratch(|scratch| {
        scratch.clear();
        if scratch.capacity() > KEPT {
            *scratch = Vec::new();
        }
    });
}

/// Whether this is an address in a scratch space.
pub fn holds(at: VirtAddr) -> bool {
    (START..START + SIZE_MAX).contains(&at.0)
}

/// Calls `f` with `len` bytes at `at` of the current task's scratch space.
#[cold]
fn change(at: VirtAddr, len: usize, f: impl FnOnce(&mut [u8])) -> Result<(), BadAddress> {
    task::with_compat_scratch(|scratch| {
        let from = at.0.checked_sub(START)?;
        f(scratch.get_mut(from..from.checked_add(len)?)?);
        Some(())
    })
    .flatten()
    .ok_or(BadAddress)
}

/// Copies from the scratch space.
///
/// # Safety
/// `to` is valid for writing `len` bytes and not a part of the scratch space.
#[cold]
pub(super) unsafe fn copy_in(to: *mut u8, from: VirtAddr, len: usize) -> Result<(), BadAddress> {
    // SAFETY: the caller's promise, and the slice has this length.
    change(from, len, |bytes| unsafe {
        to.copy_from_nonoverlapping(bytes.as_ptr(), len);
    })
}

/// Copies to the scratch space.
///
/// # Safety
/// `from` is valid for reading `len` bytes and not a part of the scratch space.
#[cold]
pub(super) unsafe fn copy_out(to: VirtAddr, from: *const u8, len: usize) -> Result<(), BadAddress> {
    // SAFETY: as above.
    change(to, len, |bytes| unsafe {
        bytes.as_mut_ptr().copy_from_nonoverlapping(from, len);
    })
}
