//! The owner of a table of level 1: a pmap's, or, while several spaces lead to it, their family's.
//!
//! | field | of a table that one pmap leads to | of a shared one |
//! |---|---|---|
//! | `owner` of the table | the pmap | the family and one; holds a handle of it |
//! | `sharers` of the frame with its links | 0 or 1 | the count of sharers |

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

use super::leaf::{DYING, pin_attached};
use super::mapping::{Keep, empty};
use super::space::{Family, Holders, Pmap};
use crate::hw::machine;
use crate::mem::frame::give_table;
use crate::mem::frame::record::record;

/// In a table's `owner`: it is a family's.
pub(super) const COMMON: u64 = 1;

/// In the record of a table that this pmap alone leads to: its owner.
#[inline]
pub(super) fn owner(pmap: &Pmap) -> u64 {
    core::ptr::from_ref(pmap) as u64
}

/// In the record of a shared table: its owner.
#[inline]
pub(super) fn common_owner(family: &Arc<Family>) -> u64 {
    Arc::as_ptr(family) as u64 | COMMON
}

/// The CPUs that may hold translations that were read from a table of level 1, by its record's
/// `owner`.
///
/// # Safety
/// The table's owner lives as long as the result: see the callers.
pub(super) unsafe fn holders_of<'a>(owner: &AtomicU64) -> Holders<'a> {
    let owner = owner.load(Ordering::SeqCst);
    match owner & COMMON {
        // SAFETY: what `owner` made of a reference; alive as the caller promises.
        0 => unsafe { &*(owner as *const Pmap) }.holders(),
        // SAFETY: what `common_owner` made of a handle; as above.
        _ => unsafe { &*((owner & !COMMON) as *const Family) }.holders(),
    }
}

/// Spaces that lead to a table: 0 or 1 if that is one.
pub(super) fn sharers(table: u32) -> &'static AtomicU64 {
    record(record(table).partner()).sharers()
}

/// Spaces that lead to a table.
pub(super) fn spaces(table: u32) -> u32 {
    (sharers(table).load(Ordering::Relaxed) as u32).max(1)
}

/// Gives a shared table to a new owner, or to none: the family's handle goes.
pub(super) fn leave_family(table: u32, owner: u64) {
    let family = record(table).owner().swap(owner, Ordering::SeqCst);
    debug_assert_eq!(family & COMMON, COMMON);
    sharers(table).store(0, Ordering::Relaxed);
    // SAFETY: the handle that `Pmap::fork` put there when the table became the family's. A CPU that
    // still uses the family by the table's record keeps the table from going, and with it the new
    // owner, which is a member; without one, they were waited for.
    drop(unsafe { Arc::from_raw((family & !COMMON) as *const Family) });
}

/// Gives up a share in a table that the sharer no longer leads to, flushed. The last one takes its
/// mappings out.
pub(super) fn release(table: u32) {
    machine::point();
    // Acquire and release: what the others did with the table comes before it ends.
    if sharers(table).fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    let leaf = pin_attached(table);
    machine::point();
    record(table)
        .use_count()
        .fetch_add(DYING - 1, Ordering::AcqRel);
    empty(&leaf, |_, _| Keep::Dropped);
    drop(leaf);
    leave_family(table, 0);
    let r = record(table);
    r.use_count().swap(0, Ordering::Acquire);
    r.in_use.store(0, Ordering::Relaxed);
    give_table(1, table);
}
