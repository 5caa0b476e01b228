//! Mappings, and tmpfs files to map.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::{ptr, slice};

use crate::{Failure, call};

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// A mapping of this process, unmapped on drop.
pub struct Mapping {
    at: *mut u8,
    len: usize,
}

// SAFETY: it owns plain memory, which any thread may access; several threads write different pages.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared use is by `write_pages` and `read_pages`, which are volatile.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of private zero-fill memory. The kernel may use large pages for it; see
    /// [`small`](Mapping::small).
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn zero_fill(len: usize) -> Result<Self, Failure> {
        Self::new(
            None,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        )
    }

    /// Maps the first `len` bytes of a file, or anonymous memory, with these arguments of `mmap`.
    ///
    /// # Errors
    /// Those of `mmap`.
    pub fn new(
        file: Option<&File>,
        len: usize,
        protection: i32,
        flags: i32,
    ) -> Result<Self, Failure> {
        let fd = file.map_or(-1, AsRawFd::as_raw_fd);
        let at = call!(mmap(ptr::null_mut(), len, protection, flags, fd, 0))?;
        Ok(Self { at: at.cast(), len })
    }

    /// Asks for pages of 4 KiB where the kernel would choose larger ones (`MADV_NOHUGEPAGE`); a
    /// kernel without larger ones may refuse.
    #[must_use]
    pub fn small(self) -> Self {
        // SAFETY: advice about memory of its own.
        let _ = unsafe { libc::madvise(self.at.cast(), self.len, libc::MADV_NOHUGEPAGE) };
        self
    }

    /// Returns the address of its first byte.
    pub fn at(&self) -> *mut u8 {
        self.at
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether it has no byte: never.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its bytes, which no other thread uses meanwhile.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped while the mapping lives, and borrowed as a whole.
        unsafe { slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Writes one byte of each page.
    pub fn write_pages(&self) {
        self.write_part(0, self.len);
    }

    /// Writes one byte of each page from byte `from` to byte `to`.
    pub fn write_part(&self, from: usize, to: usize) {
        for offset in (from..to.min(self.len)).step_by(PAGE) {
            // SAFETY: inside the mapping; volatile, so that each page is touched.
            unsafe { self.at.add(offset).write_volatile(1) };
        }
    }

    /// Reads one byte of each page; returns their sum.
    pub fn read_pages(&self) -> u64 {
        self.read_part(0, self.len)
    }

    /// Reads one byte of each page from byte `from` to byte `to`; returns their sum.
    pub fn read_part(&self, from: usize, to: usize) -> u64 {
        (from..to.min(self.len))
            .step_by(PAGE)
            // SAFETY: inside the mapping; volatile, so that each page is touched.
            .map(|offset| u64::from(unsafe { self.at.add(offset).read_volatile() }))
            .sum()
    }

    /// Returns the sum of all bytes.
    pub fn sum_bytes(&self) -> u64 {
        (0..self.len)
            // SAFETY: inside the mapping.
            .map(|offset| u64::from(unsafe { self.at.add(offset).read_volatile() }))
            .sum()
    }

    /// Advises the kernel about all of it.
    ///
    /// # Errors
    /// Those of `madvise`.
    pub fn advise(&self, advice: i32) -> Result<(), Failure> {
        call!(madvise(self.at.cast(), self.len, advice)).map(drop)
    }

    /// Changes the protection of all of it.
    ///
    /// # Errors
    /// Those of `mprotect`.
    pub fn protect(&self, protection: i32) -> Result<(), Failure> {
        call!(mprotect(self.at.cast(), self.len, protection)).map(drop)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it owns the mapping, and nothing borrows from it any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Makes an unnamed tmpfs file with `len` bytes that are not zero.
///
/// # Errors
/// When there is no `/tmp` to make it in.
pub fn file(len: usize) -> Result<File, Failure> {
    let name = format!("/tmp/bench-{}", std::process::id());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&name)?;
    std::fs::remove_file(&name)?;
    let block = [0x5a; 16 * PAGE];
    for offset in (0..len).step_by(block.len()) {
        file.write_all_at(&block[..block.len().min(len - offset)], offset as u64)?;
    }
    Ok(file)
}
