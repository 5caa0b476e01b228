//! The pools: what each CPU has of each level, the pool behind it, and how many tables there are.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::cpu::percpu::{PerCpu, Restart};
use crate::frame::record::{FrameList, NONE, record};
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
use crate::mem::frame::cache::Stack;

/// Levels of page tables.
pub const LEVELS: usize = 4;
/// Page tables that a CPU keeps, by level from 1: what a shell's fork and the exec after it give
/// back and take again, so that neither asks the pool. At most 104 frames.
pub(in crate::mem::frame) const OWN: [usize; LEVELS] = [32, 16, 12, 12];
const MOST_OWN: usize = OWN[0];
/// Tables of a level that a CPU moves to or from a pool at once.
pub(super) const fn moved(level: usize) -> usize {
    OWN[level - 1] / 2
}

/// What one CPU has; only the CPU itself changes it.
pub(super) struct OwnTables {
    pub stacks: [Stack<MOST_OWN>; LEVELS],
    /// Tables taken, and given, so far.
    pub taken: [AtomicU64; LEVELS],
    pub given: [AtomicU64; LEVELS],
}

pub(super) static OWN_TABLES: PerCpu<OwnTables> = PerCpu::new(
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
pub(super) fn add_own(to: &AtomicU64) {
    to.store(to.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The pool of one level.
pub(super) struct Pool {
    tables: FrameList,
    /// The table that has been here longest, or [`NONE`].
    oldest: u32,
    pub len: usize,
    /// The smallest `len` since the adaptive policy looked.
    pub least: usize,
}

impl Pool {
    pub(super) fn push(&mut self, table: u32) {
        if self.tables.is_empty() {
            self.oldest = table;
        }
        self.tables.link(table);
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<u32> {
        let table = self.tables.pop()?;
        self.removed(table);
        Some(table)
    }

    pub(super) fn pop_oldest(&mut self) -> Option<u32> {
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
pub(super) struct Level {
    pub pool: SpinLock<Pool>,
    /// Tables in the pool.
    pub len: AtomicUsize,
    /// Tables that exist: in use, of CPUs, in the pool.
    pub made: AtomicUsize,
    /// Tables made anew so far, and given back.
    pub fresh: AtomicU64,
    pub given_back: AtomicU64,
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

pub(super) static TABLES: Restart<[Level; LEVELS]> = Restart::new(new_levels());

/// Starts with nothing kept.
///
/// # Safety
/// The machine has one CPU and no task yet.
pub(super) unsafe fn start() {
    OWN_TABLES.reset();
    for own in OWN_TABLES.iter() {
        own.stacks.iter().for_each(Stack::clear);
        for count in own.taken.iter().chain(&own.given) {
            count.store(0, Ordering::Relaxed);
        }
    }
    // SAFETY: the caller promises to be alone.
    unsafe { TABLES.set(new_levels()) };
}

/// Takes a table out of the pool, and a few for the CPU's own.
#[cold]
pub(super) fn take_pooled(of: usize, own: Option<&Stack<MOST_OWN>>) -> Option<u32> {
    let level = &TABLES[of - 1];
    // Looking first costs nothing and the lock is not touched while there is nothing to get.
    if level.len.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut pool = level.pool.lock_irq();
    let first = pool.pop()?;
    if let Some(own) = own {
        let mut more = [0; MOST_OWN / 2];
        let taken = more[..moved(of) - 1].iter_mut().map_while(|to| {
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

/// Puts tables into the pool; returns how many it had before, and has now.
pub(super) fn put_pooled(level: usize, tables: impl Iterator<Item = u32>) -> [usize; 2] {
    let level = &TABLES[level - 1];
    let mut pool = level.pool.lock_irq();
    let before = pool.len;
    tables.for_each(|table| pool.push(table));
    level.len.store(pool.len, Ordering::Relaxed);
    [before, pool.len]
}

/// Takes the oldest tables out of the pool, until `to` is full; returns how many.
pub(super) fn take_oldest(level: usize, to: &mut [u32]) -> usize {
    let level = &TABLES[level - 1];
    let mut pool = level.pool.lock_irq();
    let taken = to.iter_mut().map_while(|to| {
        *to = pool.pop_oldest()?;
        Some(())
    });
    let taken = taken.count();
    level.len.store(pool.len, Ordering::Relaxed);
    taken
}

/// The page tables of one level, by where they are, and what has become of them.
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
    /// Tables taken and given of which devices did not have to be told.
    pub avoided: u64,
}

pub(super) fn usage_of(level: usize) -> TableUsage {
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
