//! The semaphore operations that are undone when a process ends (`SEM_UNDO`).
//!
//! The adjustments stand in the sets, under their locks, so that an operation and its adjustment
//! are one step; an [`UndoList`] names them and knows the sets in which it has some. Threads may
//! share one (`CLONE_SYSVSEM`).

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};
use core::{
    ops::Bound::{Excluded, Unbounded},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use abi::Result;
use nucleus::{
    frame,
    sync::{Rank, SpinLock},
};
use vm::account::{self, Charge, Kind};

use super::Pid;

/// What a set in a list is charged with: its place, and its record, which stays as long.
const SET_BYTES: usize = 512;
/// Sets that are looked at whenever one is added, to forget those that are gone.
const LOOKS: usize = 2;

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
    known: BTreeMap<usize, Known>,
    /// The address behind which to look for sets that are gone.
    looked: usize,
}

struct Known {
    set: Weak<dyn Undo>,
    /// For the process that operated on the set first.
    _charge: Option<Charge>,
}

impl UndoList {
    pub fn new() -> Arc<UndoList> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(UndoList {
            number: NEXT.fetch_add(1, Relaxed),
            sets: SpinLock::new(Rank::Leaf, Sets::default()),
        })
    }

    /// Notes that `set` has adjustments of this list, and charges that to the current process.
    /// [`LOOKS`] other sets are looked at, in turn, so those that are gone are never more than a
    /// few times those that are left, and no call looks at many.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, set: &Arc<impl Undo + 'static>) -> Result<()> {
        let address = Arc::as_ptr(set).addr();
        // The address is not another set's while a weak reference to this one stands here.
        if self.sets.lock().known.contains_key(&address) {
            return Ok(());
        }
        frame::check_not_scarce()?;
        let known = Known {
            set: Arc::downgrade(set) as _,
            _charge: account::current().map(|it| it.charge(Kind::Undos, 1, SET_BYTES)),
        };
        let mut gone = [const { None }; LOOKS];
        let mut sets = self.sets.lock();
        for gone in &mut gone {
            *gone = sets.look();
        }
        let raced = sets.known.insert(address, known);
        // Freed after the lock was released.
        drop(sets);
        drop((gone, raced));
        Ok(())
    }

    /// Returns how many sets it knows.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.sets.lock().known.len()
    }
}

impl Sets {
    /// Looks at the next set, and takes it out if it is gone.
    fn look(&mut self) -> Option<Known> {
        let next = self.known.range((Excluded(self.looked), Unbounded)).next();
        let (address, is_gone) = match next {
            Some((address, known)) => (*address, known.set.strong_count() == 0),
            None => (0, false),
        };
        self.looked = address;
        is_gone.then(|| self.known.remove(&address)).flatten()
    }
}

/// Drops the list of a thread of process `pid`; the last thread undoes its adjustments.
pub fn leave(list: &mut Option<Arc<UndoList>>, pid: Pid) {
    let Some(list) = list.take().and_then(Arc::into_inner) else {
        return;
    };
    for known in list.sets.into_inner().known.into_values() {
        if let Some(set) = known.set.upgrade() {
            set.undo(list.number, pid);
        }
    }
}
