//! The memory of the program that the current task runs for: every access may fault, and a fault
//! is resolved by the hook of [`set_fault_hook`] or ends in [`BadAddress`], wherever it points.
//!
//! Addresses at or above [`USER_END`](crate::addr::USER_END) are refused before they are touched.
//! None of these may be called with a spin lock held. Bytes are copied straight between the
//! program's mapping and the kernel's; a partial copy may have happened when an error is returned.

use alloc::vec::Vec;

use crate::ephemeral::Mapping;
use crate::{Access, VirtAddr};

/// The program gave an address that it may not use so. `EFAULT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAddress;

/// Sets, once at start, what resolves a fault of kernel code on a program's address: it returns
/// whether the access may be tried again. Called with interrupts on, in the context of the task.
pub fn set_fault_hook(hook: fn(VirtAddr, Access) -> bool) {
    todo!()
}

/// Copies from the program.
pub fn copy_in(to: &mut [u8], from: VirtAddr) -> Result<(), BadAddress> {
    todo!()
}

/// Copies to the program.
pub fn copy_out(to: VirtAddr, from: &[u8]) -> Result<(), BadAddress> {
    todo!()
}

/// Copies from the program straight into a frame.
pub fn copy_in_page(
    to: &Mapping<'_>,
    offset: usize,
    from: VirtAddr,
    len: usize,
) -> Result<(), BadAddress> {
    todo!()
}

/// Copies from a frame straight to the program.
pub fn copy_out_page(
    to: VirtAddr,
    from: &Mapping<'_>,
    offset: usize,
    len: usize,
) -> Result<(), BadAddress> {
    todo!()
}

/// Writes zeros.
pub fn clear(to: VirtAddr, len: usize) -> Result<(), BadAddress> {
    todo!()
}

/// Reads a NUL-terminated string of at most `max` bytes without the NUL. `Ok(None)` if it is
/// longer.
pub fn copy_in_string(from: VirtAddr, max: usize) -> Result<Option<Vec<u8>>, BadAddress> {
    todo!()
}

/// A structure that may be copied between the kernel and a program byte by byte: any bit pattern
/// is a valid value. Build one to be written out from [`zeroed`], so that padding carries nothing.
///
/// # Safety
/// The implementor promises that every bit pattern is valid. `nucleus` implements it for integers,
/// for arrays of them and (in `plain.rs`) for the structures of `linux-raw-sys` that the system calls exchange.
pub unsafe trait Plain: Copy + 'static {}

/// The value whose bytes are all zero.
pub fn zeroed<T: Plain>() -> T {
    todo!()
}

/// The value's bytes (for an in-kernel buffer).
pub fn as_bytes<T: Plain>(value: &T) -> &[u8] {
    todo!()
}

/// Reads a [`Plain`] value, aligned or not.
pub fn read<T: Plain>(from: VirtAddr) -> Result<T, BadAddress> {
    todo!()
}

/// Writes a [`Plain`] value, aligned or not.
pub fn write<T: Plain>(to: VirtAddr, value: &T) -> Result<(), BadAddress> {
    todo!()
}

/// An aligned atomic load of a 32-bit word (futex).
pub fn load_u32(from: VirtAddr) -> Result<u32, BadAddress> {
    todo!()
}

/// An aligned atomic compare-exchange on a 32-bit word; returns the old value (futex).
pub fn compare_exchange_u32(at: VirtAddr, old: u32, new: u32) -> Result<u32, BadAddress> {
    todo!()
}

/// Kernel code faulted on a program's address: returns whether the access may be tried again.
pub(crate) fn resolve(at: VirtAddr, access: Access) -> bool {
    todo!()
}
