//! Bytes and calls that a thread has read and written (`/proc/PID/io`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::Result;

/// Bytes moved by calls that read or write, and how many calls there were.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Transfers {
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub reads: u64,
    pub writes: u64,
}

impl Transfers {
    /// Adds up.
    pub fn add(&mut self, other: &Transfers) {
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

/// Counters that their own thread raises and others read.
#[derive(Default)]
pub struct IoCounts {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
}

/// Only the thread itself counts: no need for an atomic addition.
fn raise(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

impl IoCounts {
    /// The thread called something that reads, with this outcome.
    #[inline]
    pub fn count_read(&self, outcome: &Result<usize>) {
        raise(&self.bytes_read, outcome.unwrap_or(0) as u64);
        raise(&self.reads, 1);
    }

    /// The thread called something that writes, with this outcome.
    #[inline]
    pub fn count_write(&self, outcome: &Result<usize>) {
        raise(&self.bytes_written, outcome.unwrap_or(0) as u64);
        raise(&self.writes, 1);
    }

    /// The counts so far.
    pub fn get(&self) -> Transfers {
        Transfers {
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
        }
    }
}
