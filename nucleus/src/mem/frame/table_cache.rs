//! The page-table cache (`iosup.txt` 5.2, 6): page tables kept ready, one pool per level.
//!
//! A *table kept ready* is all zero, typed, and flagged `cached`: taking it is neither a type
//! change nor 4 KiB of zeroing, because the CPU that frees a table has already taken its last entry
//! out. A CPU keeps a few of each level, without a lock; behind these is a LIFO pool per level that
//! all CPUs share, linked through the frames' records. Frames that are no table now wait
//! [aside](buddy::aside), flagged `cached` as well.
//!
//! | step | type of the frame | devices' reach |
//! |---|---|---|
//! | set aside, in blocks of [`block_order`] | free | leaves it: one batch |
//! | becomes a table, is pooled, is taken from the pool | page table | as it is |
//! | given back by the pool | free | as it is |
//! | released, in blocks | free | returns: one batch |
//!
//! # When tables are given back
//!
//! *fixed*, the paper's: a level exceeds both thresholds, [`ratio`](Thresholds::ratio) and
//! [`total`](Thresholds::total); then the excess of tables in the pool over tables in use goes.
//!
//! *adaptive*: every [`PERIOD`] the pagedaemon takes away half of the tables that a pool did not
//! need: the least that was in it all the time (as Bonwick's magazines do: the working set decides,
//! not a number that fits one load). So a load that comes back within the period finds its tables,
//! a burst's tables go by halves, and an idle machine returns to [`KEPT`] tables per level. A fixed
//! ratio can do neither: it cuts the pool right when a burst ends, and never later.
//!
//! In both, a pool has at most a 64th of memory, and the pagedaemon drains all when memory is
//! short.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use super::buddy::{self, Depth, MAX_ORDER};
use super::cache::Stack;
use super::device_reach::{self, Cause};
use super::directmap;
use super::record::{FrameList, NONE, Type, address, record, table_bytes};
use super::targets::targets;
use crate::PAGE_SIZE;
use crate::counters::Counter;
use crate::cpu::percpu::{PerCpu, Restart};
use crate::hw::{handlers, machine};
use crate::lock::{Rank, SpinLock};
use crate::mem::mistake::Mistake;

/// Levels of page tables.
pub const LEVELS: usize = 4;
/// Page tables of one level that a CPU keeps: a small process has one to four of each.
const OWN: usize = 8;
/// Tables that a CPU moves to or from a pool at once.
const MOVED: usize = OWN / 2;
/// Tables that a pool gives up with its lock taken once, and blocks that are released together.
const BATCH: usize = 32;
/// Tables of a level that the adaptive policy leaves.
const KEPT: usize = 8;
/// How often the adaptive policy looks.
pub const PERIOD: Duration = Duration::from_secs(10);

/// The tables of one CPU; only the CPU itself changes them.
struct OwnTables {
    stacks: [Stack<OWN>; LEVELS],
    /// Tables taken, and given, so far.
    taken: [AtomicU64; LEVELS],
    given: [AtomicU64; LEVELS],
}

static OWN_TABLES: PerCpu<OwnTables> = PerCpu::new(
    [const {
        OwnTables {
            stacks: [const { Stack::new() }; LEVELS],
            taken: [const { AtomicU64::new(0) }; LEVELS],
            given: [const { AtomicU64::new(0) }; LEVELS],
        }
    }; machine::MAX_CPUS],
);

/// Adds to a number that one CPU changes.
#[inline]
fn add_own(to: &AtomicU64) {
    to.store(to.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The pool of one level.
struct Pool {
    tables: FrameList,
    /// The table that has been here longest, or [`NONE`].
    oldest: u32,
    len: usize,
    /// The smallest `len` since the adaptive policy looked.
    least: usize,
}

impl Pool {
    fn push(&mut self, table: u32) {
        if self.tables.is_empty() {
            self.oldest = table;
        }
        self.tables.link(table);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u32> {
        let table = self.tables.pop()?;
        self.removed(table);
        Some(table)
    }

    fn pop_oldest(&mut self) -> Option<u32> {
        let table = (!self.tables.is_empty()).then_some(self.oldest)?;
        self.oldest = self.tables.before(table);
        self.tables.unlink(table);
        self.removed(table);
        Some(table)
    }

    fn removed(&mut self, table: u32) {
        record(table).clear_use();
        self.len -= 1;
        self.least = self.least.min(self.len);
    }
}

/// A level: its pool, and numbers that may be read without the pool's lock.
struct Level {
    pool: SpinLock<Pool>,
    /// Tables in the pool.
    len: AtomicUsize,
    /// Tables that exist: in use, of CPUs, in the pool.
    made: AtomicUsize,
    /// Tables made anew so far, and given back.
    fresh: AtomicU64,
    given_back: AtomicU64,
}

const fn new_levels() -> [Level; LEVELS] {
    [const {
        let empty = Pool {
            tables: FrameList::EMPTY,
            oldest: NONE,
            len: 0,
            least: 0,
        };
        Level {
            pool: SpinLock::new(Rank::Buddy, empty),
            len: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            fresh: AtomicU64::new(0),
            given_back: AtomicU64::new(0),
        }
    }; LEVELS]
}

static TABLES: Restart<[Level; LEVELS]> = Restart::new(new_levels());

/// Whether page tables that are given back are kept ready.
static KEEPS: AtomicBool = AtomicBool::new(true);
/// Whether the thresholds hold, rather than the adaptive policy.
static IS_FIXED: AtomicBool = AtomicBool::new(false);
static RATIO: AtomicU32 = AtomicU32::new(Thresholds::DEFAULT.ratio);
static TOTAL: AtomicU32 = AtomicU32::new(Thresholds::DEFAULT.total);
/// Tables in a pool at most.
static MOST: AtomicUsize = AtomicUsize::new(0);
/// The value of [`block_order`].
static BLOCK_ORDER: AtomicUsize = AtomicUsize::new(0);

/// Starts with nothing kept, on a machine with so many frames.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn start(managed: usize) {
    OWN_TABLES.reset();
    for own in OWN_TABLES.iter() {
        own.stacks.iter().for_each(Stack::clear);
        for count in own.taken.iter().chain(&own.given) {
            count.store(0, Ordering::Relaxed);
        }
    }
    // SAFETY: the caller promises to be alone.
    unsafe { TABLES.set(new_levels()) };
    KEEPS.store(true, Ordering::Relaxed);
    set_policy(Policy::Adaptive);
    MOST.store(managed / 64, Ordering::Relaxed);
    let order = (managed / 256).max(1).ilog2() as usize;
    let largest = match machine::is_guarded() {
        true => LARGEST_GUARDED,
        false => LARGEST_BLOCK,
    };
    BLOCK_ORDER.store(order.min(largest), Ordering::Relaxed);
}

/// Enough for all tables that a fork, an exec or a small program's start can need, so that each
/// costs one invalidation at most: 128 KiB. A CPU's own frames come from the buddy allocator in
/// blocks of this size, too: with blocks of half of it, what is left of the one that was cut keeps
/// these from being neighbours, and `memory-calls/touch-1MiB` takes 2% more instructions.
const LARGEST_BLOCK: usize = 5;
/// The same where page tables are guarded: 2 MiB, so that the direct map's pages stay whole.
const LARGEST_GUARDED: usize = 9;

/// log2 of the frames that are set aside at once: a 256th of a small machine's memory.
fn block_order() -> usize {
    BLOCK_ORDER.load(Ordering::Relaxed)
}

/// When a pool gives tables back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Tables that were not needed for some time go.
    Adaptive,
    /// The paper's thresholds.
    Fixed(Thresholds),
}

/// The thresholds of `iosup.txt` 5.2, for each level: tables are given back when both are exceeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thresholds {
    /// Tables in the pool for 100 in use.
    pub ratio: u32,
    /// Tables in use and in the pool together.
    pub total: u32,
}

impl Thresholds {
    /// A pool of four times what is in use is much, and 256 tables are what the paper's load needs.
    pub const DEFAULT: Thresholds = Thresholds {
        ratio: 400,
        total: 256,
    };

    /// Those that hold with [`Policy::Fixed`], or would.
    pub fn now() -> Thresholds {
        Thresholds {
            ratio: RATIO.load(Ordering::Relaxed),
            total: TOTAL.load(Ordering::Relaxed),
        }
    }
}

/// Returns the policy.
pub fn policy() -> Policy {
    match IS_FIXED.load(Ordering::Relaxed) {
        true => Policy::Fixed(Thresholds::now()),
        false => Policy::Adaptive,
    }
}

/// Changes the policy; [`Policy::Adaptive`] has the default thresholds set.
pub fn set_policy(policy: Policy) {
    let (fixed, thresholds) = match policy {
        Policy::Fixed(thresholds) => (true, thresholds),
        Policy::Adaptive => (false, Thresholds::DEFAULT),
    };
    RATIO.store(thresholds.ratio, Ordering::Relaxed);
    TOTAL.store(thresholds.total, Ordering::Relaxed);
    IS_FIXED.store(fixed, Ordering::Relaxed);
}

/// Keeps page tables that are given back ready from now on, or frees each at once and makes each
/// anew, as kernels did before `iosup.txt` 5.2.
pub fn keep_tables(keep: bool) {
    KEEPS.store(keep, Ordering::Relaxed);
    if !keep {
        drain();
    }
}

/// Tells whether page tables are kept ready.
#[inline]
pub fn keeps_tables() -> bool {
    KEEPS.load(Ordering::Relaxed)
}

/// Frames in a page table of this level: a table of level 1 stands beside its reverse links.
const fn frames_in(level: usize) -> usize {
    if level == 1 { 2 } else { 1 }
}

/// log2 of [`frames_in`].
const fn order_of(level: usize) -> usize {
    frames_in(level) - 1
}

/// A page table that was just made, as opposed to one kept ready, still has to be prepared.
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
    Counter::page_tables_allocated.add(frames_in(level) as u64);
    let ready = OWN_TABLES.with(|own| match own {
        Some(own) => {
            add_own(&own.taken[level - 1]);
            let stack = &own.stacks[level - 1];
            stack.pop().or_else(|| take_pooled(level, Some(stack)))
        }
        None => take_pooled(level, None),
    });
    match ready {
        Some(index) => Some(Table::Ready(index)),
        None => make(level),
    }
}

/// Takes a table out of the pool, and a few for the CPU's own.
#[cold]
fn take_pooled(level: usize, own: Option<&Stack<OWN>>) -> Option<u32> {
    let level = &TABLES[level - 1];
    // Looking first costs nothing and the lock is not touched while there is nothing to get.
    if level.len.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut pool = level.pool.lock_irq();
    let first = pool.pop()?;
    if let Some(own) = own {
        let mut more = [0; MOVED - 1];
        let taken = more.iter_mut().map_while(|to| {
            *to = pool.pop()?;
            Some(())
        });
        let taken = taken.count();
        more[..taken]
            .iter()
            .rev()
            .for_each(|&table| own.push(table));
    }
    level.len.store(pool.len, Ordering::Relaxed);
    Some(first)
}

/// Makes a table.
#[cold]
fn make(level: usize) -> Option<Table> {
    let made = match keeps_tables() {
        true => take_raw(order_of(level)),
        false => {
            let index = take_alone(order_of(level));
            index.inspect(|&index| {
                withdraw(index, order_of(level));
                machine::reach_tables(index..index + frames_in(level) as u32);
            })
        }
    };
    let Some(index) = made else {
        OWN_TABLES.with(|own| {
            if let Some(own) = own {
                let taken = &own.taken[level - 1];
                taken.store(taken.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            }
        });
        return None;
    };
    for frame in index..index + frames_in(level) as u32 {
        super::check_junk(frame);
        let record = record(frame);
        record.set_kind(Type::Free, Type::page_table(level));
        record.in_use.store(0, Ordering::Relaxed);
        record.clear_use();
    }
    TABLES[level - 1].made.fetch_add(1, Ordering::Relaxed);
    TABLES[level - 1].fresh.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the frame is the caller's alone, and reached as a page table.
    unsafe { core::ptr::write_bytes(table_bytes(index), 0, PAGE_SIZE) };
    Counter::pages_zeroed.add(1);
    Some(Table::Fresh(index))
}

/// Takes free frames that no device reaches: of those set aside, or after more were.
fn take_raw(order: usize) -> Option<u32> {
    let block = block_order();
    let enough = targets().low;
    let more = || {
        (order + 1..=block).rev().find_map(|larger| {
            if buddy::available() < enough + (1 << larger) {
                return None;
            }
            let first = buddy::take_spare(larger, Depth::Table)?;
            set_aside(first, larger);
            buddy::give_run(first + (1 << order)..first + (1 << larger));
            Some(first)
        })
    };
    let single = || {
        let first = take_alone(order)?;
        set_aside(first, order);
        Some(first)
    };
    buddy::take_aside(order).or_else(more).or_else(single)
}

/// Takes free frames from the buddy allocator.
fn take_alone(order: usize) -> Option<u32> {
    let attempt = || match order {
        0 => super::cache::take(Depth::Table),
        order => buddy::take(order, Depth::Table),
    };
    attempt().or_else(|| super::retry(Depth::Table, attempt))
}

/// Takes a block out of the devices' reach, whatever it will be used for.
fn set_aside(first: u32, order: usize) {
    withdraw(first, order);
    flag(first, order, true);
}

fn withdraw(first: u32, order: usize) {
    let frames = device_reach::run(first..first + (1 << order));
    device_reach::withdraw(frames, Cause::PageTables);
}

/// Sets or clears the flag of frames, and with it the guard. The caller owns them alone.
fn flag(first: u32, order: usize, cached: bool) {
    directmap::flag_tables(first..first + (1 << order), cached);
}

/// Takes a frame for a page table of the kernel.
#[cfg(target_os = "none")]
pub(super) fn take_kernels() -> Option<u32> {
    let index = take_raw(0)?;
    super::check_junk(index);
    record(index).set_kind(Type::Free, Type::Kernel);
    Some(index)
}

/// Gives one back.
#[cfg(target_os = "none")]
pub(super) fn give_kernels(index: u32) {
    record(index).set_kind(Type::Kernel, Type::Free);
    super::junk(index);
    buddy::give(index, 0);
}

/// Gives a page table back: all its user entries are zero, no TLB and no walker can reach it, and
/// its record's use count is 0.
pub(crate) fn give_table(level: usize, index: u32) {
    debug_assert_eq!(record(index).type_count(), 0);
    debug_assert!(super::is_zero(index, if level == 4 { 256 } else { 512 }));
    Counter::page_tables_freed.add(frames_in(level) as u64);
    machine::frame_freed(address(index));
    if !keeps_tables() {
        return free(level, index);
    }
    if !record(index).is_cached() {
        // Taken while tables were not kept. It is out of the devices' reach, and stays there.
        flag(index, order_of(level), true);
    }
    if Mistake::PooledReturns.is_made() {
        let frames = index..index + frames_in(level) as u32;
        handlers::frames_enter(core::slice::from_ref(&frames));
    }
    let is_over = OWN_TABLES.with(|own| {
        let Some(own) = own else {
            return put_pooled(level, core::iter::once(index));
        };
        add_own(&own.given[level - 1]);
        let stack = &own.stacks[level - 1];
        let is_full = stack.len() == OWN;
        let is_over = is_full && put_pooled(level, (0..MOVED).filter_map(|_| stack.pop()));
        stack.push(index);
        is_over
    });
    if is_over {
        give_excess(level);
    }
}

/// Puts tables into the pool; returns whether it may be too large now.
#[cold]
fn put_pooled(level: usize, tables: impl Iterator<Item = u32>) -> bool {
    let level = &TABLES[level - 1];
    let (before, now) = {
        let mut pool = level.pool.lock_irq();
        let before = pool.len;
        tables.for_each(|table| pool.push(table));
        level.len.store(pool.len, Ordering::Relaxed);
        (before, pool.len)
    };
    let is_fixed = IS_FIXED.load(Ordering::Relaxed);
    if !is_fixed && before <= KEPT && now > KEPT {
        handlers::on_kept_tables();
    }
    let total = TOTAL.load(Ordering::Relaxed) as usize;
    now > MOST.load(Ordering::Relaxed) || is_fixed && level.made.load(Ordering::Relaxed) > total
}

/// Gives back the excess of a pool.
#[cold]
fn give_excess(level: usize) {
    let usage = usage_of(level);
    let too_many = usage.in_pool.saturating_sub(MOST.load(Ordering::Relaxed));
    let thresholds = Thresholds::now();
    let is_over = IS_FIXED.load(Ordering::Relaxed)
        && usage.in_use + usage.in_pool > thresholds.total as usize
        && usage.in_pool as u64 * 100 > usage.in_use as u64 * u64::from(thresholds.ratio);
    let excess = match is_over {
        true => usage.in_pool.saturating_sub(usage.in_use),
        false => 0,
    };
    let count = excess.max(too_many);
    if give_back(level, count) > 0 {
        release(block_order());
    }
}

/// Makes so many tables of a pool, the oldest ones, frames that are set aside; returns how many
/// there were.
fn give_back(level: usize, count: usize) -> usize {
    let mut given = 0;
    while given < count {
        let mut batch = [NONE; BATCH];
        let n = {
            let level = &TABLES[level - 1];
            let mut pool = level.pool.lock_irq();
            let most = BATCH.min(count - given);
            let taken = batch[..most].iter_mut().map_while(|to| {
                *to = pool.pop_oldest()?;
                Some(())
            });
            let n = taken.count();
            level.len.store(pool.len, Ordering::Relaxed);
            n
        };
        if n == 0 {
            break;
        }
        batch[..n].iter().for_each(|&table| untype(level, table));
        put_aside(level, &batch[..n]);
        given += n;
    }
    given
}

/// Makes a table of which nothing is left into free frames.
fn untype(level: usize, index: u32) {
    for frame in index..index + frames_in(level) as u32 {
        record(frame).set_kind(Type::page_table(level), Type::Free);
        super::junk(frame);
    }
    TABLES[level - 1].made.fetch_sub(1, Ordering::Relaxed);
    TABLES[level - 1].given_back.fetch_add(1, Ordering::Relaxed);
}

fn put_aside(level: usize, tables: &[u32]) {
    let frames = frames_in(level) as u32;
    buddy::give_batch(tables.iter().flat_map(|&table| table..table + frames));
}

/// Releases what is set aside in blocks of at least 2^`least` frames: the flag is cleared and
/// devices may reach them, by one batch for up to [`BATCH`] blocks. Returns whether there was
/// anything. The only place where the flag ends, but for tables that are not kept.
fn release(least: usize) -> bool {
    let mut any = false;
    loop {
        let mut blocks = [(0, 0); BATCH];
        let n = buddy::take_blocks_aside(&mut blocks, least);
        if n == 0 {
            return any;
        }
        let blocks = &blocks[..n];
        blocks
            .iter()
            .for_each(|&(first, order)| flag(first, order, false));
        let runs = blocks
            .iter()
            .map(|&(first, order)| first..first + (1 << order));
        device_reach::restore(runs, Cause::PageTables);
        for &(first, order) in blocks {
            buddy::give(first, order);
        }
        any = true;
    }
}

/// Makes a table into free frames, when none is kept.
#[cold]
fn free(level: usize, index: u32) {
    let order = order_of(level);
    untype(level, index);
    flag(index, order, false);
    device_reach::restore(
        device_reach::run(index..index + (1 << order)),
        Cause::PageTables,
    );
    buddy::give(index, order);
}

/// Gives the buddy allocator the tables that this CPU and the pools keep, and all frames set aside.
/// Returns whether there were any.
#[cold]
pub fn drain() -> bool {
    for level in 1..=LEVELS {
        OWN_TABLES.with(|own| {
            if let Some(own) = own {
                let stack = &own.stacks[level - 1];
                if stack.len() > 0 {
                    put_pooled(level, core::iter::from_fn(|| stack.pop()));
                }
            }
        });
        give_back(level, usize::MAX);
    }
    release(0)
}

/// Gives back half of the tables that the pools did not need since the last call: for the adaptive policy,
/// every [`PERIOD`]. Returns whether there may be more for the next call.
pub fn age_tables() -> bool {
    if IS_FIXED.load(Ordering::Relaxed) {
        return false;
    }
    let (mut any, mut more) = (false, false);
    for (level, at) in (1..).zip(TABLES.iter()) {
        if at.len.load(Ordering::Relaxed) <= KEPT {
            continue;
        }
        let unneeded = {
            let mut pool = at.pool.lock_irq();
            let (least, len) = (pool.least, pool.len);
            pool.least = len;
            least.saturating_sub(KEPT)
        };
        any |= give_back(level, unneeded.div_ceil(2)) > 0;
        more = true;
    }
    if any {
        release(block_order());
    }
    more
}

/// Whether some pool has more than the adaptive policy leaves for good.
pub fn has_unneeded_tables() -> bool {
    !IS_FIXED.load(Ordering::Relaxed)
        && TABLES
            .iter()
            .any(|level| level.len.load(Ordering::Relaxed) > KEPT)
}

/// The page tables of one level: in use, kept, and how they came and went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    /// Tables in use.
    pub in_use: usize,
    /// Tables kept ready, those of CPUs included.
    pub in_pool: usize,
    /// Tables that were taken and had been kept ready.
    pub reused: u64,
    /// Tables that the cache has given back.
    pub given_back: u64,
    /// Tables taken and given without an invalidation.
    pub avoided: u64,
}

fn usage_of(level: usize) -> TableUsage {
    let at = &TABLES[level - 1];
    let sum = |of: fn(&OwnTables, usize) -> u64| -> u64 {
        OWN_TABLES.iter().map(|own| of(own, level - 1)).sum()
    };
    let own = sum(|own, level| own.stacks[level].len() as u64) as usize;
    let in_pool = own + at.len.load(Ordering::Relaxed);
    let taken = sum(|own, level| own.taken[level].load(Ordering::Relaxed));
    let given = sum(|own, level| own.given[level].load(Ordering::Relaxed));
    let reused = taken.saturating_sub(at.fresh.load(Ordering::Relaxed));
    TableUsage {
        in_use: at.made.load(Ordering::Relaxed).saturating_sub(in_pool),
        in_pool,
        reused,
        given_back: at.given_back.load(Ordering::Relaxed),
        avoided: reused + given,
    }
}

/// The page tables of each level; exact when nothing else runs.
pub fn table_usage() -> [TableUsage; LEVELS] {
    core::array::from_fn(|i| usage_of(i + 1))
}

/// Frames that are set aside for page tables, and are none now.
pub fn frames_aside() -> usize {
    buddy::aside()
}

/// Frames in page tables kept ready, or set aside.
pub(super) fn kept() -> usize {
    let usage = table_usage();
    let tables = usage.iter().zip(1..);
    buddy::aside()
        + tables
            .map(|(it, level)| it.in_pool * frames_in(level))
            .sum::<usize>()
}

/// Frames of page tables in use.
pub(super) fn in_use() -> usize {
    let usage = table_usage();
    let tables = usage.iter().zip(1..);
    tables.map(|(it, level)| it.in_use * frames_in(level)).sum()
}

const _: () = assert!(LARGEST_BLOCK <= MAX_ORDER && LARGEST_GUARDED <= MAX_ORDER);
