//! Observers: what is told of the wake-ups of a queue without sleeping on it (`epoll`, `O_ASYNC`).
//!
//! A [`WaitQueue`](super::WaitQueue) that was never observed pays one load for this. The list of
//! observers is a thing of its own which the queue and each [`Observation`] share: the queue may
//! move or go away first.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use super::queue::WaitQueue;
use crate::{
    OutOfMemory, Slots,
    lock::{OnceBox, Rank, SpinLock, lockdep},
};

/// Observers that are told after one hold of the list's lock, and slots that are looked at for
/// them.
const BATCH: usize = 4;
const SCAN: usize = 64;

/// Is told of each wake-up of the queues that it [observes](WaitQueue::observe).
pub trait Observer: Send + Sync {
    /// A queue was woken: what it stands for may have changed.
    ///
    /// Called where the queue is woken, never in an interrupt handler: it does not sleep or
    /// allocate, and takes only locks with interrupts off, of the ranks after
    /// [`Rank::Observers`]. May come once more on another CPU after the observation has ended, and
    /// the last handle of the observer may be dropped after it, in the same context. `queue` is
    /// the number with which it observes the queue.
    ///
    /// Returns whether it makes use of the wake-up: where only one of several
    /// exclusive observers is to be told, the next is told if it does not.
    fn woken(&self, queue: u8) -> bool;
}

/// An observer on a queue; dropping it ends that, at once and in any context.
pub struct Observation {
    observers: Arc<Observers>,
    slot: usize,
}

/// The observers of one queue.
pub(super) struct Observers {
    slots: SpinLock<Slots<Entry>>,
}

struct Entry {
    observer: Arc<dyn Observer>,
    queue: u8,
    exclusive: bool,
}

/// Where a [`WaitQueue`] keeps its observers: nowhere until there is one.
pub(super) type Cell = OnceBox<Arc<Observers>>;

impl WaitQueue {
    /// Has `observer` told of every wake-up from now on, as of its queue number `queue`. Of the
    /// exclusive ones `wake_one` and `wake_shared` tell only one, and none where they found a task
    /// to wake.
    ///
    /// # Errors
    /// No memory.
    pub fn observe(
        &self,
        observer: Arc<dyn Observer>,
        queue: u8,
        exclusive: bool,
    ) -> Result<Observation, OutOfMemory> {
        let observers = self.observers.get_or_insert(|| {
            Box::new(Arc::new(Observers {
                slots: SpinLock::new(Rank::Observers, Slots::new()),
            }))
        });
        let slot = observers.add(Entry {
            observer,
            queue,
            exclusive,
        })?;
        Ok(Observation {
            observers: observers.clone(),
            slot,
        })
    }
}

impl Observers {
    fn add(&self, new: Entry) -> Result<usize, OutOfMemory> {
        Slots::add_with(new, |new, spare| self.slots.lock_irq().add(new, spare))
    }

    /// The number of observers.
    pub(super) fn crowd(&self) -> usize {
        self.slots.lock_irq().len()
    }

    /// Tells all; of the exclusive ones at most one that makes use of it, or none, where `most`
    /// says so.
    pub(super) fn tell(&self, mut exclusive: Exclusive) {
        lockdep::may_take_long();
        let mut at = 0;
        loop {
            let mut batch: [Option<(Arc<dyn Observer>, u8, bool)>; BATCH] = [const { None }; BATCH];
            let mut count = 0;
            {
                let slots = self.slots.lock_irq();
                for _ in 0..SCAN {
                    if count == BATCH {
                        break;
                    }
                    let Some(slot) = slots.get(at) else { break };
                    at += 1;
                    if let Some(entry) = slot
                        && (!entry.exclusive || exclusive != Exclusive::None)
                    {
                        let told = (entry.observer.clone(), entry.queue, entry.exclusive);
                        batch[count] = Some(told);
                        count += 1;
                    }
                }
                if count == 0 && slots.get(at).is_none() {
                    return;
                }
            }
            for (observer, queue, alone) in batch.into_iter().flatten() {
                if alone && exclusive == Exclusive::None {
                    continue;
                }
                if observer.woken(queue) && alone && exclusive == Exclusive::One {
                    exclusive = Exclusive::None;
                }
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
        let old = self.observers.slots.lock_irq().remove(self.slot);
        // Outside the lock: it may be the observer's last handle.
        drop(old);
    }
}

/// Makes one observer observe every queue that is added, the first one as number 0 and so on: the
/// [`Watch`](super::Watch) for what is not a sleeping task.
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
        let number = self.observations.len() as u8;
        match queue.observe(self.observer.clone(), number, self.exclusive) {
            Ok(observation) if room => self.observations.push(observation),
            _ => self.out_of_memory = true,
        }
    }
}
