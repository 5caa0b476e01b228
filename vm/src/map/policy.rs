//! What holds for all maps: how much they promise, and how many entries they have.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use nucleus::{PAGE_SHIFT, frame};

use super::request::MapError;
use crate::swap;

/// Less than any machine has: no need to ask how much this one has.
const NEVER_TOO_LARGE: usize = 4 << 20;

/// Entries of one map at most, at first Linux's default for `vm.max_map_count`: it bounds the kernel memory that one
/// program can take with mappings.
static MAX_ENTRIES: AtomicUsize = AtomicUsize::new(65530);
static ALWAYS: AtomicBool = AtomicBool::new(false);

/// What is promised to programs (`vm.overcommit_memory`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overcommit {
    /// All but what can't possibly be backed.
    Heuristic,
    /// Everything.
    Always,
}

/// How many entries a map may have.
#[inline]
pub fn max_entries() -> usize {
    MAX_ENTRIES.load(Relaxed)
}

/// Sets [`max_entries`]; maps that have more keep them.
pub fn set_max_entries(entries: usize) {
    MAX_ENTRIES.store(entries, Relaxed);
}

/// What is promised.
pub fn overcommit() -> Overcommit {
    match ALWAYS.load(Relaxed) {
        true => Overcommit::Always,
        false => Overcommit::Heuristic,
    }
}

/// Sets [`overcommit`].
pub fn set_overcommit(to: Overcommit) {
    ALWAYS.store(to == Overcommit::Always, Relaxed);
}

/// Refuses what can't possibly be backed: one private writable mapping larger than all memory and swap space.
/// Anything less is granted, as programs map far more than they touch; the reckoning comes as
/// [`Fault::OutOfMemory`](crate::Fault::OutOfMemory). Linux's default policy does the same.
pub(crate) fn check_overcommit(len: usize) -> Result<(), MapError> {
    if len <= NEVER_TOO_LARGE
        || overcommit() == Overcommit::Always
        || len >> PAGE_SHIFT <= frame::total() + swap::usage().total
    {
        return Ok(());
    }
    Err(MapError::NoMemory)
}
