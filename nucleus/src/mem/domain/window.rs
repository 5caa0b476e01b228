//! A window: 512 addresses in a row, 2 MiB, for the requests of one slot of a queue, one after the
//! other.
//!
//! ```text
//!   released        done            next
//!   --- free ---|--- stale ---|--- in use ---|--- free ---
//! ```
//! Addresses are used in order, around the table of level 1 that maps them. Those of a request are
//! *in use* until it is done; *stale* until units have forgotten them: their entries are no longer
//! present, but name their frames still, and [hold](crate::frame::hold) them; then free again. So
//! no search, no list and no memory is needed on either side, and a request that takes long keeps
//! no other slot from going on, as it would if all requests shared one ring of addresses.
//!
//! Only the queue that has the slot moves `next` and `done`, with its lock held; only the holder of
//! the domain's lock moves `released`. Each reads what the other moves.

use core::sync::atomic::{AtomicU32, Ordering};

use super::tables::{ENTRIES, Table};
use crate::hw::iommu::Entry;
use crate::{Frame, frame};

/// See the head of the file.
pub(crate) struct Window {
    /// The first page.
    first: u64,
    table: Table,
    next: AtomicU32,
    done: AtomicU32,
    released: AtomicU32,
}

/// Pages of a window.
pub(crate) const PAGES: usize = ENTRIES as usize;

impl Window {
    pub(super) fn new(first: u64, table: Table) -> Window {
        Window {
            first,
            table,
            next: AtomicU32::new(0),
            done: AtomicU32::new(0),
            released: AtomicU32::new(0),
        }
    }

    /// Whether no address of it was ever used.
    pub(super) fn is_unused(&self) -> bool {
        self.next.load(Ordering::Relaxed) == 0
    }

    /// Whether there are addresses for so many pages.
    #[inline]
    pub(crate) fn has_room(&self, pages: usize) -> bool {
        // Acquire: the entries were cleared before.
        let released = self.released.load(Ordering::Acquire);
        let used = self.next.load(Ordering::Relaxed).wrapping_sub(released);
        used as usize + pages <= PAGES
    }

    /// Maps a frame at the next address, for which there is [room](Window::has_room). Returns the
    /// page.
    #[inline]
    pub(crate) fn map(&self, frame: &Frame, reads: bool, writes: bool) -> u64 {
        let next = self.next.load(Ordering::Relaxed);
        let index = u64::from(next) % ENTRIES;
        debug_assert_eq!(self.table.get(index), Entry::ABSENT);
        frame::hold(frame);
        let at = frame::record::address(frame.index());
        self.table.set(index, Entry::page(at, reads, writes));
        self.next.store(next.wrapping_add(1), Ordering::Relaxed);
        self.first + index
    }

    /// The addresses in use, as one or two ranges of entries.
    pub(super) fn in_use(&self) -> [core::ops::Range<u64>; 2] {
        let done = self.done.load(Ordering::Relaxed);
        let len = u64::from(self.next.load(Ordering::Relaxed).wrapping_sub(done));
        let start = u64::from(done) % ENTRIES;
        let end = (start + len).min(ENTRIES);
        [start..end, 0..start + len - end]
    }

    /// Lets units see the addresses in use.
    #[inline]
    pub(super) fn tell(&self) {
        for range in self.in_use().into_iter().filter(|it| !it.is_empty()) {
            self.table.tell(range);
        }
    }

    /// The first page of a range of entries.
    pub(super) fn page(&self, index: u64) -> u64 {
        self.first + index
    }

    /// How many addresses are in use.
    #[inline]
    pub(super) fn used(&self) -> usize {
        let done = self.done.load(Ordering::Relaxed);
        self.next.load(Ordering::Relaxed).wrapping_sub(done) as usize
    }

    /// Ends the use of the addresses of the request, which is done: the device gets nothing new by
    /// them.
    #[inline]
    pub(super) fn end(&self) {
        for range in self.in_use() {
            for index in range.clone() {
                self.table.set(index, self.table.get(index).ended());
            }
            if !range.is_empty() {
                self.table.tell(range);
            }
        }
        // Release: a flush that sees this comes after the entries were cleared.
        self.done
            .store(self.next.load(Ordering::Relaxed), Ordering::Release);
    }

    /// How many entries are stale.
    pub(super) fn stale(&self) -> u32 {
        // Acquire: pairs with `end`.
        let done = self.done.load(Ordering::Acquire);
        done.wrapping_sub(self.released.load(Ordering::Relaxed))
    }

    /// Releases the frames of the oldest `count` stale entries, which units have forgotten. [domain
    /// lock]
    pub(super) fn release(&self, count: u32) {
        let released = self.released.load(Ordering::Relaxed);
        for at in 0..count {
            release_entry(self.table, u64::from(released.wrapping_add(at)));
        }
        self.released
            .store(released.wrapping_add(count), Ordering::Release);
    }
}

/// Clears an entry that no unit holds, and releases its frame, if it names one.
pub(super) fn release_entry(table: Table, index: u64) {
    let entry = table.get(index);
    if entry != Entry::ABSENT {
        table.set(index, Entry::ABSENT);
        frame::release_held(entry.address().frame_number() as u32);
    }
}
