//! Fbufs of the kernel for packets of one interface (`fbufs.txt` 5.2): those of the paths that were
//! used most recently.

use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use fbuf::region::Pool;
use nucleus::sync::{Rank, SpinLock};

/// Paths whose fbufs a device fills at most, as in the paper.
const MOST: usize = 16;

/// The pools of an interface.
pub struct Pools {
    list: SpinLock<[Option<Arc<Pool>>; MOST]>,
    count: AtomicUsize,
}

impl Default for Pools {
    fn default() -> Pools {
        Pools {
            list: SpinLock::new(Rank::Leaf, [const { None }; MOST]),
            count: AtomicUsize::new(0),
        }
    }
}

impl Pools {
    /// Adds a pool; of too many, the one that was not used for longest goes. May sleep.
    pub fn add(&self, pool: Arc<Pool>) {
        let gone = {
            let mut list = self.list.lock();
            let last_use = |it: &Option<Arc<Pool>>| it.as_ref().map_or(0, |it| 1 + it.last_use());
            let place = list.iter_mut().min_by_key(|it| last_use(it));
            let gone = place.and_then(|place| place.replace(pool));
            self.count.store(list.iter().flatten().count(), SeqCst);
            gone
        };
        drop(gone);
    }

    /// Removes a pool if it is there. May sleep.
    pub fn remove(&self, pool: &Arc<Pool>) {
        let gone = {
            let mut list = self.list.lock();
            let is_it =
                |it: &&mut Option<Arc<Pool>>| it.as_ref().is_some_and(|it| Arc::ptr_eq(it, pool));
            let gone = list.iter_mut().find(is_it).and_then(Option::take);
            self.count.store(list.iter().flatten().count(), SeqCst);
            gone
        };
        drop(gone);
    }

    /// Returns the one that was used last, if there is one. Its drop may sleep.
    pub fn latest(&self) -> Option<Arc<Pool>> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let list = self.list.lock();
        list.iter()
            .flatten()
            .max_by_key(|it| it.last_use())
            .cloned()
    }
}
