//! A window: 512 addresses in a row, 2 MiB, for the requests of one slot of a queue, one after the
//! other.
//!
//! ```text
//!   released        done            next
//!   --- free ---|--- stale ---|--- in use ---|--- free ---
//! ```
//! Addresses are used in order, around the table of level 1 that maps them. Those of a request are
//! *in use* until it is done; *stale* until they are invalidated: their entries are no longer
//! present, but name their frames still, and [hold](crate::frame::hold) them; then free again. So
//! no search, no list and no memory is needed on either side, and a request that takes long keeps
//! no other slot from going on, as it would if all requests shared one ring of addresses.
//!
//! The pages of a block are in a row, so a device finds it in one piece. Its first entry
//! counts for all of them; they are never parted by the end of the table.
//!
//! Only the queue that has the slot moves `next` and `done`, with its lock held; only the holder of
//! the domain's lock moves `released`. Each reads the other's.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::tables::{ENTRIES, Table};
use crate::hw::iommu::Entry;
use crate::mem::mistake::Mistake;
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
        used as usize + pages <= PAGES || Mistake::AddressReusedEarly.is_made()
    }

    /// Maps these at the next addresses, each all of a frame or block, up to the first of which
    /// `frame` gives none or for which the table ends: a block is not parted. There is
    /// [room](Window::has_room) for all. Units see them from now on. Returns the first page, and
    /// how many pages and parts were mapped.
    #[inline]
    pub(crate) fn map<T>(
        &self,
        parts: &[T],
        frame: impl Fn(&T) -> Option<&Frame>,
        reads: bool,
        writes: bool,
    ) -> (u64, usize, usize) {
        let next = self.next.load(Ordering::Relaxed);
        let index = u64::from(next) % ENTRIES;
        let words = self.table.words(index..ENTRIES);
        let (mut pages, mut count) = (0, 0);
        for part in parts {
            let Some(frame) = frame(part) else { break };
            let all = frame.frames();
            let Some(words) = words.get(pages..pages + all) else {
                break;
            };
            put(words, frame, 0, reads, writes);
            pages += all;
            count += 1;
        }
        if pages > 0 {
            self.table.sync(index..index + pages as u64);
            self.next
                .store(next.wrapping_add(pages as u32), Ordering::Relaxed);
        }
        (self.first + index, pages, count)
    }

    /// Maps pages of a frame or block in a row, from number `place` in it on; returns the first.
    /// Addresses before the end of the table for which these are too many stay empty.
    pub(crate) fn map_pages(
        &self,
        frame: &Frame,
        place: u32,
        pages: usize,
        (reads, writes): (bool, bool),
    ) -> u64 {
        let mut next = self.next.load(Ordering::Relaxed);
        let left = ENTRIES as u32 - next % ENTRIES as u32;
        if pages > left as usize {
            next = next.wrapping_add(left);
        }
        let index = u64::from(next) % ENTRIES;
        let entries = index..index + pages as u64;
        put(
            self.table.words(entries.clone()),
            frame,
            place,
            reads,
            writes,
        );
        self.table.sync(entries);
        self.next
            .store(next.wrapping_add(pages as u32), Ordering::Relaxed);
        self.first + index
    }

    /// The addresses in use, as one or two ranges of entries.
    pub(super) fn in_use(&self) -> [Range<u64>; 2] {
        let done = self.done.load(Ordering::Relaxed);
        around(done, self.next.load(Ordering::Relaxed).wrapping_sub(done))
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
    /// them. Returns how many pages they mapped.
    #[inline]
    pub(super) fn end(&self) -> usize {
        let mut pages = 0;
        for range in self.in_use() {
            if range.is_empty() {
                continue;
            }
            for word in self.table.words(range.clone()) {
                // Only the holder of the slot writes an entry that is in use.
                let entry = Entry(word.load(Ordering::Relaxed));
                pages += usize::from(entry.is_present());
                if !Mistake::EntryStays.is_made() {
                    word.store(entry.ended().0, Ordering::Release);
                }
            }
            self.table.sync(range);
        }
        // Release: a flush that sees this comes after the entries were cleared.
        self.done
            .store(self.next.load(Ordering::Relaxed), Ordering::Release);
        pages
    }

    /// How many entries are stale.
    pub(super) fn stale(&self) -> u32 {
        // Acquire: pairs with `end`.
        let done = self.done.load(Ordering::Acquire);
        done.wrapping_sub(self.released.load(Ordering::Relaxed))
    }

    /// Releases the frames of the oldest `count` stale entries, which were invalidated. [domain
    /// lock]
    pub(super) fn release(&self, count: u32) {
        let released = self.released.load(Ordering::Relaxed);
        for range in around(released, count) {
            for word in self.table.words(range) {
                let entry = Entry(word.load(Ordering::Relaxed));
                word.store(Entry::ABSENT.0, Ordering::Release);
                release_held(entry);
            }
        }
        self.released
            .store(released.wrapping_add(count), Ordering::Release);
    }
}

/// Fills entries with pages of a frame or block in a row, and holds it for them.
#[inline]
fn put(words: &[AtomicU64], frame: &Frame, place: u32, reads: bool, writes: bool) {
    let writes = writes || Mistake::ReadOnlyIgnored.is_made();
    frame::hold(frame, reads);
    let first = frame.index() + place;
    for (further, word) in (0..).zip(words) {
        debug_assert!(
            word.load(Ordering::Relaxed) == Entry::ABSENT.0
                || Mistake::AddressReusedEarly.is_made()
        );
        let at = frame::record::address(first + further);
        let entry = Entry::page(at, reads, writes).in_block(place + further, further > 0);
        word.store(entry.0, Ordering::Release);
    }
}

/// Releases the frame or block that an entry counts for, of which no unit holds anything.
#[inline]
pub(super) fn release_held(entry: Entry) {
    // Where a block did not fit before the end of the table, entries were not used.
    if entry != Entry::ABSENT && !entry.is_further() {
        frame::release_held(entry.address().frame_number() as u32 - entry.place());
    }
}

/// The entries of `count` addresses from number `first` on, as one or two ranges.
#[inline]
fn around(first: u32, count: u32) -> [Range<u64>; 2] {
    let (start, count) = (u64::from(first) % ENTRIES, u64::from(count));
    let end = (start + count).min(ENTRIES);
    [start..end, 0..start + count - end]
}
