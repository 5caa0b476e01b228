//! Ranges of which TLBs may hold translations that the map no longer allows.
//!
//! A shootdown takes longer than all else that `munmap` and `mprotect` do. So for private anonymous
//! memory they flush with the map unlocked, and other threads change other ranges meanwhile
//! ([`Map::unmap`](super::Map::unmap), [`Map::protect`](super::Map::protect)). With the map
//! write-locked they have changed the entries and the translations, and noted the range here. Until
//! the note is withdrawn, after the flush,
//!
//! - nothing new is mapped in the range: a search for free addresses skips it, and a caller that
//!   needs these addresses waits;
//! - operations wait that skip the flush where a translation is absent or read-only already: those
//!   that unmap, discard, protect, lend, copy or move pages. Faults do not wait: they find no
//!   entry, or one with the reduced rights, and grant no more than that.
//!
//! Frames and removed entries stay with the changing thread until then.
//!
//! Withdrawing a note needs no lock. A caller that waits has the map locked: no note is added
//! meanwhile, and the threads whose notes it waits for take no lock of a map before they withdraw
//! them.

use core::sync::atomic::{AtomicU64, Ordering};
use nucleus::{Mistake, PAGE_SHIFT, VirtAddr, VirtRange, task::WaitQueue};

/// Ranges at one time: with their count, a cache line. With more, `munmap` and `mprotect` flush
/// with the map locked.
const RANGES: usize = 7;
/// The low bits of a note: the number of pages, of which the first one's number is above. Ranges of
/// 1 TiB and more are flushed with the map locked.
const COUNT_BITS: u32 = 28;

/// The unflushed ranges of one map. Alone in its first cache line.
#[repr(align(64))]
pub(crate) struct Unflushed {
    /// Notes; 0 where there is none. [set with the map write-locked, cleared without]
    notes: [AtomicU64; RANGES],
    /// The number of notes; counted before a note is set and after it is cleared.
    count: AtomicU64,
    /// Woken when a note is withdrawn.
    withdrawn: WaitQueue,
}

/// The note of a range. To drop it, after the flush, withdraws it.
pub(crate) struct Note<'a> {
    unflushed: &'a Unflushed,
    index: usize,
}

impl Unflushed {
    pub const fn new() -> Unflushed {
        Unflushed {
            notes: [const { AtomicU64::new(0) }; RANGES],
            count: AtomicU64::new(0),
            withdrawn: WaitQueue::new(),
        }
    }

    /// Notes a range of whole pages. The map is write-locked. `None`, if there is no room: the
    /// caller flushes before it unlocks the map.
    pub fn note(&self, range: VirtRange) -> Option<Note<'_>> {
        let pages = (range.len() >> PAGE_SHIFT) as u64;
        let is_free = |note: &AtomicU64| note.load(Ordering::Relaxed) == 0;
        let index = self.notes.iter().position(is_free)?;
        if pages == 0 || pages >> COUNT_BITS != 0 {
            return None;
        }
        let first = (range.start.0 >> PAGE_SHIFT) as u64;
        self.count.fetch_add(1, Ordering::Relaxed);
        // Relaxed: readers have locked the map since.
        self.notes[index].store(first << COUNT_BITS | pages, Ordering::Relaxed);
        Some(Note {
            unflushed: self,
            index,
        })
    }

    /// Returns an unflushed range that overlaps `range`. The map is locked.
    #[inline]
    pub fn overlapping(&self, range: VirtRange) -> Option<VirtRange> {
        // Acquire: the flush comes before what is done with a range that is not noted any more.
        match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => self.find(range),
        }
    }

    #[cold]
    #[inline(never)]
    fn find(&self, range: VirtRange) -> Option<VirtRange> {
        if Mistake::UnflushedReused.is_made() {
            return None;
        }
        // Acquire: as for the count.
        let notes = self.notes.iter().map(|note| note.load(Ordering::Acquire));
        let mut ranges = notes.filter(|&note| note != 0).map(range_of);
        ranges.find(|it| !it.intersect(range).is_empty())
    }

    /// Waits until no part of `range` is unflushed. The map is locked.
    #[inline]
    pub fn wait_for(&self, range: VirtRange) {
        while let Some(unflushed) = self.overlapping(range) {
            self.wait(unflushed);
        }
    }

    /// Waits until nothing is unflushed. The map is locked.
    #[inline]
    pub fn wait_for_all(&self) {
        self.wait_for(VirtRange::new(VirtAddr(0), VirtAddr(usize::MAX)));
    }

    #[cold]
    fn wait(&self, range: VirtRange) {
        let is_gone = || self.overlapping(range).is_none().then_some(());
        self.withdrawn.wait_soundly(is_gone);
    }
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        // Release: after the flush.
        self.unflushed.notes[self.index].store(0, Ordering::Release);
        self.unflushed.count.fetch_sub(1, Ordering::Release);
        self.unflushed.withdrawn.wake_all();
    }
}

fn range_of(note: u64) -> VirtRange {
    let start = VirtAddr(((note >> COUNT_BITS) as usize) << PAGE_SHIFT);
    let pages = note as usize & ((1 << COUNT_BITS) - 1);
    VirtRange::new(start, start + (pages << PAGE_SHIFT))
}
