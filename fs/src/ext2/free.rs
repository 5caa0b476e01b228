//! Counts of what is free in the whole file system.

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::group::Correction;

/// What is free in the whole file system. What is pending counts as in use.
#[derive(Default)]
pub(super) struct Free {
    /// Follows the groups, which say what can be taken: it may be off, and below zero, while somebody takes or gives any.
    blocks: AtomicI64,
    pub inodes: AtomicU32,
    pub directories: AtomicU32,
}

impl Free {
    /// Free blocks.
    pub fn blocks(&self) -> u32 {
        let blocks = self.blocks.load(Ordering::Relaxed);
        blocks.clamp(0, u32::MAX as i64) as u32
    }

    /// So many more, or fewer, blocks are free.
    pub fn add_blocks(&self, more: i64) {
        self.blocks.fetch_add(more, Ordering::Relaxed);
    }

    /// Takes one of a count, if there is any.
    pub fn take_one(count: &AtomicU32) -> bool {
        count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |there| {
                there.checked_sub(1)
            })
            .is_ok()
    }

    pub fn correct(count: &AtomicU32, by: Correction) {
        // A corrupted count must not wrap around.
        let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |there| {
            let corrected = (there as i64 + by.0).clamp(0, u32::MAX as i64);
            (by.0 != 0).then_some(corrected as u32)
        });
    }
}
