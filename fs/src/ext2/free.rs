//! Counts of what is free in the whole file system.

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// Free blocks and inodes of the whole file system. Pending ones count as in use.
#[derive(Default)]
pub(super) struct Free {
    /// Follows the counts of the groups, which are authoritative: may be inexact, even negative,
    /// during an allocation.
    blocks: AtomicI64,
    pub inodes: AtomicU32,
    pub directories: AtomicU32,
}

impl Free {
    /// The number of free blocks.
    pub fn blocks(&self) -> u32 {
        let blocks = self.blocks.load(Ordering::Relaxed);
        blocks.clamp(0, u32::MAX as i64) as u32
    }

    /// Adds to the number of free blocks.
    pub fn add_blocks(&self, more: i64) {
        self.blocks.fetch_add(more, Ordering::Relaxed);
    }

    /// Decrements a count unless it is 0.
    pub fn take_one(count: &AtomicU32) -> bool {
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |there| {
                there.checked_sub(1)
            })
            .is_ok()
    }

    pub fn correct(count: &AtomicU32, by: i64) {
        // A corrupted count must not wrap around.
        let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |there| {
            let corrected = (there as i64 + by).clamp(0, u32::MAX as i64);
            (by != 0).then_some(corrected as u32)
        });
    }
}
