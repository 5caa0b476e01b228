//! Ephemeral mappings (`ephemeral-mappings.txt` 4): a kernel mapping of a frame for a short time.
//!
//! The only way for the floors above to touch the bytes of a frame. A program may write the same
//! bytes at the same time, so a mapping gives no slices: it copies, fills and compares.

//!
//! Where the mapping comes from is the business of a backend. `direct` is the amd64 one: every
//! frame has a permanent mapping, and a mapping is an addition.

mod direct;

use bitflags::bitflags;

use crate::counters::Counter;
use crate::{Frame, PAGE_SIZE};
use direct as backend;

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
}

/// What a backend says about a mapping that it made.
struct Mapped {
    address: *mut u8,
    /// No page table was changed for it.
    hit: bool,
}

/// Maps `frame`. With no flags it always succeeds, sleeping if it must.
///
/// # Errors
/// See [`Unavailable`]; only with the flags named there.
#[inline]
pub fn alloc(frame: &Frame, flags: Flags) -> Result<Mapping<'_>, Unavailable> {
    let Mapped { address, hit } = backend::alloc(frame, flags)?;
    if hit {
        Counter::ephemeral_hits.add(1);
    } else {
        Counter::ephemeral_misses.add(1);
    }
    Ok(Mapping { frame, address })
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
        backend::free(self.frame, self.address);
    }
}

impl<'a> Mapping<'a> {
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
        self.address.wrapping_add(offset)
    }

    /// Copies out of the page. `offset + to.len()` is at most a page.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        // SAFETY: `at` checked the range, the page is mapped while `self` lives, and `to` is memory of
        // the kernel, which is in no data frame. A program may write the bytes meanwhile; then what
        // arrives is some mixture, and bytes have no invalid values.
        unsafe { core::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) }
    }

    /// Copies into the page.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
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
        // SAFETY: `at` checked both ranges; both pages are mapped; `copy` allows that they are the
        // same one.
        unsafe { core::ptr::copy(from.at(from_offset, len), self.at(offset, len), len) }
    }
}
