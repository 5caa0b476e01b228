//! Policy for all maps: overcommit, and the number of entries.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use nucleus::{PAGE_SHIFT, frame};

use super::request::MapError;
use crate::swap;

/// Less memory than any machine has: no need to compute how much there is.
const NEVER_TOO_LARGE: usize = 4 << 20;

/// The largest number of entries of a map, initially Linux's default for `vm.max_map_count`. It
/// bounds the kernel memory that one program can take with mappings.
static MAX_ENTRIES: AtomicUsize = AtomicUsize::new(65530);
static ALWAYS: AtomicBool = AtomicBool::new(false);

/// How much memory is promised to programs (`vm.overcommit_memory`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overcommit {
    /// Everything but obvious overcommits.
    Heuristic,
    /// Everything.
    Always,
}

/// Returns the largest number of entries of a map.
#[inline]
pub fn max_entries() -> usize {
    MAX_ENTRIES.load(Relaxed)
}

/// Sets [`max_entries`]; maps with more keep them.
pub fn set_max_entries(entries: usize) {
    MAX_ENTRIES.store(entries, Relaxed);
}

/// Returns the overcommit policy.
pub fn overcommit() -> Overcommit {
    match ALWAYS.load(Relaxed) {
        true => Overcommit::Always,
        false => Overcommit::Heuristic,
    }
}

/// Sets the [`overcommit`] policy.
pub fn set_overcommit(to: Overcommit) {
    ALWAYS.store(to == Overcommit::Always, Relaxed);
}

/// Refuses obvious overcommit: one private writable mapping larger than all memory and swap space.
/// Anything smaller is granted, since programs map far more than they touch; if memory does run
/// out, faults fail with [`Fault::OutOfMemory`](crate::Fault::OutOfMemory). This is Linux's default
/// policy.
pub(crate) fn check_overcommit(len: usize) -> Result<(), MapError> {
    if len <= NEVER_TOO_LARGE
        || overcommit() == Overcommit::Always
        || len >> PAGE_SHIFT <= frame::total() + swap::usage().total
    {
        return Ok(());
    }
    Err(MapError::NoMemory)
}
