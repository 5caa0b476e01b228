//! Observers: what is told of the wake-ups of a queue without sleeping on it (`epoll`, `O_ASYNC`).
//!
//! A [`WaitQueue`](super::WaitQueue) that was never observed pays one load for this. The list of
//! observers is a thing of its own which the queue and each [`Observation`] share: the queue may
//! move or go away first.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::mem;

use super::queue::WaitQueue;
use crate::{
    OutOfMemory,
    lock::{OnceBox, Rank, SpinLock},
};

/// Observers that are told after one hold of the list's lock.
const BATCH: usize = 4;

/// Is told of each wake-up of the queues that it [observes](WaitQueue::observe).
pub trait Observer: Send + Sync {
    /// A queue was woken: what it stands for may have changed.
    ///
    /// Called in any context that may wake: it does not sleep or allocate, and takes only locks
    /// with interrupts off, of the ranks after [`Rank::Observers`]. May come once more on another
    /// CPU after the observation has ended, and the last handle of the observer may be dropped
    /// after it, in the same context.
    ///
    /// Returns whether it makes use of the wake-up: where only one of several
    /// exclusive observers is to be told, the next is told if it does not.
    fn woken(&self) -> bool;
}

/// An observer on a queue; dropping it ends that, at once and in any context.
pub struct Observation {
    observers: Arc<Observers>,
    slot: usize,
}

/// The observers of one queue.
pub(super) struct Observers {
    slots: SpinLock<Slots>,
}

struct Slots {
    entries: Vec<Slot>,
    /// First of the chain of free slots; `entries.len()` or more ends it.
    free: usize,
}

enum Slot {
    Used {
        observer: Arc<dyn Observer>,
        exclusive: bool,
    },
    /// Holds the next free one.
    Free(usize),
}

/// Where a [`WaitQueue`] keeps its observers: nowhere until there is one.
pub(super) type Cell = OnceBox<Arc<Observers>>;

impl WaitQueue {
    /// Has `observer` told of every wake-up from now on. Of the exclusive ones `wake_one` tells
    /// only one, and none where it found a task to wake.
    ///
    /// # Errors
    /// No memory.
    pub fn observe(
        &self,
        observer: Arc<dyn Observer>,
        exclusive: bool,
    ) -> Result<Observation, OutOfMemory> {
        let observers = self.observers.get_or_insert(|| {
            Box::new(Arc::new(Observers {
                slots: SpinLock::new(
                    Rank::Observers,
                    Slots {
                        entries: Vec::new(),
                        free: 0,
                    },
                ),
            }))
        });
        let slot = observers.add(Slot::Used {
            observer,
            exclusive,
        })?;
        Ok(Observation {
            observers: observers.clone(),
            slot,
        })
    }
}

impl Observers {
    fn add(&self, new: Slot) -> Result<usize, OutOfMemory> {
        let mut bigger = Vec::new();
        loop {
            let wanted = {
                let mut slots = self.slots.lock_irq();
                let at = slots.free;
                if let Some(slot) = slots.entries.get_mut(at) {
                    if let Slot::Free(next) = mem::replace(slot, new) {
                        slots.free = next;
                    }
                    return Ok(at);
                }
                let len = slots.entries.len();
                if bigger.capacity() > len {
                    // Nothing is allocated or freed under the lock.
                    bigger.append(&mut slots.entries);
                    mem::swap(&mut bigger, &mut slots.entries);
                }
                if slots.entries.capacity() > len {
                    slots.entries.push(new);
                    slots.free = len + 1;
                    return Ok(len);
                }
                (len * 2).max(2)
            };
            bigger = Vec::new();
            bigger.try_reserve_exact(wanted).map_err(|_| OutOfMemory)?;
        }
    }

    /// The observers, and slots that are free.
    pub(super) fn crowd(&self) -> usize {
        self.slots.lock_irq().entries.len()
    }

    /// Tells all; of the exclusive ones at most one that makes use of it, or none, where `most`
    /// says so.
    pub(super) fn tell(&self, mut exclusive: Exclusive) {
        let mut at = 0;
        loop {
            let mut batch: [Option<(Arc<dyn Observer>, bool)>; BATCH] = [const { None }; BATCH];
            let mut count = 0;
            {
                let slots = self.slots.lock_irq();
                while count < BATCH
                    && let Some(slot) = slots.entries.get(at)
                {
                    at += 1;
                    if let Slot::Used {
                        observer,
                        exclusive: alone,
                    } = slot
                        && (!alone || exclusive != Exclusive::None)
                    {
                        batch[count] = Some((observer.clone(), *alone));
                        count += 1;
                    }
                }
            }
            for (observer, alone) in batch.into_iter().flatten() {
                if alone && exclusive == Exclusive::None {
                    continue;
                }
                if observer.woken() && alone && exclusive == Exclusive::One {
                    exclusive = Exclusive::None;
                }
            }
            if count < BATCH {
                return;
            }
        }
    }
}

/// How many of the exclusive observers are told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Exclusive {
    None,
    One,
    All,
}

impl Drop for Observation {
    fn drop(&mut self) {
        let old = {
            let mut slots = self.observers.slots.lock_irq();
            let free = mem::replace(&mut slots.free, self.slot);
            mem::replace(&mut slots.entries[self.slot], Slot::Free(free))
        };
        // Outside the lock: it may be the observer's last handle.
        drop(old);
    }
}

/// Makes one observer observe every queue that is added: the [`Watch`](super::Watch) for what is
/// not a sleeping task.
pub struct ObserverSet {
    observer: Arc<dyn Observer>,
    exclusive: bool,
    observations: Vec<Observation>,
    out_of_memory: bool,
}

impl ObserverSet {
    /// Observes nothing yet.
    pub fn new(observer: Arc<dyn Observer>, exclusive: bool) -> ObserverSet {
        ObserverSet {
            observer,
            exclusive,
            observations: Vec::new(),
            out_of_memory: false,
        }
    }

    /// What was begun by the queues that were added; each ends with its drop.
    ///
    /// # Errors
    /// There was no memory for one of them.
    pub fn finish(self) -> Result<Vec<Observation>, OutOfMemory> {
        match self.out_of_memory {
            true => Err(OutOfMemory),
            false => Ok(self.observations),
        }
    }

    pub(super) fn observe(&mut self, queue: &WaitQueue) {
        let room = self.observations.try_reserve(1).is_ok();
        match queue.observe(self.observer.clone(), self.exclusive) {
            Ok(observation) if room => self.observations.push(observation),
            _ => self.out_of_memory = true,
        }
    }
}
