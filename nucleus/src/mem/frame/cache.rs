//! Each CPU's own free frames.
//!
//! A single frame is taken and given without a lock and without an atomic operation; every
//! [`BATCH`]th time the buddy allocator is asked, for a batch.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::buddy::{self, Depth};
use super::directmap::{self, Place};
use super::record::NONE;
use super::targets;
use crate::cpu::percpu::PerCpu;
use crate::hw::machine;

/// Frames a CPU keeps at most: 256 KiB, and little against the time to fill them once. By
/// instructions, 32 makes `memory-calls/touch-1MiB` 1.3% worse. 128 makes it 1.4% better and
/// `touch-64MiB` 9.2% worse: half of that exceeds the 32 frames of a chunk of the VM system, which
/// then go back one by one instead of as a run ([`give_run`]).
const FRAMES: usize = 64;
/// Frames that come from the buddy allocator at once: half of them, so that neither a run of
/// allocations nor one of frees asks at each step.
const BATCH: usize = FRAMES / 2;
/// Frames that go back at once. Fewer than come: with as many, a load that takes and gives back
/// some 40 in turns asks twice in each turn for ever, if it happens to begin with 33 to 40 here.
/// By instructions, 16 makes `memory-calls/touch-1MiB` 1.3% worse.
const GIVEN: usize = FRAMES / 8 * 3;

/// Numbers of frames; only the CPU itself changes it, any CPU may look at `len`.
pub(super) struct Stack<const N: usize> {
    len: AtomicU32,
    frames: [AtomicU32; N],
}

impl<const N: usize> Stack<N> {
    pub(super) const fn new() -> Stack<N> {
        Stack {
            len: AtomicU32::new(0),
            frames: [const { AtomicU32::new(0) }; N],
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Forgets all of them, before the machine runs.
    pub(super) fn clear(&self) {
        self.len.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<u32> {
        let len = self.len().checked_sub(1)?;
        let index = self.frames[len].load(Ordering::Relaxed);
        self.len.store(len as u32, Ordering::Relaxed);
        Some(index)
    }

    /// The caller has looked that there is room.
    #[inline]
    pub(super) fn push(&self, index: u32) {
        let len = self.len();
        self.frames[len].store(index, Ordering::Relaxed);
        self.len.store(len as u32 + 1, Ordering::Relaxed);
    }
}

struct Cache {
    /// Those in the direct map, and those outside.
    frames: Stack<FRAMES>,
    outside: Stack<FRAMES>,
}

impl Cache {
    /// Those of a place.
    #[inline]
    fn stack(&self, place: Place) -> &Stack<FRAMES> {
        match place {
            Place::Outside => &self.outside,
            _ => &self.frames,
        }
    }

    fn stacks(&self) -> [&Stack<FRAMES>; 2] {
        [&self.frames, &self.outside]
    }
}

static CACHES: PerCpu<Cache> = PerCpu::new(
    [const {
        Cache {
            frames: Stack::new(),
            outside: Stack::new(),
        }
    }; machine::MAX_CPUS],
);

/// How many of its [`FRAMES`] a CPU uses: fewer in a small machine, where the frames that other
/// CPUs keep are missed.
static CAPACITY: AtomicUsize = AtomicUsize::new(FRAMES);

/// Starts with nothing kept.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn start(managed: usize) {
    CACHES.reset();
    for cache in CACHES.iter() {
        for frames in cache.stacks() {
            frames.clear();
        }
    }
    set_shares(managed);
}

/// Returns the number of CPUs among which kept frames are divided: at least 16, since larger shares
/// gain nothing.
pub(super) fn sharing_cpus() -> usize {
    machine::cpu_count().max(16)
}

/// Lets each CPU keep so many that all of them together have at most a 64th of the memory.
pub(super) fn set_shares(managed: usize) {
    let capacity = managed / 64 / sharing_cpus();
    CAPACITY.store(capacity.clamp(2, FRAMES), Ordering::Relaxed);
}

/// Takes one frame, of type `Free`.
#[inline]
pub(super) fn take(depth: Depth) -> Option<u32> {
    CACHES.with(|cache| {
        let Some(cache) = cache else {
            return buddy::take(0, depth);
        };
        let taken = match directmap::first_place(depth) {
            Place::Outside => pop_outside(cache),
            _ => cache.frames.pop(),
        };
        taken.or_else(|| refill(cache, depth))
    })
}

#[cold]
fn refill(cache: &Cache, depth: Depth) -> Option<u32> {
    if let [_, second] = directmap::places(depth)
        && let Some(index) = cache.stack(*second).pop()
    {
        return Some(index);
    }
    let mut batch = [NONE; BATCH];
    let want = BATCH.min(CAPACITY.load(Ordering::Relaxed));
    let n = buddy::take_batch(&mut batch[..want], depth);
    if depth == Depth::Data {
        targets::look();
    }
    let (&first, rest) = batch[..n].split_first()?;
    // Those that were taken together may be of both places only where there are both.
    let place = Place::of_data(first);
    for &index in rest.iter().rev() {
        let place = directmap::if_mixed(|| Place::of_data(index)).unwrap_or(place);
        cache.stack(place).push(index);
    }
    Some(first)
}

/// Gives one frame of type `Free` back.
#[inline]
pub(super) fn give(index: u32) {
    CACHES.with(|cache| {
        let Some(cache) = cache else {
            return buddy::give(index, 0);
        };
        match directmap::is_direct(index) {
            true => give_to(&cache.frames, index),
            false => give_outside(cache, index),
        }
    });
}

#[inline]
fn give_to(frames: &Stack<FRAMES>, index: u32) {
    let capacity = CAPACITY.load(Ordering::Relaxed);
    if frames.len() >= capacity {
        let n = GIVEN.min(capacity);
        buddy::give_batch((0..n).filter_map(|_| frames.pop()));
    }
    frames.push(index);
}

// Out of line, so that the usual machine's way is short.

#[cold]
#[inline(never)]
fn give_outside(cache: &Cache, index: u32) {
    give_to(&cache.outside, index);
}

#[cold]
#[inline(never)]
fn pop_outside(cache: &Cache) -> Option<u32> {
    cache.outside.pop()
}

/// Gives neighbouring frames of type `Free` back: to the buddy allocator if they are as many as it
/// would get at once anyway.
pub(super) fn give_run(frames: Range<u32>) {
    match frames.len() >= BATCH {
        true => buddy::give_run(frames),
        false => frames.for_each(give),
    }
}

/// Gives the frames of a block back: as a whole, so that there is such a block again.
pub(super) fn give_block(frames: Range<u32>) {
    buddy::give_run(frames);
}

/// Frames that CPUs keep.
pub(super) fn kept() -> usize {
    let frames = CACHES.iter().flat_map(Cache::stacks);
    frames.map(Stack::len).sum()
}

/// Memory is short: gives the buddy allocator what this CPU keeps. Returns whether that was
/// anything.
#[cold]
pub(super) fn drain() -> bool {
    let mut any = false;
    CACHES.with(|cache| {
        if let Some(cache) = cache {
            for frames in cache.stacks() {
                any |= frames.len() > 0;
                buddy::give_batch(core::iter::from_fn(|| frames.pop()));
            }
        }
    });
    any
}
