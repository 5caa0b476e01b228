//! The semaphore operations that are undone when a process ends (`SEM_UNDO`).
//!
//! The adjustments stand in the sets, under their locks, so that an operation and its adjustment
//! are one step; an [`UndoList`] names them and knows the sets in which it has some. Threads may
//! share one (`CLONE_SYSVSEM`).

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use abi::Result;
use nucleus::sync::{Rank, SpinLock};

use super::Pid;

/// A semaphore set as a process that ends sees it.
pub trait Undo: Send + Sync {
    /// Undoes the adjustments of the list `number`, on the account of process `pid`.
    fn undo(&self, number: u64, pid: Pid);
}

/// The sets in which some threads have something to undo.
pub struct UndoList {
    /// Names it in the sets.
    pub number: u64,
    sets: SpinLock<Vec<Weak<dyn Undo>>>,
}

impl UndoList {
    pub fn new() -> Arc<UndoList> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(UndoList {
            number: NEXT.fetch_add(1, Relaxed),
            sets: SpinLock::new(Rank::Leaf, Vec::new()),
        })
    }

    /// Notes that `set` has adjustments of this list. Sets that are gone are forgotten on the
    /// occasion.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, set: &Arc<impl Undo + 'static>) -> Result<()> {
        let mut sets = self.sets.lock();
        sets.retain(|set| set.strong_count() > 0);
        if !sets
            .iter()
            .any(|known| ptr::addr_eq(known.as_ptr(), Arc::as_ptr(set)))
        {
            sets.try_reserve(1)?;
            let set: Weak<dyn Undo> = Arc::downgrade(set) as _;
            sets.push(set);
        }
        Ok(())
    }
}

/// Drops the list of a thread of process `pid`; the last thread undoes its adjustments.
pub fn leave(list: &mut Option<Arc<UndoList>>, pid: Pid) {
    let Some(list) = list.take().and_then(Arc::into_inner) else {
        return;
    };
    for set in list.sets.into_inner() {
        if let Some(set) = set.upgrade() {
            set.undo(list.number, pid);
        }
    }
}
