//! Wait queues, and waiting on several of them.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::{ptr::NonNull, time::Duration};

use super::{Waiter, WaiterList, scheduler::block};
use crate::{
    sync::{Rank, SpinLock, held},
    time::{self, TimerNode},
};

/// How a sleep may end besides by its condition.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sleep {
    /// An [`interrupt`](super::Task::interrupt) ends it.
    pub interruptible: bool,
    /// Ends at this time since boot.
    pub deadline: Option<Duration>,
}

impl Sleep {
    /// Only the condition ends it.
    pub const SOUND: Sleep = Sleep {
        interruptible: false,
        deadline: None,
    };
    /// A signal ends it too.
    pub const INTERRUPTIBLE: Sleep = Sleep {
        interruptible: true,
        deadline: None,
    };
}

/// Why a sleep ended without its condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    Interrupted,
    TimedOut,
}

/// Tasks that wait for something to become true.
///
/// Whoever makes it true wakes the queue *after* it is so. The queue's lock is taken with
/// interrupts off, so interrupt handlers may wake.
pub struct WaitQueue {
    waiters: SpinLock<WaiterList>,
}

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> WaitQueue {
        WaitQueue {
            waiters: SpinLock::new(Rank::WaitQueue, WaiterList::new()),
        }
    }

    /// Sleeps until `ready` gives a value. `ready` runs at first, and after each wake-up, with no
    /// lock of the queue held; a wake-up between its answer and the sleep is not lost.
    ///
    /// # Errors
    /// An interruption or the deadline, when `ready` gives nothing at that time.
    #[track_caller]
    pub fn wait<T>(&self, how: Sleep, mut ready: impl FnMut() -> Option<T>) -> Result<T, Woken> {
        if let Some(value) = ready() {
            return Ok(value);
        }
        let place = Place::new(self);
        let mut sleeper = Sleeper::new(how);
        loop {
            place.enlist();
            // From here on no wake-up is missed.
            if let Some(value) = ready() {
                return Ok(value);
            }
            sleeper.sleep(|| place.waiter.is_woken())?;
            place.waiter.rearm();
        }
    }

    /// Wakes the longest waiting task. Any context. Returns whether there was one.
    pub fn wake_one(&self) -> bool {
        let mut waiters = self.waiters.lock_irq();
        match waiters.take() {
            Some(waiter) => {
                // SAFETY: a listed waiter is alive, and its task takes the lock that is held here
                // before the waiter goes away.
                unsafe { waiter.as_ref().wake() };
                true
            }
            None => false,
        }
    }

    /// Wakes all. Any context.
    pub fn wake_all(&self) {
        let mut waiters = self.waiters.lock_irq();
        while let Some(waiter) = waiters.take() {
            // SAFETY: as in `wake_one`.
            unsafe { waiter.as_ref().wake() };
        }
    }

    /// Whether a task waits now.
    pub fn has_waiters(&self) -> bool {
        !self.waiters.lock_irq().is_empty()
    }
}

impl Default for WaitQueue {
    fn default() -> WaitQueue {
        WaitQueue::new()
    }
}

/// A waiter and the queue it may be in; leaves the queue when dropped.
struct Place<'a> {
    queue: &'a WaitQueue,
    waiter: Waiter,
}

impl<'a> Place<'a> {
    fn new(queue: &'a WaitQueue) -> Place<'a> {
        Place {
            queue,
            waiter: Waiter::new(0),
        }
    }

    /// Joins the queue, unless it is in it. The place is not moved from then on.
    fn enlist(&self) {
        let mut waiters = self.queue.waiters.lock_irq();
        let waiter = NonNull::from(&self.waiter);
        // SAFETY: it is in this queue or in none. `drop` takes it out before it goes away, and
        // places are pinned by their users: a local of `wait`, a box of `WaitSet`.
        unsafe {
            waiters.remove(waiter);
            waiters.push(waiter);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut waiters = self.queue.waiters.lock_irq();
        // SAFETY: it is in this queue or in none.
        unsafe { waiters.remove(NonNull::from(&self.waiter)) };
        // A wake-up that came after the last look at the condition was meant for some task that
        // still waits.
        if self.waiter.rearm()
            && let Some(next) = waiters.take()
        {
            // SAFETY: as in `wake_one`.
            unsafe { next.as_ref().wake() };
        }
    }
}

/// Waiting on several queues at once (`poll`). Register first, then look at the conditions, then
/// [`wait`](WaitSet::wait).
pub struct WaitSet<'a> {
    /// Boxed, because a queue links to a place where it stands.
    #[allow(clippy::vec_box)]
    places: Vec<Box<Place<'a>>>,
}

impl<'a> WaitSet<'a> {
    /// Waits on nothing yet.
    pub fn new() -> WaitSet<'a> {
        WaitSet { places: Vec::new() }
    }

    /// A wake-up of `queue` from now on ends the next [`wait`](WaitSet::wait).
    pub fn add(&mut self, queue: &'a WaitQueue) {
        let place = Box::new(Place::new(queue));
        place.enlist();
        self.places.push(place);
    }

    /// Sleeps until one of the queues was woken since it was added or since the last `wait`.
    ///
    /// # Errors
    /// An interruption or the deadline came first.
    #[track_caller]
    pub fn wait(&mut self, how: Sleep) -> Result<(), Woken> {
        let mut sleeper = Sleeper::new(how);
        let places = &self.places;
        let slept = sleeper.sleep(|| places.iter().any(|place| place.waiter.is_woken()));
        for place in places {
            if place.waiter.rearm() {
                place.enlist();
            }
        }
        slept
    }
}

impl Default for WaitSet<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Sleeps until a time since boot, or an interruption where `how` allows it.
#[track_caller]
pub fn sleep(how: Sleep) -> Woken {
    match Sleeper::new(how).sleep(|| false) {
        Err(woken) => woken,
        Ok(()) => unreachable!("the condition of a plain sleep never holds"),
    }
}

/// One or more sleeps in a row with a common end. Not moved once the first has begun: the timer
/// queue points into it.
struct Sleeper {
    how: Sleep,
    /// Started when the first sleep begins: most waits end before.
    timer: TimerNode,
    timer_started: bool,
}

impl Sleeper {
    fn new(how: Sleep) -> Sleeper {
        Sleeper {
            how,
            timer: TimerNode::for_sleeper(super::current_raw()),
            timer_started: false,
        }
    }

    /// Sleeps until `woken` holds, which is looked at after each wake-up of the task.
    #[track_caller]
    fn sleep(&mut self, woken: impl Fn() -> bool) -> Result<(), Woken> {
        held::may_sleep();
        loop {
            if woken() {
                return Ok(());
            }
            if self.how.interruptible && super::is_interrupted() {
                return Err(Woken::Interrupted);
            }
            if let Some(deadline) = self.how.deadline {
                if time::since_boot() >= deadline {
                    return Err(Woken::TimedOut);
                }
                if !self.timer_started {
                    self.timer_started = true;
                    // SAFETY: `drop` cancels it, and `self` stays in place until then: it is a
                    // local variable of its three users.
                    unsafe { self.timer.start(deadline) };
                }
            }
            block(self.how.interruptible, || {
                woken() || self.timer_started && self.timer.has_expired()
            });
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        if self.timer_started {
            self.timer.cancel();
        }
    }
}
