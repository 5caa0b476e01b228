//! The memory of the program that the current task runs for: every access may fault, and a fault
//! is resolved by the hook of [`set_fault_hook`] or ends in [`BadAddress`], wherever it points.
//!
//! Addresses at or above the end of the program's ([`USER_END`](crate::addr::USER_END), or that of
//! its region in a small space) are refused before they are touched, except those of what the
//! kernel itself has laid on the task's [`compat_scratch`]. Bytes are copied straight between the
//! program's mapping and the kernel's; a part may have been copied when an error is returned.
//! Callers hold no spin lock, except those of [`copy_in_page_if_mapped`] and
//! [`copy_out_page_if_mapped`], which resolve no fault.
//!
//! All addresses are the program's own. The CPU's are these with the base of a region added, if the
//! space is small ([`Window`]). Another thread may make it large in the middle of a copy: the copy
//! faults then, which is not resolved but begun again with what is left.

pub mod compat_scratch;
mod plain;
mod run;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::counters::Counter;
use crate::ephemeral::{self, Mapping};
use crate::hw::{Window, machine};
use crate::{Access, Frame, PAGE_SIZE, VirtAddr};
pub use plain::{Plain, ToUser, Unpadded, as_bytes, from_bytes, zeroed};

/// The program gave an address that it may not use so. `EFAULT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadAddress;

/// Why a string of the program's was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoString {
    /// See [`BadAddress`].
    BadAddress,
    /// There is no memory for a string of that length.
    OutOfMemory,
}

impl From<BadAddress> for NoString {
    fn from(_: BadAddress) -> NoString {
        NoString::BadAddress
    }
}

static HOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets, once at start, what resolves a fault of kernel code on a program's address: it returns
/// whether the access may be tried again. Called with interrupts on, in the context of the task.
pub fn set_fault_hook(hook: fn(VirtAddr, Access) -> bool) {
    HOOK.store(hook as *mut (), Ordering::Release);
}

/// A copy routine of the machine faulted on a program's address, a linear one: makes the access
/// possible, or says that it is not. Interrupts on.
pub(crate) fn resolve(linear: VirtAddr, access: Access) -> bool {
    let window = machine::window();
    let at = window.program_address(linear);
    at.0 < window.end && resolve_at(at, access)
}

/// As [`resolve`] for an address of the program.
fn resolve_at(at: VirtAddr, access: Access) -> bool {
    let hook = HOOK.load(Ordering::Acquire);
    if hook.is_null() {
        return false;
    }
    // SAFETY: the only value other than null that is ever stored is such a function.
    let hook = unsafe { core::mem::transmute::<*mut (), fn(VirtAddr, Access) -> bool>(hook) };
    hook(at, access)
}

/// What a range of the program's is to the CPU, as long as the program stays where it is.
#[derive(Clone, Copy)]
struct Linear {
    at: VirtAddr,
    base: usize,
}

/// Whether a range is a program's, and its addresses are the linear ones, as they are but in a
/// region.
#[inline]
fn is_linear(at: VirtAddr, len: usize) -> bool {
    let last = at.0.checked_add(len);
    last.is_some_and(|last| last <= machine::linear_end())
}

impl Linear {
    /// Refuses what lies, or reaches, outside a program's part of the address space.
    #[inline]
    fn of(at: VirtAddr, len: usize) -> Result<Linear, BadAddress> {
        match is_linear(at, len) {
            true => Ok(Linear { at, base: 0 }),
            false => Linear::segmented(at, len),
        }
    }

    /// As [`of`](Linear::of), for a program in a region, too.
    #[inline(never)]
    fn segmented(at: VirtAddr, len: usize) -> Result<Linear, BadAddress> {
        let Window { base, end } = machine::window();
        match at.0.checked_add(len) {
            Some(last) if last <= end => Ok(Linear {
                at: VirtAddr(at.0 + base),
                base,
            }),
            _ => Err(BadAddress),
        }
    }

    /// Whether the program has another base now: a fault may be due to that.
    #[inline]
    fn has_moved(self) -> bool {
        machine::window().base != self.base
    }
}

/// Copies `len` bytes from the program.
///
/// # Safety
/// `to` is valid for writing `len` bytes.
#[inline]
unsafe fn copy_in_raw(to: *mut u8, from: VirtAddr, len: usize) -> Result<(), BadAddress> {
    if !is_linear(from, len) {
        // SAFETY: the caller's promise.
        return unsafe { copy_in_segmented(to, from, len) };
    }
    Counter::bytes_copied_in.add(len as u64);
    // SAFETY: `to` by the caller's promise; the program's range was checked.
    unsafe { machine::copy_from_user(to, from, len) }.map_err(|_| BadAddress)
}

/// As [`copy_in_raw`] where the program is in a region, or was until now, or the range is none of
/// the program's.
///
/// # Safety
/// As [`copy_in_raw`].
#[inline(never)]
unsafe fn copy_in_segmented(to: *mut u8, from: VirtAddr, len: usize) -> Result<(), BadAddress> {
    let mut done = 0;
    loop {
        let (to, from, rest) = (to.wrapping_add(done), from + done, len - done);
        let Ok(linear) = Linear::of(from, rest) else {
            // SAFETY: the caller's promise; no reference into the scratch space exists.
            return unsafe { compat_scratch::copy_in(to, from, rest) };
        };
        Counter::bytes_copied_in.add(rest as u64);
        // SAFETY: `to` by the caller's promise; the program's range was checked.
        match unsafe { machine::copy_from_user(to, linear.at, rest) } {
            Ok(()) => return Ok(()),
            Err(left) if linear.has_moved() => done = len - left,
            Err(_) => return Err(BadAddress),
        }
    }
}

/// Copies `len` bytes to the program.
///
/// # Safety
/// `from` is valid for reading `len` bytes.
#[inline]
unsafe fn copy_out_raw(to: VirtAddr, from: *const u8, len: usize) -> Result<(), BadAddress> {
    if !is_linear(to, len) {
        // SAFETY: the caller's promise.
        return unsafe { copy_out_segmented(to, from, len) };
    }
    Counter::bytes_copied_out.add(len as u64);
    // SAFETY: as in `copy_in_raw`.
    unsafe { machine::copy_to_user(to, from, len) }.map_err(|_| BadAddress)
}

/// As [`copy_in_segmented`], to the program.
///
/// # Safety
/// As [`copy_out_raw`].
#[inline(never)]
unsafe fn copy_out_segmented(to: VirtAddr, from: *const u8, len: usize) -> Result<(), BadAddress> {
    let mut done = 0;
    loop {
        let (to, from, rest) = (to + done, from.wrapping_add(done), len - done);
        let Ok(linear) = Linear::of(to, rest) else {
            // SAFETY: as in `copy_in_segmented`.
            return unsafe { compat_scratch::copy_out(to, from, rest) };
        };
        Counter::bytes_copied_out.add(rest as u64);
        // SAFETY: as in `copy_in_segmented`.
        match unsafe { machine::copy_to_user(linear.at, from, rest) } {
            Ok(()) => return Ok(()),
            Err(left) if linear.has_moved() => done = len - left,
            Err(_) => return Err(BadAddress),
        }
    }
}

/// Copies from the program.
///
/// # Errors
/// [`BadAddress`]; the buffer may have been changed in part.
#[inline]
pub fn copy_in(to: &mut [u8], from: VirtAddr) -> Result<(), BadAddress> {
    // SAFETY: the buffer is valid for its length.
    unsafe { copy_in_raw(to.as_mut_ptr(), from, to.len()) }
}

/// Copies to the program.
///
/// # Errors
/// [`BadAddress`]; a part may have been copied.
#[inline]
pub fn copy_out(to: VirtAddr, from: &[u8]) -> Result<(), BadAddress> {
    // SAFETY: the bytes are valid for their length.
    unsafe { copy_out_raw(to, from.as_ptr(), from.len()) }
}

/// Copies from the program straight into a frame. `offset + len` is at most a page.
///
/// # Errors
/// [`BadAddress`]; the frame may have been changed in part.
pub fn copy_in_page(
    to: &Frame,
    offset: usize,
    from: VirtAddr,
    len: usize,
) -> Result<(), BadAddress> {
    if ephemeral::is_direct(to) {
        // SAFETY: checked to lie inside the page, which the caller's handle keeps. Programs may use
        // it at the same time; these are bytes without a meaning to the kernel.
        return unsafe { copy_in_raw(in_page(to, offset, len), from, len) };
    }
    if Linear::of(from, len).is_err() {
        let to = ephemeral::map(to);
        // SAFETY: as above, and mapped.
        return unsafe { compat_scratch::copy_in(to.at(offset, len), from, len) };
    }
    in_steps(from, len, Access::Read, |done| {
        let to = ephemeral::map_elsewhere(to);
        copy_in_mapped(&to, offset + done, from + done, len - done)
    })
}

/// Copies `len` bytes by steps that get no further than what the program has mapped, and resolves
/// the fault in between: no mapping of a frame is held then.
#[inline(always)]
fn in_steps(
    at: VirtAddr,
    len: usize,
    access: Access,
    mut step: impl FnMut(usize) -> usize,
) -> Result<(), BadAddress> {
    let mut done = step(0);
    while done < len {
        if !resolve_at(at + done, access) {
            return Err(BadAddress);
        }
        done += step(done);
    }
    Ok(())
}

/// The place of `len` bytes from `offset` on of a frame in the direct map, or of its block.
fn in_page(frame: &Frame, offset: usize, len: usize) -> *mut u8 {
    if !(offset <= PAGE_SIZE && len <= PAGE_SIZE - offset) {
        frame.check_in_block(offset, len);
    }
    frame.bytes().wrapping_add(offset)
}

/// As [`copy_in_page`], as far as the program's pages are mapped: no fault is resolved, so locks
/// may be held. Returns how many bytes were copied; none of what [`compat_scratch`] holds.
pub fn copy_in_page_if_mapped(
    to: &Mapping<'_>,
    offset: usize,
    from: VirtAddr,
    len: usize,
) -> usize {
    copy_in_mapped(to, offset, from, len)
}

/// See [`copy_in_page_if_mapped`].
#[inline]
fn copy_in_mapped(to: &Mapping<'_>, offset: usize, from: VirtAddr, len: usize) -> usize {
    let Ok(from) = Linear::of(from, len) else {
        return 0;
    };
    let to = to.at(offset, len);
    // SAFETY: as in `copy_in_page`; the program's range was checked.
    let copied = match unsafe { machine::copy_mapped_from_user(to, from.at, len) } {
        Ok(()) => len,
        Err(left) => len - left,
    };
    Counter::bytes_copied_in.add(copied as u64);
    copied
}

/// Copies from a frame straight to the program. `offset + len` is at most a page, or the frame's
/// [size](Frame::size).
///
/// # Errors
/// [`BadAddress`]; a part may have been copied.
pub fn copy_out_page(
    to: VirtAddr,
    from: &Frame,
    offset: usize,
    len: usize,
) -> Result<(), BadAddress> {
    if ephemeral::is_direct(from) {
        // SAFETY: as in `copy_in_page`.
        return unsafe { copy_out_raw(to, in_page(from, offset, len), len) };
    }
    if Linear::of(to, len).is_err() {
        let from = ephemeral::map(from);
        // SAFETY: as in `copy_in_page`.
        return unsafe { compat_scratch::copy_out(to, from.at(offset, len), len) };
    }
    in_steps(to, len, Access::Write, |done| {
        let from = ephemeral::map_elsewhere(from);
        copy_out_mapped(to + done, &from, offset + done, len - done)
    })
}

/// As [`copy_out_page`], as far as the program's pages are mapped to be written, as
/// [`copy_in_page_if_mapped`] does the other way.
pub fn copy_out_page_if_mapped(
    to: VirtAddr,
    from: &Mapping<'_>,
    offset: usize,
    len: usize,
) -> usize {
    copy_out_mapped(to, from, offset, len)
}

/// See [`copy_out_page_if_mapped`].
#[inline]
fn copy_out_mapped(to: VirtAddr, from: &Mapping<'_>, offset: usize, len: usize) -> usize {
    let Ok(to) = Linear::of(to, len) else {
        return 0;
    };
    let from = from.at(offset, len);
    // SAFETY: as in `copy_in_page`; the program's range was checked.
    let copied = match unsafe { machine::copy_mapped_to_user(to.at, from, len) } {
        Ok(()) => len,
        Err(left) => len - left,
    };
    Counter::bytes_copied_out.add(copied as u64);
    copied
}

/// Writes zeros.
///
/// # Errors
/// [`BadAddress`]; a part may have been written.
#[inline]
pub fn clear(to: VirtAddr, len: usize) -> Result<(), BadAddress> {
    static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
    Linear::of(to, len)?;
    let mut done = 0;
    while done < len {
        let n = (len - done).min(PAGE_SIZE);
        copy_out(to + done, &ZEROS[..n])?;
        done += n;
    }
    Ok(())
}

/// Bytes of a string that are fetched at a time: most paths and arguments fit, and the buffer is
/// on the stack.
const STRING_STEP: usize = 128;

/// Bytes that CPUs share or not.
const CACHE_LINE: usize = 64;

/// Reads a NUL-terminated string of at most `max` bytes without the NUL. `Ok(None)` if it is
/// longer.
///
/// # Errors
/// [`NoString`].
pub fn copy_in_string(from: VirtAddr, max: usize) -> Result<Option<Vec<u8>>, NoString> {
    let mut string = Vec::new();
    let mut buffer = [0; STRING_STEP];
    loop {
        let at = from.checked_add(string.len()).ok_or(BadAddress)?;
        // Never beyond the page: the next one may be missing, and the string may end in this one.
        let in_page = PAGE_SIZE - at.page_offset();
        let wanted = (max - string.len()).saturating_add(1);
        let piece = &mut buffer[..in_page.min(wanted).min(STRING_STEP)];
        copy_in(piece, at)?;
        let end = piece.iter().position(|&byte| byte == 0);
        let bytes = &piece[..end.unwrap_or(piece.len())];
        if string.len() + bytes.len() > max {
            return Ok(None);
        }
        // A cache line at least: a string that lasts a moment shares none with names that stay and
        // that other CPUs read.
        let reserved = string.try_reserve(bytes.len().max(CACHE_LINE));
        reserved.map_err(|_| NoString::OutOfMemory)?;
        string.extend_from_slice(bytes);
        if end.is_some() {
            return Ok(Some(string));
        }
    }
}

/// Reads a [`Plain`] value, aligned or not.
///
/// # Errors
/// [`BadAddress`].
#[inline]
pub fn read<T: Plain>(from: VirtAddr) -> Result<T, BadAddress> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the place is valid for the size of `T`; when the copy succeeded all of it was
    // written, and every bit pattern is a `T`.
    unsafe {
        copy_in_raw(value.as_mut_ptr().cast(), from, size_of::<T>())?;
        Ok(value.assume_init())
    }
}

/// Reads consecutive [`Plain`] values, aligned or not.
///
/// # Errors
/// [`BadAddress`]; the values may have been changed in part.
#[inline]
pub fn read_all<T: Plain>(to: &mut [T], from: VirtAddr) -> Result<(), BadAddress> {
    // SAFETY: the values' memory is valid for its length, and every bit pattern is a `T`.
    unsafe { copy_in_raw(to.as_mut_ptr().cast(), from, size_of_val(to)) }
}

/// Writes a value, aligned or not.
///
/// # Errors
/// [`BadAddress`]; a part may have been written.
#[inline]
pub fn write<T: ToUser>(to: VirtAddr, value: &T) -> Result<(), BadAddress> {
    value.with_bytes(|bytes| copy_out(to, bytes))
}

/// Writes consecutive words, aligned or not.
///
/// # Errors
/// [`BadAddress`]; a part may have been written.
#[inline]
pub fn write_words(to: VirtAddr, words: &[u64]) -> Result<(), BadAddress> {
    // SAFETY: the words' memory is valid for its length, and all of it is initialised.
    unsafe { copy_out_raw(to, words.as_ptr().cast(), size_of_val(words)) }
}

/// Calls `access` with the linear address of a word, again if the program has moved meanwhile.
/// Refuses one that is not aligned, or not a program's.
#[inline]
fn access_word<T>(
    at: VirtAddr,
    access: impl Fn(VirtAddr) -> Result<T, ()>,
) -> Result<T, BadAddress> {
    if !at.0.is_multiple_of(4) {
        return Err(BadAddress);
    }
    match is_linear(at, 4) {
        true => access(at).map_err(|()| BadAddress),
        false => access_segmented_word(at, access),
    }
}

/// As [`access_word`] of a program in a region, or of a word that is no program's.
#[inline(never)]
fn access_segmented_word<T>(
    at: VirtAddr,
    access: impl Fn(VirtAddr) -> Result<T, ()>,
) -> Result<T, BadAddress> {
    loop {
        let linear = Linear::of(at, 4)?;
        match access(linear.at) {
            Ok(value) => return Ok(value),
            Err(()) if linear.has_moved() => {}
            Err(()) => return Err(BadAddress),
        }
    }
}

/// An aligned atomic load of a 32-bit word (futex).
///
/// # Errors
/// [`BadAddress`], also if it is not aligned.
#[inline]
pub fn load_u32(from: VirtAddr) -> Result<u32, BadAddress> {
    // SAFETY: checked before.
    access_word(from, |at| unsafe { machine::user_load_u32(at) })
}

/// An aligned atomic compare-exchange on a 32-bit word; returns the old value (futex).
///
/// # Errors
/// [`BadAddress`], also if it is not aligned.
#[inline]
pub fn compare_exchange_u32(at: VirtAddr, old: u32, new: u32) -> Result<u32, BadAddress> {
    // SAFETY: checked before.
    access_word(at, |at| unsafe { machine::user_cmpxchg_u32(at, old, new) })
}
