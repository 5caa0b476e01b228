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
//! When tables are given back is the business of the [policy].
//!
//! [`pools`]: the tables of each CPU, and the pools. A pool has at most a 64th of memory, the links
//! of its tables included, and the pagedaemon drains all when memory is short.

mod policy;
mod pools;

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use policy::{PERIOD, Policy, Thresholds, has_unneeded_tables, policy, set_policy};
pub(super) use pools::OWN;
pub use pools::{LEVELS, TableUsage, table_usage};
use pools::{OWN_TABLES, TABLES, add_own, moved, put_pooled, take_pooled};

use super::buddy::{self, Depth, MAX_ORDER};
use super::device_reach::{self, Cause};
use super::directmap;
use super::record::{NONE, Type, address, record, table_bytes};
use super::targets::targets;
use crate::PAGE_SIZE;
use crate::counters::Counter;
use crate::hw::{handlers, machine};
use crate::mem::mistake::Mistake;

/// Tables that a pool gives up with its lock taken once, and blocks that are released together.
const BATCH: usize = 32;
const _: () = assert!(
    BATCH == device_reach::BATCH,
    "blocks that are released together cost one invalidation"
);
/// Whether page tables that are given back are kept ready.
static KEEPS: AtomicBool = AtomicBool::new(true);
/// The value of [`block_order`].
static BLOCK_ORDER: AtomicUsize = AtomicUsize::new(0);

/// Starts with nothing kept, on a machine with so many frames.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn start(managed: usize) {
    // SAFETY: the caller promises to be alone.
    unsafe { pools::start() };
    KEEPS.store(true, Ordering::Relaxed);
    set_policy(Policy::Adaptive);
    policy::set_most_frames(managed / 64);
    let order = (managed / 512).max(1).ilog2() as usize;
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

/// log2 of the frames that are set aside at once: at most a 512th of the memory, so that a machine
/// of 512 MiB keeps no more pages than the 250 of `iosup.txt` 7.
fn block_order() -> usize {
    BLOCK_ORDER.load(Ordering::Relaxed)
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

/// Frames in a page table of this level: a table of level 1 has one more for its reverse links.
const fn frames_in(level: usize) -> usize {
    if level == 1 { 2 } else { 1 }
}

/// The frames of one page table, neighbours or not: its own, then at level 1 that of its links.
#[derive(Clone, Copy)]
struct Frames {
    frames: [u32; 2],
    count: usize,
}

impl Frames {
    const NONE: Frames = Frames {
        frames: [NONE; 2],
        count: 0,
    };

    /// Those of a table that was made.
    fn of(level: usize, table: u32) -> Frames {
        let links = match level {
            1 => record(table).partner(),
            _ => NONE,
        };
        Frames {
            frames: [table, links],
            count: frames_in(level),
        }
    }

    fn push(&mut self, frame: u32) {
        self.frames[self.count] = frame;
        self.count += 1;
    }

    fn as_slice(&self) -> &[u32] {
        &self.frames[..self.count]
    }

    fn runs(&self) -> impl Iterator<Item = Range<u32>> {
        runs(self.as_slice())
    }
}

/// Frames as runs: neighbours that come one after the other are together.
fn runs(frames: &[u32]) -> impl Iterator<Item = Range<u32>> {
    let runs = frames.chunk_by(|before, after| before + 1 == *after);
    runs.map(|run| run[0]..run[0] + run.len() as u32)
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
    let ready = OWN_TABLES.with(|own| match own {
        Some(own) => {
            let stack = &own.stacks[level - 1];
            let ready = stack.pop().or_else(|| take_pooled(level, Some(stack)))?;
            add_own(&own.taken[level - 1]);
            Some(ready)
        }
        None => take_pooled(level, None),
    });
    let table = match ready {
        Some(index) => Table::Ready(index),
        None => Table::Fresh(make(level)?),
    };
    Counter::page_tables_allocated.add(frames_in(level) as u64);
    Some(table)
}

/// Makes a table, which counts as taken by this CPU.
#[cold]
fn make(level: usize) -> Option<u32> {
    let frames = match keeps_tables() {
        true => take_raw(frames_in(level))?,
        false => {
            let mut frames = Frames::NONE;
            if !take_singles(&mut frames, frames_in(level)) {
                return None;
            }
            device_reach::withdraw(frames.runs(), Cause::PageTables);
            frames.runs().for_each(machine::reach_tables);
            frames
        }
    };
    OWN_TABLES.with(|own| own.iter().for_each(|own| add_own(&own.taken[level - 1])));
    let index = frames.frames[0];
    if level == 1 {
        let links = frames.frames[1];
        record(links).set_partner(index);
        record(index).set_partner(links);
    }
    for &frame in frames.as_slice() {
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
    Some(index)
}

/// Takes so many free frames that no device reaches: of those set aside, after more were if need
/// be; without blocks to set aside, single ones, by one batch.
fn take_raw(count: usize) -> Option<Frames> {
    let mut frames = Frames::NONE;
    while frames.count < count
        && let Some(index) = buddy::take_aside().or_else(take_of_block)
    {
        frames.push(index);
    }
    let aside = frames.count;
    if !take_singles(&mut frames, count) {
        buddy::give_batch(frames.frames[..aside].iter().copied());
        return None;
    }
    set_aside(|| runs(&frames.frames[aside..count]));
    Some(frames)
}

/// Sets a block aside, as large as there is up to [`block_order`], and takes its first frame.
fn take_of_block() -> Option<u32> {
    let enough = targets().low;
    (1..=block_order()).rev().find_map(|order| {
        if super::refuses_blocks() || buddy::available() < enough + (1 << order) {
            return None;
        }
        let first = buddy::take(order, Depth::Table)?;
        let block = first..first + (1 << order);
        set_aside(|| device_reach::run(block.clone()));
        buddy::give_run(first + 1..block.end);
        Some(first)
    })
}

/// Adds free frames, in no order, until there are so many; false if they cannot be had: then it has
/// added none.
fn take_singles(to: &mut Frames, count: usize) -> bool {
    let before = to.count;
    while to.count < count {
        let attempt = || super::cache::take(Depth::Table);
        let Some(index) = attempt().or_else(|| super::retry(Depth::Table, attempt)) else {
            let taken = &to.frames[before..to.count];
            taken.iter().for_each(|&index| super::cache::give(index));
            to.count = before;
            return false;
        };
        to.push(index);
    }
    true
}

/// Takes frames out of the devices' reach by one batch, whatever they will be used for.
fn set_aside<R: Iterator<Item = Range<u32>>>(runs: impl Fn() -> R) {
    device_reach::withdraw(runs(), Cause::PageTables);
    runs().for_each(|run| flag(run, true));
}

/// Sets or clears the flag of frames, and with it the guard. The caller owns them alone.
fn flag(frames: Range<u32>, cached: bool) {
    directmap::flag_tables(frames, cached);
}

/// Takes a frame for a page table of the kernel.
#[cfg(target_os = "none")]
pub(super) fn take_kernels() -> Option<u32> {
    let [index, _] = take_raw(1)?.frames;
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
        let frames = Frames::of(level, index);
        frames.runs().for_each(|run| flag(run, true));
    }
    if Mistake::PooledReturns.is_made() {
        let frames = Frames::of(level, index);
        let returns = |run| handlers::frames_enter(core::slice::from_ref(&run));
        frames.runs().for_each(returns);
    }
    let is_over = OWN_TABLES.with(|own| {
        let Some(own) = own else {
            return put(level, core::iter::once(index));
        };
        add_own(&own.given[level - 1]);
        let stack = &own.stacks[level - 1];
        let is_full = stack.len() == OWN[level - 1];
        let is_over = is_full && put(level, (0..moved(level)).filter_map(|_| stack.pop()));
        stack.push(index);
        is_over
    });
    if is_over && give_back(level, policy::excess(level)) > 0 {
        release(block_order());
    }
}

/// Puts tables into the pool; returns whether it may be too large now.
#[cold]
fn put(level: usize, tables: impl Iterator<Item = u32>) -> bool {
    let [before, now] = put_pooled(level, tables);
    policy::may_be_over(level, before, now)
}

/// Makes so many tables of a pool, the oldest ones, frames that are set aside; returns how many
/// there were.
fn give_back(level: usize, count: usize) -> usize {
    let mut given = 0;
    while given < count {
        let mut batch = [NONE; BATCH];
        let most = BATCH.min(count - given);
        let n = pools::take_oldest(level, &mut batch[..most]);
        if n == 0 {
            break;
        }
        let mut frames = [Frames::NONE; BATCH];
        for (to, &table) in frames.iter_mut().zip(&batch[..n]) {
            *to = untype(level, table);
        }
        buddy::give_batch(frames.iter().flat_map(|it| it.as_slice()).copied());
        given += n;
    }
    given
}

/// Makes a table of which nothing is left into free frames.
fn untype(level: usize, index: u32) -> Frames {
    let frames = Frames::of(level, index);
    for &frame in frames.as_slice() {
        record(frame).set_kind(Type::page_table(level), Type::Free);
        super::junk(frame);
    }
    TABLES[level - 1].made.fetch_sub(1, Ordering::Relaxed);
    TABLES[level - 1].given_back.fetch_add(1, Ordering::Relaxed);
    frames
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
        let run = |&(first, order): &(u32, usize)| first..first + (1 << order);
        blocks.iter().map(run).for_each(|run| flag(run, false));
        device_reach::restore(blocks.iter().map(run), Cause::PageTables);
        for &(first, order) in blocks {
            buddy::give(first, order);
        }
        any = true;
    }
}

/// Makes a table into free frames, when none is kept.
#[cold]
fn free(level: usize, index: u32) {
    let frames = untype(level, index);
    frames.runs().for_each(|run| flag(run, false));
    device_reach::restore(frames.runs(), Cause::PageTables);
    buddy::give_batch(frames.as_slice().iter().copied());
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

/// Gives back half of the tables that the pools did not need since the last call: for the adaptive
/// policy, every [`PERIOD`]. Returns whether there may be more for the next call.
pub fn age_tables() -> bool {
    let (mut any, mut more) = (false, false);
    for level in 1..=LEVELS {
        if let Some(unneeded) = policy::unneeded(level) {
            any |= give_back(level, unneeded.div_ceil(2)) > 0;
            more = true;
        }
    }
    if any {
        release(block_order());
    }
    more
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
