//! The semaphore operations that are undone when a process ends (`SEM_UNDO`).
//!
//! The adjustments stand in the sets, under their locks, so that an operation and its adjustment
//! are one step; an [`UndoList`] names them and knows the sets in which it has some. Threads may
//! share one (`CLONE_SYSVSEM`).

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    sets: SpinLock<Sets>,
}

#[derive(Default)]
struct Sets {
    /// By their addresses.
    known: BTreeMap<usize, Weak<dyn Undo>>,
    /// With so many, those that are gone are forgotten.
    most: usize,
}

impl UndoList {
    pub fn new() -> Arc<UndoList> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(UndoList {
            number: NEXT.fetch_add(1, Relaxed),
            sets: SpinLock::new(Rank::Leaf, Sets::default()),
        })
    }

    /// Notes that `set` has adjustments of this list. Sets that are gone are forgotten whenever
    /// there are twice as many as were left the last time.
    pub fn add(&self, set: &Arc<impl Undo + 'static>) {
        let address = Arc::as_ptr(set).addr();
        let mut sets = self.sets.lock();
        // The address is not another set's while a weak reference to this one stands here.
        if sets.known.contains_key(&address) {
            return;
        }
        let weak: Weak<dyn Undo> = Arc::downgrade(set) as _;
        sets.known.insert(address, weak);
        if sets.known.len() > sets.most {
            sets.known.retain(|_, set| set.strong_count() > 0);
            sets.most = 2 * sets.known.len().max(16);
        }
    }
}

/// Drops the list of a thread of process `pid`; the last thread undoes its adjustments.
pub fn leave(list: &mut Option<Arc<UndoList>>, pid: Pid) {
    let Some(list) = list.take().and_then(Arc::into_inner) else {
        return;
    };
    for set in list.sets.into_inner().known.into_values() {
        if let Some(set) = set.upgrade() {
            set.undo(list.number, pid);
        }
    }
}
