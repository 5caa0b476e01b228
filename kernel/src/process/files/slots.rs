//! The slots of a descriptor table, and what is marked of each.

use abi::{Errno, Result};
use alloc::{sync::Arc, vec::Vec};

use nucleus::speculation;
use vm::account::{self, Account, Charge, Kind};

use super::OpenFile;

/// Descriptors that a new table has room for. Their open files are charged to the table, for
/// `STEP` descriptors at a time up to the highest one it had: an `open` that touches no account.
pub(super) const FIRST_SIZE: usize = 64;
/// Words of marks that a table has room for: a cache line. Those of two processes in one line would
/// be written by two CPUs.
const LEAST_WORDS: usize = 4;

/// Room for `files.len()` descriptors, always a multiple of 64.
#[derive(Default)]
pub(super) struct Slots {
    pub files: Vec<Option<Arc<OpenFile>>>,
    /// Of 64 descriptors each.
    pub marks: Vec<Marks>,
    /// No free descriptor below.
    pub lowest: usize,
    /// Copies in progress, during which nothing changes.
    pub frozen: usize,
    /// Of more than [`FIRST_SIZE`]: a thread's charge covers the table itself of those.
    pub charge: Option<Charge>,
    /// Open files of the descriptors that are covered.
    pub first_files: Option<Charge>,
}

/// A bit per descriptor of each.
#[derive(Clone, Copy, Default)]
pub(super) struct Marks {
    /// Open, or reserved by an open in progress.
    pub used: u64,
    /// To be closed by `execve`. Clear where `used` is.
    pub close_on_exec: u64,
}

impl Marks {
    pub fn has(bits: u64, fd: usize) -> bool {
        bits & (1 << (fd % 64)) != 0
    }

    pub fn set(bits: &mut u64, fd: usize, on: bool) {
        let bit = 1 << (fd % 64);
        match on {
            true => *bits |= bit,
            false => *bits &= !bit,
        }
    }
}

/// What a table of `size` descriptors is charged with.
pub(super) fn charge(account: &Arc<Account>, size: usize) -> Charge {
    let bytes = size * size_of::<Option<Arc<OpenFile>>>() + size / 4;
    account.charge(Kind::Descriptors, size, bytes)
}

impl Slots {
    /// Room for `size` descriptors and none open; charged to the current process.
    pub fn with_size(size: usize) -> Result<Slots> {
        let mut slots = Slots::default();
        let no_memory = |_| Errno::ENOMEM;
        slots.files.try_reserve_exact(size).map_err(no_memory)?;
        let words = (size / 64).max(LEAST_WORDS);
        slots.marks.try_reserve_exact(words).map_err(no_memory)?;
        slots.files.resize_with(size, || None);
        slots.marks.resize(size / 64, Marks::default());
        if size > FIRST_SIZE {
            slots.charge = account::current().map(|account| charge(&account, size));
        }
        Ok(slots)
    }

    /// The lowest free descriptor from `min` on; beyond the table's size if none inside is.
    pub fn free(&self, min: usize) -> usize {
        let start = min.max(self.lowest);
        let mut word = start / 64;
        let mut mask = !0 << (start % 64);
        while word < self.marks.len() {
            let free = !self.marks[word].used & mask;
            if free != 0 {
                return word * 64 + free.trailing_zeros() as usize;
            }
            mask = !0;
            word += 1;
        }
        start.max(self.files.len())
    }

    /// The first open descriptor from `from` on.
    pub fn next(&self, from: usize) -> Option<usize> {
        if from >= self.files.len() {
            return None;
        }
        // A program chose it (`close_range`).
        let from = speculation::mask_index(from, self.files.len());
        let mut mask = !0 << (from % 64);
        for word in from / 64..self.marks.len() {
            let mut left = self.marks[word].used & mask;
            while left != 0 {
                let fd = word * 64 + left.trailing_zeros() as usize;
                // Not one that is only reserved.
                if self.files[fd].is_some() {
                    return Some(fd);
                }
                left &= left - 1;
            }
            mask = !0;
        }
        None
    }

    pub fn is_used(&self, fd: usize) -> bool {
        Marks::has(self.marks[fd / 64].used, fd)
    }

    pub fn set_close_on_exec(&mut self, fd: usize, on: bool) {
        Marks::set(&mut self.marks[fd / 64].close_on_exec, fd, on);
    }

    /// Takes a free descriptor.
    pub fn take(&mut self, fd: usize) {
        Marks::set(&mut self.marks[fd / 64].used, fd, true);
        if fd == self.lowest {
            self.lowest = fd + 1;
        }
    }

    pub fn release(&mut self, fd: usize) -> Option<Arc<OpenFile>> {
        let marks = &mut self.marks[fd / 64];
        Marks::set(&mut marks.used, fd, false);
        Marks::set(&mut marks.close_on_exec, fd, false);
        if fd < self.lowest {
            self.lowest = fd;
        }
        self.files[fd].take()
    }
}
