//! Bytes and calls that a thread has read and written (`/proc/PID/io`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::Result;

/// Bytes moved by calls that read and calls that write, and how many calls there were.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Transfers {
    pub bytes: [u64; 2],
    pub calls: [u64; 2],
}

/// Counters that their own thread raises and others read.
#[derive(Default)]
pub struct IoCounts {
    bytes: [AtomicU64; 2],
    calls: [AtomicU64; 2],
}

/// Only the thread itself counts: no need for an atomic addition.
fn raise(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

impl IoCounts {
    /// The thread called something that reads, with this outcome.
    #[inline]
    pub fn count_read(&self, outcome: &Result<usize>) {
        self.count(0, outcome);
    }

    /// The thread called something that writes, with this outcome.
    #[inline]
    pub fn count_write(&self, outcome: &Result<usize>) {
        self.count(1, outcome);
    }

    #[inline]
    fn count(&self, which: usize, outcome: &Result<usize>) {
        raise(&self.bytes[which], outcome.unwrap_or(0) as u64);
        raise(&self.calls[which], 1);
    }

    pub fn get(&self) -> Transfers {
        let load = |counters: &[AtomicU64; 2]| counters.each_ref().map(|it| it.load(Relaxed));
        Transfers {
            bytes: load(&self.bytes),
            calls: load(&self.calls),
        }
    }
}
