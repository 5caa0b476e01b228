//! Ephemeral mappings (`ephemeral-mappings.txt` 4): a kernel mapping of a frame for a short time.
//!
//! The only way for the floors above to touch the bytes of a frame. A program may write the same
//! bytes at the same time, so a mapping gives no slices: it copies, fills and compares.
//!
//! Where the mapping comes from is the business of a backend. `direct` is the amd64 one: every
//! frame has a permanent mapping, and a mapping is an addition. `uncached` does what kernels did
//! before, for comparison.

mod direct;
#[cfg(all(test, not(target_os = "none")))]
mod tests;
mod uncached;

use bitflags::bitflags;

use crate::counters::Counter;
use crate::frame::record::{NONE, address};
use crate::hw::machine;
use crate::{Frame, OutOfMemory, PAGE_SIZE};

bitflags! {
    /// `ephemeral-mappings.txt` 4.1.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u8 {
        /// Only this task on this CPU uses the mapping.
        const PRIVATE = 1;
        /// Fail rather than sleep when no mapping is free.
        const NO_WAIT = 2;
        /// A signal may end the sleep.
        const INTERRUPTIBLE = 4;
    }
}

/// Why there is no mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unavailable {
    /// `NO_WAIT` was given and none is free.
    WouldSleep,
    /// `INTERRUPTIBLE` was given and a signal came.
    Interrupted,
}

/// A mapping in use; dropping it frees it.
pub struct Mapping<'a> {
    frame: &'a Frame,
    address: *mut u8,
    /// The address's number in the window, [`NONE`] for the direct map.
    slot: u32,
}

/// Where mappings come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// The direct map.
    #[default]
    Direct,
    /// An address allocated for each mapping, and told to every CPU when it ends.
    Uncached,
}

/// Makes mappings by this backend from now on; those that there are stay as they are.
///
/// # Errors
/// [`OutOfMemory`] if there is none for its page tables.
pub fn set_backend(backend: Backend) -> Result<(), OutOfMemory> {
    uncached::set(backend == Backend::Uncached)
}

/// Returns the backend of new mappings.
pub fn backend() -> Backend {
    match uncached::is_on() {
        true => Backend::Uncached,
        false => Backend::Direct,
    }
}

/// Forgets an earlier machine.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(crate) unsafe fn init() {
    // SAFETY: the caller's promise.
    unsafe { uncached::start() };
}

/// Maps `frame`. With no flags it always succeeds, sleeping if it must.
///
/// # Errors
/// See [`Unavailable`]; only with the flags named there.
#[inline]
pub fn alloc(frame: &Frame, flags: Flags) -> Result<Mapping<'_>, Unavailable> {
    if uncached::is_on()
        && let Some(mapping) = alloc_uncached(frame)
    {
        return Ok(mapping);
    }
    let mapping = direct::alloc(frame, flags)?;
    Counter::ephemeral_hits.add(1);
    Ok(mapping)
}

#[cold]
fn alloc_uncached(frame: &Frame) -> Option<Mapping<'_>> {
    let mapping = uncached::alloc(frame)?;
    Counter::ephemeral_misses.add(1);
    Some(mapping)
}

/// A mapping private to this task; sleeps rather than fail.
#[inline]
pub fn map(frame: &Frame) -> Mapping<'_> {
    loop {
        if let Ok(mapping) = alloc(frame, Flags::PRIVATE) {
            return mapping;
        }
    }
}

/// Gives the mapping back. The same as dropping it, for readers.
pub fn free(mapping: Mapping<'_>) {
    drop(mapping);
}

impl Drop for Mapping<'_> {
    #[inline]
    fn drop(&mut self) {
        // A look at what hardly ever changes: the slot need not be at hand.
        if uncached::was_on() {
            self.free_uncached();
        } else {
            direct::free(self.frame, self.address);
        }
    }
}

impl<'a> Mapping<'a> {
    #[cold]
    #[inline(never)]
    fn free_uncached(&mut self) {
        match self.slot {
            NONE => direct::free(self.frame, self.address),
            slot => uncached::free(slot, self.frame),
        }
    }

    /// The kernel virtual address of byte 0.
    #[inline]
    pub fn address(&self) -> usize {
        self.address as usize
    }

    /// The frame mapped.
    #[inline]
    pub fn frame(&self) -> &'a Frame {
        self.frame
    }

    /// The place of `len` bytes from `offset` on, which lie inside the page.
    #[inline]
    pub(crate) fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= PAGE_SIZE && len <= PAGE_SIZE - offset,
            "an access of {len} bytes at {offset} goes beyond the page"
        );
        if self.slot != NONE {
            machine::window_used(self.slot as usize, address(self.frame.index()));
        }
        self.address.wrapping_add(offset)
    }

    /// Copies out of the page. `offset + to.len()` is at most a page.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        Counter::bytes_copied_within.add(to.len() as u64);
        // SAFETY: `at` checked the range, the page is mapped while `self` lives, and `to` is memory
        // of the kernel, which is in no data frame. A program may write the bytes meanwhile; then
        // what arrives is some mixture, and bytes have no invalid values.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies into the page.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        Counter::bytes_copied_within.add(from.len() as u64);
        // SAFETY: as in `read`, the other way round.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) }
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    #[inline]
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        // SAFETY: `at` checked the range; the page is mapped while `self` lives.
        unsafe { core::ptr::write_bytes(self.at(offset, len), byte, len) }
    }

    /// Copies `len` bytes of `from`'s page at `from_offset` to this one at `offset`.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &Mapping<'_>, from_offset: usize, len: usize) {
        Counter::bytes_copied_within.add(len as u64);
        // SAFETY: `at` checked both ranges; both pages are mapped; `copy` allows that they are the
        // same one.
        unsafe { core::ptr::copy(from.at(from_offset, len), self.at(offset, len), len) }
    }
}
