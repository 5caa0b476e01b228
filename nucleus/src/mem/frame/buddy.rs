//! Blocks of 2^order frames, aligned to their size, on one free list per place and order. The lists
//! run through the records of the free blocks' first frames.
//!
//! A frame's [`Place`] is inside or outside of the direct map, or among what is set aside for page
//! tables; the frames of a block have the same.

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::directmap::{self, PLACES, Place};
use super::record::{FrameList, NONE, Type, managed, record};
use crate::cpu::percpu::Restart;
use crate::lock::{Rank, SpinLock};

/// The largest block is 2^10 frames, 4 MiB.
pub(crate) const MAX_ORDER: usize = 10;

/// How deep into the reserve an allocation may go. Programs' pages end first, then page tables,
/// then new kernel objects ([`is_scarce`](super::is_scarce)) and heap blocks of several frames, all
/// of which may fail; the rest of the heap goes to the last frame, so that what has begun can end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Depth {
    /// Pages of programs and files.
    Data,
    /// Page tables and stacks.
    Table,
    /// Heap blocks of several frames: one of them could use the reserve up.
    #[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
    Block,
    /// Kernel heap.
    #[cfg_attr(not(any(target_os = "none", test)), allow(dead_code))]
    Heap,
}

struct Buddy {
    zones: [Zone; PLACES],
    /// Frames on their way out of the direct map: they count as free, though no list has them.
    moving: usize,
}

/// The free blocks of one place.
struct Zone {
    /// First block of each order, or [`NONE`].
    lists: [FrameList; MAX_ORDER + 1],
    free: usize,
}

static BUDDY: Restart<SpinLock<Buddy>> = Restart::new(SpinLock::new(Rank::Buddy, Buddy::new()));
/// What [`Buddy::free`] was when the lock was last released, to be read without the lock.
static FREE: AtomicUsize = AtomicUsize::new(0);
/// Frames that are set aside for page tables, which are not free for anything else.
static ASIDE: AtomicUsize = AtomicUsize::new(0);
/// Of the free ones, those outside of the direct map.
static OUTSIDE: AtomicUsize = AtomicUsize::new(0);
static RESERVE: AtomicUsize = AtomicUsize::new(0);
/// How often the kernel's own frames were not had though others were free.
static ONLY_OUTSIDE: AtomicUsize = AtomicUsize::new(0);

/// Starts with nothing free.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn start() {
    // SAFETY: the caller promises to be alone.
    unsafe { BUDDY.set(SpinLock::new(Rank::Buddy, Buddy::new())) };
    FREE.store(0, Ordering::Relaxed);
    OUTSIDE.store(0, Ordering::Relaxed);
    ASIDE.store(0, Ordering::Relaxed);
    RESERVE.store(0, Ordering::Relaxed);
    ONLY_OUTSIDE.store(0, Ordering::Relaxed);
}

/// Sets how many frames programs can't have.
pub(super) fn set_reserve(frames: usize) {
    RESERVE.store(frames, Ordering::Relaxed);
}

/// Free frames, without the few that CPUs keep for themselves. One load.
#[inline]
pub fn available() -> usize {
    FREE.load(Ordering::Relaxed)
}

/// Free frames outside of the direct map.
pub(super) fn outside() -> usize {
    OUTSIDE.load(Ordering::Relaxed)
}

/// Of the [available](available) frames, those that the kernel itself can have.
#[inline]
pub(super) fn available_to_kernel() -> usize {
    match directmap::is_fixed() {
        true => available().saturating_sub(outside()),
        false => available(),
    }
}

/// How often a page table or a stack was not had though frames enough were free: with
/// `directmap=SIZE`, too few of them stood where the kernel reaches them. A waiter for such has to
/// wait for more.
pub fn only_outside() -> usize {
    ONLY_OUTSIDE.load(Ordering::Relaxed)
}

/// Frames that must be left when an allocation of this kind is done.
#[inline]
pub(super) fn reserved(depth: Depth) -> usize {
    let reserve = RESERVE.load(Ordering::Relaxed);
    match depth {
        Depth::Data => reserve,
        Depth::Table => reserve / 4 * 3,
        Depth::Block => scarce_below(),
        Depth::Heap => 0,
    }
}

/// Below this many free frames, memory is scarce.
#[inline]
pub(super) fn scarce_below() -> usize {
    RESERVE.load(Ordering::Relaxed) / 2
}

/// Takes one block. Callers that want several frames can do without.
pub(super) fn take(order: usize, depth: Depth) -> Option<u32> {
    let mut buddy = BUDDY.lock_irq();
    if buddy.free() < reserved(depth) + (1 << order) {
        return None;
    }
    let index = buddy.take(order, depth)?;
    buddy.note();
    Some(index)
}

/// Takes blocks of the direct map, the largest ones, until `to` is full or they have 2^`largest`
/// frames, but no more than half of all there; returns how many blocks. The caller moves them
/// outside, and [gives](give_moved) each back.
pub(super) fn take_direct(to: &mut [(u32, usize)], largest: usize) -> usize {
    let mut guard = BUDDY.lock_irq();
    let buddy = &mut *guard;
    let zone = &mut buddy.zones[Place::Direct as usize];
    let (mut blocks, mut left) = (0, (zone.free / 2).min(1 << largest));
    while blocks < to.len()
        && let Some(fits) = left.checked_ilog2()
    {
        let Some(order) = zone.largest() else { break };
        let order = order.min(fits as usize);
        let Some(index) = zone.take(order) else { break };
        to[blocks] = (index, order);
        blocks += 1;
        left -= 1 << order;
        buddy.moving += 1 << order;
    }
    buddy.note();
    blocks
}

/// Gives a block back that [`take_direct`] took.
pub(super) fn give_moved(index: u32, order: usize) {
    let mut buddy = BUDDY.lock_irq();
    buddy.moving -= 1 << order;
    buddy.give(index, order);
    buddy.note();
}

/// Frames that are set aside for page tables.
pub(super) fn aside() -> usize {
    ASIDE.load(Ordering::Relaxed)
}

/// Takes a frame of those set aside for page tables.
pub(super) fn take_aside() -> Option<u32> {
    if aside() == 0 {
        return None;
    }
    let mut buddy = BUDDY.lock_irq();
    let index = buddy.zones[Place::Tables as usize].take(0)?;
    buddy.note();
    Some(index)
}

/// Takes blocks of at least 2^`least` frames of those set aside, until `to` is full; returns how
/// many. The caller releases them.
pub(super) fn take_blocks_aside(to: &mut [(u32, usize)], least: usize) -> usize {
    if aside() < 1 << least {
        return 0;
    }
    let mut buddy = BUDDY.lock_irq();
    let zone = &mut buddy.zones[Place::Tables as usize];
    let mut blocks = 0;
    while blocks < to.len()
        && let Some(order) = zone.largest().filter(|&order| order >= least)
        && let Some(index) = zone.take(order)
    {
        to[blocks] = (index, order);
        blocks += 1;
    }
    buddy.note();
    blocks
}

/// Takes up to `to.len()` single frames with the lock taken once; returns how many. They come in
/// blocks, of which the smallest are used up first. Out of the reserve comes only one frame: the
/// others serve the next request on this CPU.
pub(super) fn take_batch(to: &mut [u32], depth: Depth) -> usize {
    let mut buddy = BUDDY.lock_irq();
    let mut n = 0;
    while n < to.len() {
        let spare = buddy.free_for(depth).saturating_sub(reserved(Depth::Data));
        let most = match n == 0 && buddy.free() > reserved(depth) {
            true => spare.max(1),
            false => spare,
        };
        let Some(order) = most.min(to.len() - n).checked_ilog2() else {
            break;
        };
        let Some((first, order)) = buddy.take_smallest(order as usize, depth) else {
            if n == 0 && directmap::is_fixed() {
                ONLY_OUTSIDE.fetch_add(1, Ordering::Relaxed);
            }
            break;
        };
        for (to, index) in to[n..].iter_mut().zip(first..first + (1 << order)) {
            *to = index;
        }
        n += 1 << order;
    }
    buddy.note();
    n
}

/// Gives a block back. Its frames are of type `Free`.
pub(super) fn give(index: u32, order: usize) {
    let mut buddy = BUDDY.lock_irq();
    buddy.give(index, order);
    buddy.note();
}

/// Gives single frames back with the lock taken once. Neighbours that come one after the other,
/// upwards or downwards, go as blocks.
pub(super) fn give_batch(frames: impl Iterator<Item = u32>) {
    let mut buddy = BUDDY.lock_irq();
    let mut run = 0..0;
    for index in frames {
        if index + 1 == run.start {
            run.start = index;
        } else if index == run.end {
            run.end = index + 1;
        } else {
            buddy.give_run(run);
            run = index..index + 1;
        }
    }
    buddy.give_run(run);
    buddy.note();
}

/// Gives back any run of frames, as the largest aligned blocks it consists of.
pub(super) fn give_run(frames: Range<u32>) {
    let mut buddy = BUDDY.lock_irq();
    buddy.give_run(frames);
    buddy.note();
}

impl Buddy {
    const fn new() -> Buddy {
        Buddy {
            zones: [const {
                Zone {
                    lists: [FrameList::EMPTY; MAX_ORDER + 1],
                    free: 0,
                }
            }; PLACES],
            moving: 0,
        }
    }

    fn free(&self) -> usize {
        let free = |place: Place| self.zones[place as usize].free;
        free(Place::Direct) + free(Place::Outside) + self.moving
    }

    /// Of the free frames, those that are for this use.
    #[inline]
    fn free_for(&self, depth: Depth) -> usize {
        match depth != Depth::Data && directmap::is_fixed() {
            true => self.zones[Place::Direct as usize].free,
            false => self.free(),
        }
    }

    /// Publishes the counts that are read without the lock.
    fn note(&self) {
        FREE.store(self.free(), Ordering::Relaxed);
        let outside = self.zones[Place::Outside as usize].free;
        OUTSIDE.store(outside, Ordering::Relaxed);
        let aside = self.zones[Place::Tables as usize].free;
        ASIDE.store(aside, Ordering::Relaxed);
    }

    /// Takes a block of a place that is right for this use; brings one into the direct map if
    /// there is none.
    fn take(&mut self, order: usize, depth: Depth) -> Option<u32> {
        let zone = |place: Place| {
            let fits = self.most(place, order, depth) == Some(order);
            fits.then(|| self.zones[place as usize].take(order))?
        };
        let found = directmap::places(depth).iter().copied().find_map(zone);
        found.or_else(|| {
            let index = self.outsider(depth)?.take(order)?;
            directmap::show(index, order);
            Some(index)
        })
    }

    /// As [`take`](Buddy::take), 2^`most` frames of the smallest block that there is, or all of it
    /// if it has no more. Returns the first and the order.
    fn take_smallest(&mut self, most: usize, depth: Depth) -> Option<(u32, usize)> {
        let zone = |place: Place| {
            let most = self.most(place, most, depth)?;
            self.zones[place as usize].take_smallest(most)
        };
        let found = directmap::places(depth).iter().copied().find_map(zone);
        found.or_else(|| {
            let (index, order) = self.outsider(depth)?.take_smallest(most)?;
            directmap::show(index, order);
            Some((index, order))
        })
    }

    /// The largest order up to `most` of which a block of this place leaves what is in reserve for
    /// the kernel, where nothing else can be brought into the direct map.
    #[inline]
    fn most(&self, place: Place, most: usize, depth: Depth) -> Option<usize> {
        if place == Place::Outside || !directmap::is_fixed() {
            return Some(most);
        }
        let spare = self.zones[place as usize]
            .free
            .saturating_sub(reserved(depth));
        Some(most.min(spare.checked_ilog2()? as usize))
    }

    /// The blocks that may be brought into the direct map for this use.
    fn outsider(&mut self, depth: Depth) -> Option<&mut Zone> {
        directmap::may_show(depth).then_some(&mut self.zones[Place::Outside as usize])
    }

    #[inline(always)]
    fn give_run(&mut self, run: Range<u32>) {
        let mut index = run.start;
        while index < run.end {
            let aligned = index.trailing_zeros() as usize;
            let fits = (run.end - index).ilog2() as usize;
            let most = aligned.min(fits).min(MAX_ORDER);
            let order = directmap::order_in_place(index, most);
            self.give(index, order);
            index += 1 << order;
        }
    }

    /// Gives a block back, all frames of which have the first one's place.
    #[inline(always)]
    fn give(&mut self, index: u32, order: usize) {
        debug_assert_eq!(record(index).kind(), Type::Free);
        let place = Place::of(index);
        self.zones[place as usize].give(place, index, order);
    }
}

impl Zone {
    /// The order of the largest block.
    fn largest(&self) -> Option<usize> {
        (0..=MAX_ORDER).rev().find(|&o| self.lists[o].first != NONE)
    }

    fn take(&mut self, order: usize) -> Option<u32> {
        let found = (order..=MAX_ORDER).find(|&o| self.lists[o].first != NONE)?;
        let index = self.lists[found].first;
        self.unlink(index, found);
        // Give back the upper halves.
        for o in (order..found).rev() {
            self.link(index + (1 << o), o);
        }
        self.free -= 1 << order;
        Some(index)
    }

    fn take_smallest(&mut self, most: usize) -> Option<(u32, usize)> {
        let smallest = (0..=MAX_ORDER).find(|&o| self.lists[o].first != NONE)?;
        let order = smallest.min(most);
        Some((self.take(order)?, order))
    }

    #[inline(always)]
    fn give(&mut self, place: Place, mut index: u32, mut order: usize) {
        debug_assert!(
            !(0..=MAX_ORDER).any(|o| record(index).is_free_block(o, place)),
            "frame {index:#x} freed twice"
        );
        self.free += 1 << order;
        while order < MAX_ORDER {
            let other = index ^ (1 << order);
            let is_free = |it: u32| record(it).is_free_block(order, place);
            if !managed().contains(&other) || !is_free(other) {
                break;
            }
            self.unlink(other, order);
            index &= !(1 << order);
            order += 1;
        }
        self.link(index, order);
    }

    fn link(&mut self, index: u32, order: usize) {
        record(index).set_free_block(Some(order));
        self.lists[order].link(index);
    }

    fn unlink(&mut self, index: u32, order: usize) {
        self.lists[order].unlink(index);
        record(index).set_free_block(None);
    }
}
