//! Memory that is accessed through atomics.

use std::io;
use std::ops::Range;
use std::process;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Memory of this program, in whole pages: [new](Memory::new) memory is private and reads zero, and
/// memory that was [passed](Memory::from_passed) has what its sender put there. Children
/// ([`Inherit::Share`](crate::Inherit::Share)) and other processes
/// ([`Passing::Share`](crate::Passing::Share)) may come to write it, so it is accessed through
/// atomics only.
///
/// A child for which it was set to [`Inherit::None`](crate::Inherit::None) does not have it, and is
/// killed when it accesses it.
#[derive(Debug)]
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    /// The process that has it, if its children do not.
    only_in: Option<u32>,
}

// SAFETY: the memory is accessed through atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const PAGE: usize = 4096;

impl Memory {
    /// Maps at least `len` bytes, rounded up to pages.
    ///
    /// # Errors
    /// Those of the kernel: out of memory; `EINVAL` for a length of zero.
    pub fn new(len: usize) -> io::Result<Memory> {
        let len = len
            .checked_next_multiple_of(PAGE)
            .ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Memory {
            start,
            len,
            only_in: None,
        })
    }

    /// Takes over memory that another process has passed to this one.
    ///
    /// # Safety
    /// `address` is where `len` bytes were passed, in whole pages that may be read and written.
    /// Nothing else uses or unmaps them.
    pub unsafe fn from_passed(address: usize, len: usize) -> Option<Memory> {
        let start = NonNull::new(ptr::with_exposed_provenance_mut(address))?;
        Some(Memory {
            start,
            len,
            only_in: None,
        })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns false: there is at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns its addresses.
    pub fn addresses(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.len
    }

    /// Notes whether children get it.
    pub(crate) fn note_children(&mut self, get_it: bool) {
        self.only_in = (!get_it).then(process::id);
    }

    /// Returns it as bytes.
    pub fn as_bytes(&self) -> &[AtomicU8] {
        // SAFETY: mapped as long as this lives, initialised by the kernel, and accessed through
        // atomics only.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), self.len) }
    }

    /// Returns it as words.
    pub fn as_u64s(&self) -> &[AtomicU64] {
        // SAFETY: as for bytes; it starts at a page, so it is aligned, and is whole pages long.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), self.len / 8) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.only_in.is_some_and(|id| id != process::id()) {
            // A child did not get it; something else may be there.
            return;
        }
        // SAFETY: our mapping, to which no reference is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn memory_is_zero_and_whole_pages() {
        let memory = Memory::new(PAGE + 1).expect("memory");
        assert_eq!(memory.len(), 2 * PAGE);
        assert!(!memory.is_empty());
        assert!(memory.as_bytes().iter().all(|byte| byte.load(Relaxed) == 0));
        memory.as_u64s()[1].store(0x0102, Relaxed);
        assert_eq!(memory.as_bytes()[8].load(Relaxed), 2);
        assert_eq!(memory.addresses().len(), memory.as_bytes().len());
        assert!(Memory::new(0).is_err());
        assert!(Memory::new(usize::MAX).is_err());
    }
}
