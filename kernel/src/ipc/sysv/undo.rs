//! What is undone of a process's semaphore operations when it ends (`SEM_UNDO`).
//!
//! The adjustments stand in the sets, under their locks, so that an operation and its adjustment are one step; an
//! [`UndoList`] names them and knows the sets in which it has some. Threads may share one (`CLONE_SYSVSEM`).

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{Errno, Result};
use nucleus::sync::{Rank, SpinLock};

use super::semaphore::Set;
use crate::process::Pid;

/// The sets in which some threads have something to undo.
pub struct UndoList {
    /// Names it in the sets.
    number: u64,
    sets: SpinLock<Vec<Weak<Set>>>,
}

impl UndoList {
    /// Nothing to undo.
    pub fn new() -> Arc<UndoList> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(UndoList {
            number: NEXT.fetch_add(1, Relaxed),
            sets: SpinLock::new(Rank::Leaf, Vec::new()),
        })
    }

    /// Names it in the sets.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Notes that `set` has adjustments of this list. Sets that are gone are forgotten on the occasion.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn add(&self, set: &Arc<Set>) -> Result<()> {
        let mut sets = self.sets.lock();
        sets.retain(|set| set.strong_count() > 0);
        let known = Arc::as_ptr(set);
        if !sets.iter().any(|set| set.as_ptr() == known) {
            sets.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            sets.push(Arc::downgrade(set));
        }
        Ok(())
    }
}

/// A thread of process `pid` lets go of its list: what the list stands for is undone if it was the last.
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
