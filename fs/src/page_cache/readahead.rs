//! Readahead: how much is read beyond a miss.
//!
//! A file has a few *streams*, each the last window of one sequential reader. A miss that continues
//! a stream doubles its window, up to a limit; when the reader comes to the window's *mark* the
//! next window is read asynchronously, so that the reader never waits again. Other misses begin a
//! stream: at the file's start, or right after the last read, with a small window; elsewhere with
//! the missed pages only, so that random reads cost no page too many. A stream that ends with most
//! of its last window unread makes the next ones begin smaller.
//!
//! Mappings use the same streams. A fault that misses reads the cluster around its page; the mark
//! is at the last quarter of the cluster, where a program that goes through its mapping in order
//! arrives and one that jumps about mostly does not.

use core::{
    ops::Range,
    sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use crate::counters::Counter;
use nucleus::sync::{Rank, SpinLock};

/// How programs say they are going to read a file (`posix_fadvise`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Access {
    /// Windows grow and shrink with the observed pattern.
    Normal = 0,
    /// They grow twice as far.
    Sequential = 1,
    /// Only the requested pages are read.
    Random = 2,
    /// As `Normal`, but pages are used once: they are the first to be evicted.
    Once = 3,
}

/// Streams of a file.
const STREAMS: usize = 4;
/// Pages of the first window: 16 KiB.
const FIRST: u64 = 4;
/// Pages of a window at most: 512 KiB, which a disk transfers in more than a request's latency.
pub(super) const MOST: u64 = 128;
/// No mark.
const NOWHERE: u64 = u64::MAX;
/// Misses of faults that continued nothing, after which faults read no neighbours.
const LOST: u32 = 16;

/// The window that was read last for one reader.
#[derive(Clone, Copy)]
struct Stream {
    /// Its pages; empty if there is no such stream.
    start: u64,
    end: u64,
    /// When it was used last.
    used: u32,
}

struct StreamTable {
    streams: [Stream; STREAMS],
    clock: u32,
}

/// The access pattern of a file's readers.
pub struct Streams {
    table: SpinLock<StreamTable>,
    /// The page at which each stream's next window is read; [`NOWHERE`] for none.
    marks: [AtomicU64; STREAMS],
    /// The page after the last one that was read.
    last: AtomicU64,
    /// The size of first windows, halved for readers that stop.
    first: AtomicU8,
    access: AtomicU8,
    /// Faults that missed here and there, less those that went on.
    lost: AtomicU32,
}

impl Streams {
    pub(crate) const fn new() -> Streams {
        let none = Stream {
            start: 0,
            end: 0,
            used: 0,
        };
        Streams {
            table: SpinLock::new(
                Rank::Leaf,
                StreamTable {
                    streams: [none; STREAMS],
                    clock: 0,
                },
            ),
            marks: [const { AtomicU64::new(NOWHERE) }; STREAMS],
            last: AtomicU64::new(0),
            first: AtomicU8::new(FIRST as u8),
            access: AtomicU8::new(Access::Normal as u8),
            lost: AtomicU32::new(0),
        }
    }

    pub(super) fn set_access(&self, access: Access) {
        self.access.store(access as u8, Ordering::Relaxed);
        if access == Access::Random {
            for mark in &self.marks {
                mark.store(NOWHERE, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn is(&self, access: Access) -> bool {
        self.access.load(Ordering::Relaxed) == access as u8
    }

    /// Pages of a window at most.
    fn most(&self) -> u64 {
        match self.is(Access::Sequential) {
            true => 2 * MOST,
            false => MOST,
        }
    }

    /// Returns the window to read ahead now if `pages`, which are about to be read or were just
    /// mapped, hold a mark; the file has `size` pages.
    #[inline]
    pub(crate) fn touched(&self, pages: &Range<u64>, size: u64) -> Option<Range<u64>> {
        let holds = |mark: &AtomicU64| pages.contains(&mark.load(Ordering::Relaxed));
        let slot = self.marks.iter().position(holds)?;
        self.advance(slot, size)
    }

    /// The reader of this stream has come to its mark: its next window.
    #[cold]
    fn advance(&self, slot: usize, pages: u64) -> Option<Range<u64>> {
        let most = self.most();
        let mut table = self.table.lock();
        if self.marks[slot].load(Ordering::Relaxed) == NOWHERE {
            return None;
        }
        table.clock = table.clock.wrapping_add(1);
        let clock = table.clock;
        let stream = &mut table.streams[slot];
        let size = stream.end - stream.start;
        Counter::file_read_ahead_hits.add(size);
        self.first.store(FIRST as u8, Ordering::Relaxed);
        self.lost.store(0, Ordering::Relaxed);
        let next = (size * 2).clamp(FIRST, most);
        let (start, end) = (stream.end, stream.end.saturating_add(next).min(pages));
        if start >= end {
            // All of the file is read.
            self.marks[slot].store(NOWHERE, Ordering::Relaxed);
            return None;
        }
        *stream = Stream {
            start,
            end,
            used: clock,
        };
        // The mark is the start of the window that is read now.
        self.marks[slot].store(start, Ordering::Relaxed);
        Some(start..end)
    }

    /// Returns the pages to read for a miss at `wanted.start` by a call that reads `wanted`, in a
    /// file of `pages` pages.
    pub(crate) fn missed(&self, wanted: Range<u64>, pages: u64) -> Range<u64> {
        let wanted = wanted.start..wanted.end.max(wanted.start + 1);
        if self.is(Access::Random) {
            return wanted;
        }
        let most = self.most();
        let (at, count) = (wanted.start, wanted.end - wanted.start);
        let goes_on = at == 0 || {
            let last = self.last.load(Ordering::Relaxed);
            at == last || at + 1 == last
        };
        let mut table = self.table.lock();
        table.clock = table.clock.wrapping_add(1);
        let clock = table.clock;
        let found = table
            .streams
            .iter()
            .position(|it| it.start < it.end && (at == it.end || (it.start..it.end).contains(&at)));
        let (slot, size) = match found {
            Some(slot) => {
                let stream = table.streams[slot];
                let before = stream.end - stream.start;
                match at == stream.end {
                    // The last window was used up.
                    true => (slot, (before * 2).clamp(FIRST, most)),
                    // It was read and evicted: memory is short. Or the mark's window has not
                    // arrived yet.
                    false => (slot, (before / 2).max(1)),
                }
            }
            None => {
                let slot = self.free_slot(&table);
                let first = u64::from(self.first.load(Ordering::Relaxed));
                (slot, if goes_on { first } else { 0 })
            }
        };
        let end = (at + size.max(count)).min(pages.max(wanted.end));
        table.streams[slot] = Stream {
            start: at,
            end,
            used: clock,
        };
        // Read on when the requested pages are used up, if access is sequential.
        let mark = match found.is_some() || goes_on {
            true if end < pages => (at + count).min(end - 1),
            _ => NOWHERE,
        };
        self.marks[slot].store(mark, Ordering::Relaxed);
        at..end
    }

    /// Frees the slot of the stream that was used longest ago, and returns it.
    fn free_slot(&self, table: &StreamTable) -> usize {
        let age = |slot: &usize| match table.streams[*slot] {
            it if it.start < it.end => table.clock.wrapping_sub(it.used),
            _ => u32::MAX,
        };
        let slot = (0..STREAMS).max_by_key(age).unwrap_or(0);
        let stream = table.streams[slot];
        // Its mark is where its reader has not been.
        let mark = self.marks[slot].swap(NOWHERE, Ordering::Relaxed);
        if stream.start < stream.end && (stream.start..stream.end).contains(&mark) {
            let unread = stream.end - mark;
            if unread * 2 > stream.end - stream.start {
                Counter::file_read_ahead_misses.add(unread);
                let first = self.first.load(Ordering::Relaxed);
                self.first.store((first / 2).max(1), Ordering::Relaxed);
            }
        }
        slot
    }

    /// A read call has come to `page`.
    #[inline]
    pub(crate) fn ended(&self, page: u64) {
        if self.last.load(Ordering::Relaxed) != page {
            self.last.store(page, Ordering::Relaxed);
        }
    }

    /// Returns the pages to read for a fault on page `index`, for which the mapping's advice gives
    /// `window`; the file has `pages` pages.
    pub(crate) fn fault_window(&self, index: u64, window: Range<u64>, pages: u64) -> Range<u64> {
        if self.is(Access::Random) || window.end - window.start <= 1 {
            return index..index + 1;
        }
        let slot = {
            let table = self.table.lock();
            let streams = table.streams.iter();
            let mut ends = streams.map(|it| it.start < it.end && it.end == index);
            ends.position(|ends| ends)
        };
        if slot.is_some() {
            self.lost.store(0, Ordering::Relaxed);
            let next = self.missed(index..index + 1, pages);
            return next.start.min(window.start.max(index))..next.end.max(window.end);
        }
        if self.lost.load(Ordering::Relaxed) >= LOST {
            return index..index + 1;
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        let end = window.end.min(pages).max(index + 1);
        let mark = match index {
            // A program that begins with the file's start mostly reads on.
            0 => 1,
            _ => end - (end - window.start) / 4,
        };
        // The next fault after this window continues the stream, if no access comes to the mark.
        let mut table = self.table.lock();
        table.clock = table.clock.wrapping_add(1);
        let clock = table.clock;
        let slot = self.free_slot(&table);
        table.streams[slot] = Stream {
            start: window.start,
            end,
            used: clock,
        };
        if index < mark && end < pages {
            self.marks[slot].store(mark, Ordering::Relaxed);
        }
        window
    }
}
