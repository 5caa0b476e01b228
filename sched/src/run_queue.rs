//! One CPU's runnable tasks in the order in which they run.
//!
//! *Virtual time* is the time a task has run, weighed by its nice value. The task that is furthest
//! behind runs next, so all get their share; one that has slept is behind, but by no more than the
//! credit that [`placement`](crate::placement) gives, so it gets the CPU soon and can't hoard. The
//! *floor* of a queue is the least virtual time in it, never going back; a task that changes CPUs
//! keeps its distance from the floor.
//!
//! Tasks with a real-time level are in a heap of their own, by level and then in the order in which
//! they came. They run first, as long as the CPU's [`Budget`] lasts.

use crate::pairing_heap::{Linked, PairingHeap};
use crate::priority::Budget;

/// A handle to a task, as a queue reads it.
pub trait Runnable: Linked {
    /// Returns its real-time level, 0 if it has a share. It does not change while it is queued.
    fn level(&self) -> u8;

    /// Returns its virtual time in nanoseconds.
    fn virtual_time(&self) -> u64;

    /// Returns whether its turn among tasks of its level is over, or it yields to them.
    fn gives_way(&self) -> bool;
}

/// Where a task with a level goes among those that have it too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// Before them: it was preempted.
    First,
    /// Behind them: it is new here, has had its turn or has yielded.
    Last,
}

/// The queue.
pub struct RunQueue<H> {
    /// Tasks with a share, by virtual time.
    shares: PairingHeap<H>,
    /// Tasks with a level, see [`urgent_key`].
    urgent: PairingHeap<H>,
    /// Tasks that were ever put into `urgent`.
    urgent_count: u64,
    /// Time of tasks with levels.
    pub budget: Budget,
}

impl<H> RunQueue<H> {
    /// An empty queue.
    pub const fn new() -> Self {
        Self {
            shares: PairingHeap::new(),
            urgent: PairingHeap::new(),
            urgent_count: 0,
            budget: Budget::new(),
        }
    }
}

impl<H> Default for RunQueue<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Runnable> RunQueue<H> {
    /// Adds a task, which is in no queue. Returns whether it has a level.
    #[inline]
    pub fn insert(&mut self, task: H, among: Among) -> bool {
        let level = task.level();
        if level == 0 {
            self.shares.insert(task, task.virtual_time());
            return false;
        }
        self.urgent_count += 1;
        let key = urgent_key(level, self.urgent_count, among);
        self.urgent.insert(task, key);
        true
    }

    /// Removes a task, which is in this queue and has the level with which it was added. Returns
    /// whether it has one.
    #[inline]
    pub fn remove(&mut self, task: H) -> bool {
        if task.level() == 0 {
            self.shares.remove(task);
            return false;
        }
        self.urgent.remove(task);
        true
    }

    /// Returns the task that is to run first.
    #[inline]
    pub fn first(&self) -> Option<H> {
        let Some(urgent) = self.urgent.first() else {
            return self.shares.first();
        };
        if self.budget.holds_back(urgent.level()) {
            return self.shares.first().or(Some(urgent));
        }
        Some(urgent)
    }

    /// Returns the least virtual time of the tasks with shares.
    #[inline]
    pub fn first_virtual_time(&self) -> Option<u64> {
        self.shares.first_key()
    }

    /// Returns the highest level of a task that waits, 0 if none has one.
    #[inline]
    pub fn urgency(&self) -> u8 {
        self.urgent.first().map_or(0, |first| first.level())
    }

    /// Returns the first of at most `limit` tasks for which `fits` holds, those with levels first.
    pub fn find(&self, limit: usize, fits: impl Fn(&H) -> bool) -> Option<H> {
        self.find_urgent(limit, &fits)
            .or_else(|| self.shares.find(limit, &fits))
    }

    /// As [`find`](Self::find), among the tasks with levels.
    pub fn find_urgent(&self, limit: usize, fits: impl Fn(&H) -> bool) -> Option<H> {
        self.urgent.find(limit, &fits)
    }

    /// Returns whether the running task is to give way to the first of the queue.
    #[inline]
    pub fn is_behind(&self, running: H) -> bool {
        let Some(first) = self.first() else {
            return false;
        };
        match (running.level(), first.level()) {
            (0, 0) => first.virtual_time() <= running.virtual_time(),
            (0, level) => !self.budget.holds_back(level),
            (level, 0) => self.budget.holds_back(level),
            (level, other) => other > level || other == level && running.gives_way(),
        }
    }
}

/// The place of a task with a level: higher levels first, within a level by `count`, which grows;
/// preempted tasks before those, the last one first.
fn urgent_key(level: u8, count: u64, among: Among) -> u64 {
    const MIDDLE: u64 = 1 << 55;
    let place = match among {
        Among::First => MIDDLE - count,
        Among::Last => MIDDLE + count,
    };
    u64::from(u8::MAX - level) << 56 | place
}
