//! Each CPU's own free frames, and the pools of page tables kept ready.
//!
//! A single frame is taken and given without a lock and without an atomic operation; every
//! [`BATCH`]th time the buddy allocator is asked, for a batch.
//!
//! A *page table kept ready* (`iosup.txt` 5.2, 6.2) is all zero, typed, and flagged `cached`:
//! taking it is neither a type change nor 4 KiB of zeroing, because the CPU that frees a table has
//! already taken its last entry out. A CPU keeps a few of each level; what it has too many of goes
//! to a pool that all CPUs share, and from there to the buddy allocator.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use super::buddy::{self, Depth};
use super::directmap::{self, PLACES, Place};
use super::record::{NONE, Type, record};
use super::targets;
use crate::counters::Counter;
use crate::cpu::percpu::{PerCpu, Restart};
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};

/// Frames a CPU keeps at most: 256 KiB, and little against the time to fill them once. By
/// instructions, 32 makes `memory-calls/touch-1MiB` 1.3% worse. 128 makes it 1.4% better and
/// `touch-64MiB` 9.2% worse: half of that exceeds the 32 frames of a chunk of the VM system, which
/// then go back one by one instead of as a run ([`give_run`]).
const FRAMES: usize = 64;
/// Frames that go to or come from the buddy allocator at once: half of them, so that neither a
/// run of allocations nor one of frees asks at each step.
const BATCH: usize = FRAMES / 2;
/// Page tables of one level that a CPU keeps: a small process has one to four of each.
const TABLES: usize = 8;
/// Page tables of one level in the pool that all share.
const POOL: usize = 32;

/// Numbers of frames; only the CPU itself changes it, any CPU may look at `len`.
struct Stack<const N: usize> {
    len: AtomicU32,
    frames: [AtomicU32; N],
}

impl<const N: usize> Stack<N> {
    const fn new() -> Stack<N> {
        Stack {
            len: AtomicU32::new(0),
            frames: [const { AtomicU32::new(0) }; N],
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    #[inline]
    fn pop(&self) -> Option<u32> {
        let len = self.len().checked_sub(1)?;
        let index = self.frames[len].load(Ordering::Relaxed);
        self.len.store(len as u32, Ordering::Relaxed);
        Some(index)
    }

    /// The caller has looked that there is room.
    #[inline]
    fn push(&self, index: u32) {
        let len = self.len();
        self.frames[len].store(index, Ordering::Relaxed);
        self.len.store(len as u32 + 1, Ordering::Relaxed);
    }
}

struct Cache {
    /// Those in the direct map, and those outside.
    frames: Stack<FRAMES>,
    outside: Stack<FRAMES>,
    tables: [Stack<TABLES>; 4],
}

impl Cache {
    /// Those of a place.
    #[inline]
    fn stack(&self, place: Place) -> &Stack<FRAMES> {
        match place {
            Place::Direct => &self.frames,
            Place::Outside => &self.outside,
        }
    }

    fn stacks(&self) -> [&Stack<FRAMES>; PLACES] {
        [&self.frames, &self.outside]
    }
}

static CACHES: PerCpu<Cache> = PerCpu::new(
    [const {
        Cache {
            frames: Stack::new(),
            outside: Stack::new(),
            tables: [const { Stack::new() }; 4],
        }
    }; machine::MAX_CPUS],
);

/// The pool of one level.
struct Pool {
    len: usize,
    frames: [u32; POOL],
}

/// Empty ones for the four levels.
const fn new_pools() -> [SpinLock<Pool>; 4] {
    [const {
        let empty = Pool {
            len: 0,
            frames: [0; POOL],
        };
        SpinLock::new(Rank::Buddy, empty)
    }; 4]
}

static POOLS: Restart<[SpinLock<Pool>; 4]> = Restart::new(new_pools());
/// Frames in [`POOLS`].
static POOLED: AtomicUsize = AtomicUsize::new(0);
/// Frames of page-table types, those kept ready included.
static TYPED: AtomicUsize = AtomicUsize::new(0);
/// How many of its [`FRAMES`] a CPU uses: fewer in a small machine, where the frames that other
/// CPUs keep are missed.
static CAPACITY: AtomicUsize = AtomicUsize::new(FRAMES);

/// Whether page tables that are given back are kept ready.
static KEEP_TABLES: AtomicBool = AtomicBool::new(true);

/// Keeps page tables that are given back ready from now on, or frees each at once and makes each
/// anew, as kernels did before `iosup.txt` 5.2. For comparison.
pub fn keep_tables(keep: bool) {
    KEEP_TABLES.store(keep, Ordering::Relaxed);
    while !keep && drain_tables() {}
}

/// Tells whether page tables are kept ready.
pub fn keeps_tables() -> bool {
    KEEP_TABLES.load(Ordering::Relaxed)
}

/// Starts with nothing kept.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn start(managed: usize) {
    CACHES.reset();
    for cache in CACHES.iter() {
        for frames in cache.stacks() {
            frames.len.store(0, Ordering::Relaxed);
        }
        for tables in &cache.tables {
            tables.len.store(0, Ordering::Relaxed);
        }
    }
    // SAFETY: the caller promises to be alone.
    unsafe { POOLS.set(new_pools()) };
    POOLED.store(0, Ordering::Relaxed);
    KEEP_TABLES.store(true, Ordering::Relaxed);
    TYPED.store(0, Ordering::Relaxed);
    // At most a 64th of the memory in the hands of all CPUs together.
    let capacity = managed / 64 / machine::MAX_CPUS;
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
            Place::Direct => cache.frames.pop(),
            Place::Outside => pop_outside(cache),
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
    let place = Place::of(first);
    for &index in rest.iter().rev() {
        let place = directmap::if_mixed(|| Place::of(index)).unwrap_or(place);
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
        match Place::of(index) {
            Place::Direct => give_to(&cache.frames, index),
            Place::Outside => give_outside(cache, index),
        }
    });
}

#[inline]
fn give_to(frames: &Stack<FRAMES>, index: u32) {
    let capacity = CAPACITY.load(Ordering::Relaxed);
    if frames.len() >= capacity {
        let n = BATCH.min(capacity);
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

/// Frames that CPUs keep, those in page tables kept ready included.
pub(super) fn kept() -> usize {
    let frames = CACHES.iter().flat_map(Cache::stacks);
    frames.map(Stack::len).sum::<usize>() + ready_tables()
}

/// Frames in page tables kept ready.
fn ready_tables() -> usize {
    let own: usize = CACHES
        .iter()
        .map(|cache| {
            (1..=4)
                .map(|l| cache.tables[l - 1].len() * frames_in(l))
                .sum::<usize>()
        })
        .sum();
    own + POOLED.load(Ordering::Relaxed)
}

/// Frames of page tables in use.
pub(super) fn tables_in_use() -> usize {
    TYPED.load(Ordering::Relaxed).saturating_sub(ready_tables())
}

/// Frames in a page table of this level: a table of level 1 stands beside its reverse links.
const fn frames_in(level: usize) -> usize {
    if level == 1 { 2 } else { 1 }
}

/// log2 of [`frames_in`].
const fn order_of(level: usize) -> usize {
    frames_in(level) - 1
}

/// A page table from the allocator, as opposed to one kept ready, still has to be prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    /// As the last owner gave it back: no entry, and at level 4 the kernel's half in place.
    Ready(u32),
    /// All zero.
    Fresh(u32),
}

impl Table {
    /// The number of its frame.
    pub(crate) fn index(self) -> u32 {
        match self {
            Table::Ready(index) | Table::Fresh(index) => index,
        }
    }
}

/// Takes a page table of `level` 1 to 4. Its record's use count is 0.
pub(crate) fn take_table(level: usize) -> Option<Table> {
    if super::fails() {
        return None;
    }
    let ready = CACHES
        .with(|cache| cache?.tables[level - 1].pop())
        .or_else(|| take_pooled(level));
    if let Some(index) = ready {
        debug_assert!(record(index).is_cached());
        for i in 0..frames_in(level) as u32 {
            record(index + i).set_cached(false);
        }
        Counter::page_tables_allocated.add(frames_in(level) as u64);
        return Some(Table::Ready(index));
    }
    let attempt = || match order_of(level) {
        0 => take(Depth::Table),
        order => buddy::take(order, Depth::Table),
    };
    let index = attempt().or_else(|| super::retry(Depth::Table, attempt))?;
    for i in 0..frames_in(level) as u32 {
        super::check_junk(index + i);
        record(index + i).set_kind(Type::Free, Type::page_table(level));
        record(index + i).in_use.store(0, Ordering::Relaxed);
        record(index + i).clear_use();
    }
    Counter::page_tables_allocated.add(frames_in(level) as u64);
    TYPED.fetch_add(frames_in(level), Ordering::Relaxed);
    super::zero(index);
    Counter::pages_zeroed.add(1);
    Some(Table::Fresh(index))
}

fn take_pooled(level: usize) -> Option<u32> {
    // Looking first costs nothing and the lock is not touched while there is nothing to get.
    if POOLED.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut pool = POOLS[level - 1].lock_irq();
    pool.len = pool.len.checked_sub(1)?;
    POOLED.fetch_sub(frames_in(level), Ordering::Relaxed);
    Some(pool.frames[pool.len])
}

/// Gives a page table back: all its user entries are zero, no TLB and no walker can reach it, and
/// its record's use count is 0.
pub(crate) fn give_table(level: usize, index: u32) {
    debug_assert_eq!(record(index).type_count(), 0);
    debug_assert!(super::is_zero(index, if level == 4 { 256 } else { 512 }));
    Counter::page_tables_freed.add(frames_in(level) as u64);
    machine::frame_freed(super::record::address(index));
    for i in 0..frames_in(level) as u32 {
        record(index + i).set_cached(true);
    }
    if !KEEP_TABLES.load(Ordering::Relaxed) {
        return release_table(level, index);
    }
    let rest = CACHES.with(|cache| {
        let stack = match cache {
            Some(cache) => &cache.tables[level - 1],
            None => return Some(index),
        };
        if stack.len() == TABLES {
            return Some(index);
        }
        stack.push(index);
        None
    });
    if let Some(index) = rest {
        {
            let mut pool = POOLS[level - 1].lock_irq();
            if pool.len < POOL {
                let len = pool.len;
                pool.frames[len] = index;
                pool.len += 1;
                POOLED.fetch_add(frames_in(level), Ordering::Relaxed);
                return;
            }
        }
        release_table(level, index);
    }
}

/// Makes a table kept ready into free frames.
fn release_table(level: usize, index: u32) {
    for i in 0..frames_in(level) as u32 {
        record(index + i).set_kind(Type::page_table(level), Type::Free);
        super::junk(index + i);
    }
    TYPED.fetch_sub(frames_in(level), Ordering::Relaxed);
    buddy::give(index, order_of(level));
}

/// Memory is short: gives the buddy allocator what this CPU and the pools keep. Returns whether
/// that was anything.
#[cold]
pub(super) fn drain() -> bool {
    let mut any = drain_tables();
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

/// Gives the buddy allocator the page tables that this CPU and the pools keep. Returns whether
/// there were any.
#[cold]
fn drain_tables() -> bool {
    let mut any = false;
    for level in 1..=4 {
        while let Some(index) = CACHES
            .with(|cache| cache?.tables[level - 1].pop())
            .or_else(|| take_pooled(level))
        {
            release_table(level, index);
            any = true;
        }
    }
    any
}
