//! Ephemeral mappings (`ephemeral-mappings.txt` 4): a kernel mapping of a frame for a short time.
//!
//! The only way for the floors above to touch the bytes of a frame. A program may write the same
//! bytes at the same time, so a mapping gives no slices: it copies, fills and compares.

use bitflags::bitflags;

use crate::Frame;

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
}

/// Maps `frame`. With no flags it always succeeds, sleeping if it must.
pub fn alloc(frame: &Frame, flags: Flags) -> Result<Mapping<'_>, Unavailable> {
    todo!()
}

/// A mapping private to this task; sleeps rather than fail.
pub fn map(frame: &Frame) -> Mapping<'_> {
    todo!()
}

/// Gives the mapping back. The same as dropping it, for readers.
pub fn free(mapping: Mapping<'_>) {
    drop(mapping);
}

impl<'a> Mapping<'a> {
    /// The kernel virtual address of byte 0.
    pub fn address(&self) -> usize {
        todo!()
    }

    /// The frame mapped.
    pub fn frame(&self) -> &'a Frame {
        self.frame
    }

    /// Copies out of the page. `offset + to.len()` is at most a page.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        todo!()
    }

    /// Copies into the page.
    pub fn write(&self, offset: usize, from: &[u8]) {
        todo!()
    }

    /// Sets `len` bytes from `offset` on to `byte`.
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        todo!()
    }

    /// Copies `len` bytes of `from`'s page at `from_offset` to this one at `offset`.
    pub fn copy_from(&self, offset: usize, from: &Mapping<'_>, from_offset: usize, len: usize) {
        todo!()
    }
}
