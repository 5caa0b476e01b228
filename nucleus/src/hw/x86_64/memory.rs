//! The machine's memory as the loader reported it, and what of it is taken before the allocator
//! of frames exists.

use core::ops::Range;

use super::layout::{BOOT_MAPPED, DIRECT_MAP_SIZE};
use crate::hw::Region;
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// Ranges that are kept. Firmware reports a dozen; the kernel splits off a handful.
const MAX_RANGES: usize = 128;
/// Frames below 1 MiB belong to the firmware and to the start of other CPUs.
pub const LOW_FRAMES: u64 = 0x10_0000 >> PAGE_SHIFT;
/// Highest physical address that is used: what the direct map has room for.
const HIGHEST: u64 = DIRECT_MAP_SIZE as u64;

/// Usable memory in frames, sorted, without overlap; built up from an untrusted list.
#[derive(Debug)]
pub struct MemoryMap {
    ranges: [Region; MAX_RANGES],
    count: usize,
    /// Frames handed out one by one before the allocator takes over.
    early: Range<u64>,
    /// The first of them.
    early_start: u64,
}

impl MemoryMap {
    /// Nothing.
    pub const fn new() -> MemoryMap {
        MemoryMap {
            ranges: [Region {
                start: 0,
                end: 0,
                free: false,
                persistent: false,
            }; MAX_RANGES],
            count: 0,
            early: 0..0,
            early_start: 0,
        }
    }

    /// Adds usable memory in bytes, rounded inwards to frames. What overlaps an earlier range, has
    /// no end in the address space or no room in the list is left out.
    pub fn add(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes).min(HIGHEST) >> PAGE_SHIFT;
        let mut start = start.min(HIGHEST).div_ceil(PAGE_SIZE as u64);
        let mut at = 0;
        while start < end && self.count < MAX_RANGES {
            // Fill the gaps between what is there, in order.
            let next = self.ranges[..self.count].get(at).copied();
            let gap_end = next.map_or(end, |r| r.start.min(end));
            if start < gap_end {
                self.insert(
                    at,
                    Region {
                        start,
                        end: gap_end,
                        free: true,
                        persistent: false,
                    },
                );
                at += 1;
            }
            let Some(next) = next else { break };
            start = start.max(next.end);
            at += 1;
        }
    }

    /// Adds persistent memory in bytes, whole frames of it, unless any of them is in the map
    /// already or beyond what the direct map has room for. Returns its frames if it did.
    pub fn add_persistent(&mut self, start: u64, bytes: u64) -> Option<Range<u64>> {
        let page = PAGE_SIZE as u64;
        let end = start.checked_add(bytes).filter(|&end| end <= HIGHEST)?;
        let (first, last) = (start.div_ceil(page), end / page);
        let is_apart = |range: &Region| range.end <= first || last <= range.start;
        let fits = first < last && first >= LOW_FRAMES && self.count < MAX_RANGES;
        if !fits || !self.ranges().iter().all(is_apart) {
            return None;
        }
        let at = self.ranges().iter().filter(|it| it.end <= first).count();
        self.insert(
            at,
            Region {
                start: first,
                end: last,
                free: false,
                persistent: true,
            },
        );
        Some(first..last)
    }

    /// Takes bytes out of the map altogether, rounded outwards: another report says that they are
    /// not memory after all.
    pub fn remove(&mut self, start: u64, bytes: u64) {
        let end = start
            .saturating_add(bytes)
            .min(HIGHEST)
            .div_ceil(PAGE_SIZE as u64);
        self.split(start.min(HIGHEST) >> PAGE_SHIFT, end);
        let start = start >> PAGE_SHIFT;
        let mut kept = 0;
        for i in 0..self.count {
            let range = self.ranges[i];
            if range.end <= start || range.start >= end {
                self.ranges[kept] = range;
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// Marks bytes as in use, rounded outwards.
    pub fn reserve(&mut self, start: u64, bytes: u64) {
        let first = start.min(HIGHEST) >> PAGE_SHIFT;
        let end = start
            .saturating_add(bytes)
            .min(HIGHEST)
            .div_ceil(PAGE_SIZE as u64);
        self.split(first, end);
        for range in &mut self.ranges[..self.count] {
            if range.start < end && range.end > first {
                range.free = false;
            }
        }
    }

    /// Whether all these bytes are usable memory.
    pub fn contains(&self, start: u64, bytes: u64) -> bool {
        let Some(end) = start.checked_add(bytes).filter(|&end| end <= HIGHEST) else {
            return false;
        };
        let end = end.div_ceil(PAGE_SIZE as u64);
        let mut at = start >> PAGE_SHIFT;
        for range in &self.ranges[..self.count] {
            if range.start <= at && at < range.end {
                at = range.end;
            }
        }
        at >= end
    }

    /// All ranges, in order.
    pub fn ranges(&self) -> &[Region] {
        &self.ranges[..self.count]
    }

    /// The ranges for the allocator of frames: those above the first MiB.
    pub fn managed(&mut self) -> &[Region] {
        self.split(LOW_FRAMES, LOW_FRAMES);
        let low = self
            .ranges()
            .iter()
            .filter(|r| r.start < LOW_FRAMES)
            .count();
        &self.ranges[low..self.count]
    }

    /// Sets `frames` frames aside that the boot page tables map, for
    /// [`take_early`](Self::take_early). False if no free range has so many.
    pub fn prepare_early(&mut self, frames: u64) -> bool {
        let limit = BOOT_MAPPED >> PAGE_SHIFT;
        let found = self.ranges().iter().find(|r| {
            r.free && r.start >= LOW_FRAMES && r.end.min(limit).saturating_sub(r.start) >= frames
        });
        let Some(found) = found else { return false };
        let start = found.start;
        self.early = start..start + frames;
        self.early_start = start;
        true
    }

    /// A frame of those set aside. The number set aside covers what the kernel takes.
    pub fn take_early(&mut self) -> u64 {
        self.early
            .next()
            .expect("enough early frames were set aside")
    }

    /// Marks the early frames that were taken as in use; no more are taken.
    /// Returns their addresses.
    pub fn finish_early(&mut self) -> Range<u64> {
        let taken = self.early.start - self.early_start;
        self.reserve(self.early_start << PAGE_SHIFT, taken << PAGE_SHIFT);
        let end = self.early.start << PAGE_SHIFT;
        self.early = 0..0;
        self.early_start << PAGE_SHIFT..end
    }

    /// The addresses of the early frames, those that were taken and the others.
    pub fn early(&self) -> Range<u64> {
        self.early_start << PAGE_SHIFT..self.early.end << PAGE_SHIFT
    }

    fn insert(&mut self, at: usize, range: Region) {
        self.ranges.copy_within(at..self.count, at + 1);
        self.ranges[at] = range;
        self.count += 1;
    }

    /// Makes `start` and `end` borders of ranges.
    fn split(&mut self, start: u64, end: u64) {
        for border in [start, end] {
            let inside = |r: &Region| r.start < border && border < r.end;
            let Some(at) = self.ranges[..self.count].iter().position(inside) else {
                continue;
            };
            let upper = Region {
                start: border,
                ..self.ranges[at]
            };
            self.ranges[at].end = border;
            if self.count < MAX_RANGES {
                self.insert(at + 1, upper);
            }
        }
    }
}
