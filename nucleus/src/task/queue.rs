//! Wait queues, and waiting on several of them.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    ops::Deref,
    ptr::NonNull,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    time::Duration,
};

use super::{
    observer::{self, Exclusive, ObserverSet},
    placement,
    scheduler::block,
    task::{Task, current, current_raw, is_interrupted},
    waiter::{Waiter, WaiterList, wake_from},
};
use crate::{
    OutOfMemory, PAGE_SIZE, frame,
    hw::machine,
    lock::{Rank, SpinLock, lockdep},
    time::{self, TimerNode},
    try_box,
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

    /// The condition ends it, or this time since boot.
    pub const fn until(deadline: Duration) -> Sleep {
        Sleep {
            interruptible: false,
            deadline: Some(deadline),
        }
    }

    /// The condition ends it, or the end of this time from now.
    pub fn within(time: Duration) -> Sleep {
        Sleep::until(time::since_boot() + time)
    }
}

/// Why a sleep ended without its condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Woken {
    Interrupted,
    TimedOut,
}

/// Tasks that wait for something to become true, and [observers](super::Observer) that are told.
///
/// The task that makes it true wakes the queue *after* it is so. The queue's lock is taken with
/// interrupts off, so interrupt handlers may wake; it is not held while a task is made to run.
///
/// # Wake-ups without a waiter
///
/// Most wake-ups find no waiter and take no lock: they read `listed`, the number of tasks in the
/// list. It is raised with the list locked, and lowered after a task has left the list, so it is
/// never too small. No wake-up is lost:
///
/// - the waker makes the condition true, passes a full fence (`F1`), and reads `listed`;
/// - the waiter enlists, raises `listed`, passes a full fence (`F2`), and tests the condition,
///   before each sleep.
///
/// Full fences are totally ordered. If `F2` precedes `F1`, the waker sees the count and takes the
/// lock. If `F1` precedes `F2`, the waiter sees the condition: directly if it is an atomic; if a
/// lock guards it, because the waiter takes that lock after `F2`: had it taken it before the waker,
/// `F2` would precede `F1`. A task that is not counted any more has been woken, and tests the
/// condition before it sleeps again, or is leaving.
pub struct WaitQueue {
    waiters: SpinLock<WaiterList>,
    /// Tasks in the list; briefly more, never fewer.
    listed: AtomicUsize,
    pub(super) observers: observer::Cell,
}

impl WaitQueue {
    /// An empty queue.
    pub const fn new() -> WaitQueue {
        WaitQueue {
            waiters: SpinLock::new(Rank::WaitQueue, WaiterList::new()),
            listed: AtomicUsize::new(0),
            observers: observer::Cell::new(),
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
        let place = Place::new(QueueRef::Borrowed(self), Waiter::new(0));
        let mut sleeper = Sleeper::new(how);
        loop {
            place.enlist();
            // From here on no wake-up is missed.
            if let Some(value) = ready() {
                return Ok(value);
            }
            sleeper.sleep(|| place.waiter.is_woken())?;
            place.waiter.rearm();
            // Usually the condition holds after a wake-up: then the task need not enlist again.
            if let Some(value) = ready() {
                return Ok(value);
            }
        }
    }

    /// Sleeps until `ready` gives a value, as [`wait`](WaitQueue::wait): nothing else ends the
    /// sleep.
    #[track_caller]
    pub fn wait_soundly<T>(&self, ready: impl FnMut() -> Option<T>) -> T {
        match self.wait(Sleep::SOUND, ready) {
            Ok(value) => value,
            Err(woken) => unreachable!("a sound sleep ends with its condition: {woken:?}"),
        }
    }

    /// Whether a task may wait for what the caller has made true: see [above](WaitQueue).
    #[inline]
    fn may_have_waiters(&self) -> bool {
        machine::point();
        fence(Ordering::SeqCst);
        self.listed.load(Ordering::Relaxed) != 0
    }

    /// Wakes up to `most` tasks; gives how many.
    #[inline]
    fn wake(&self, most: usize) -> usize {
        match self.may_have_waiters() {
            true => self.wake_listed(most, WaiterList::take),
            false => 0,
        }
    }

    fn wake_listed(
        &self,
        most: usize,
        take: impl FnMut(&mut WaiterList) -> Option<NonNull<Waiter>>,
    ) -> usize {
        let woken = wake_from(&self.waiters, most, take);
        self.listed.fetch_sub(woken, Ordering::Relaxed);
        woken
    }

    /// Wakes the longest waiting task, and tells the observers. Any context if the queue is not
    /// observed. Returns whether there was a task.
    pub fn wake_one(&self) -> bool {
        let woken = self.wake(1) > 0;
        if let Some(observers) = self.observers.get() {
            observers.tell(match woken {
                true => Exclusive::None,
                false => Exclusive::One,
            });
        }
        woken
    }

    /// Wakes all, and tells all observers, for a state that does not end: an end of file, an error.
    /// Any context if the queue is not observed.
    pub fn wake_all(&self) {
        self.wake(usize::MAX);
        if let Some(observers) = self.observers.get() {
            observers.tell(Exclusive::All);
        }
    }

    /// Wakes the longest waiting task if it would run at once on another CPU while the caller goes
    /// on with what it is doing: a reader that can begin with the first part of a large write. The
    /// observers are not told, nor any other task: a caller that is done says so by another
    /// function. Any context.
    pub fn wake_beside(&self) {
        if self.may_have_waiters() {
            self.wake_listed(1, |list| list.take_if(placement::would_run_beside));
        }
    }

    /// The number of tasks and observers that a wake-up may find, or a few more.
    pub fn crowd(&self) -> usize {
        let observers = self.observers.get().map_or(0, |it| it.crowd());
        self.listed.load(Ordering::Relaxed) + observers
    }

    /// Whether it was ever observed: then even a change that lets no task go on may be news.
    pub fn is_observed(&self) -> bool {
        self.observers.get().is_some()
    }

    /// Wakes all tasks and tells the observers, for something that one of them takes: of the
    /// exclusive ones one, or none if `served`, when another task has been found for it. Any
    /// context if the queue is not observed.
    pub fn wake_shared(&self, served: bool) {
        self.wake(usize::MAX);
        if let Some(observers) = self.observers.get() {
            observers.tell(match served {
                true => Exclusive::None,
                false => Exclusive::One,
            });
        }
    }

    /// For a static one, when a simulated machine starts: tasks of an earlier one that failed are
    /// gone.
    #[cfg(not(target_os = "none"))]
    pub fn restart(&self) {
        *self.waiters.lock_irq() = WaiterList::new();
        self.listed.store(0, Ordering::Relaxed);
    }
}

impl Default for WaitQueue {
    fn default() -> WaitQueue {
        WaitQueue::new()
    }
}

/// A queue that stays where it is as long as this lives.
enum QueueRef<'a> {
    Borrowed(&'a WaitQueue),
    Shared(Arc<WaitQueue>),
}

impl Deref for QueueRef<'_> {
    type Target = WaitQueue;
    fn deref(&self) -> &WaitQueue {
        match self {
            QueueRef::Borrowed(queue) => queue,
            QueueRef::Shared(queue) => queue,
        }
    }
}

/// A waiter and the queue it may be in; leaves the queue when dropped.
struct Place<'a> {
    queue: QueueRef<'a>,
    waiter: Waiter,
}

impl<'a> Place<'a> {
    fn new(queue: QueueRef<'a>, waiter: Waiter) -> Place<'a> {
        Place { queue, waiter }
    }

    /// Joins the queue, at its end. The place is not moved from then on.
    fn enlist(&self) {
        {
            let mut waiters = self.queue.waiters.lock_irq();
            let waiter = NonNull::from(&self.waiter);
            // SAFETY: it is in this queue or in none. `drop` takes it out before it goes away, and
            // places are pinned by their users: a local of `wait`, a box of `WaitSet`.
            unsafe {
                if !waiters.remove(waiter) {
                    // Under the lock: a waker that finds it takes it back afterwards.
                    self.queue.listed.fetch_add(1, Ordering::Relaxed);
                }
                waiters.push(waiter);
            }
        }
        machine::point();
        // `F2` of `WaitQueue`.
        fence(Ordering::SeqCst);
        machine::point();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let was_listed = {
            let mut waiters = self.queue.waiters.lock_irq();
            // SAFETY: it is in this queue or in none.
            unsafe { waiters.remove(NonNull::from(&self.waiter)) }
        };
        if was_listed {
            self.queue.listed.fetch_sub(1, Ordering::Relaxed);
        }
        // A wake-up that came after the last look at the condition was meant for some task that
        // still waits.
        if self.waiter.rearm() {
            self.queue.wake(1);
        }
    }
}

/// What a file's `poll` adds the queues to by which its readiness changes: a [`WaitSet`] for a task
/// that is about to sleep, an [`ObserverSet`] for what stays registered (`epoll`).
///
/// A file adds every queue that is woken when anything changes that its `poll` reports.
pub trait Watch<'a> {
    /// From now on a wake-up of `queue` is noticed.
    fn add(&mut self, queue: &'a WaitQueue);

    /// As [`add`](Watch::add), for a queue that does not live in the file itself.
    fn add_shared(&mut self, queue: &Arc<WaitQueue>);
}

impl<'a> Watch<'a> for WaitSet<'a> {
    fn add(&mut self, queue: &'a WaitQueue) {
        self.enlist(QueueRef::Borrowed(queue));
    }

    fn add_shared(&mut self, queue: &Arc<WaitQueue>) {
        self.enlist(QueueRef::Shared(queue.clone()));
    }
}

impl<'a> Watch<'a> for ObserverSet {
    fn add(&mut self, queue: &'a WaitQueue) {
        self.observe(queue);
    }

    fn add_shared(&mut self, queue: &Arc<WaitQueue>) {
        self.observe(queue);
    }
}

/// Waiting on several queues at once (`poll`). [Register](Watch::add) first, then look at the
/// conditions, then [`wait`](WaitSet::wait).
pub struct WaitSet<'a> {
    /// Boxed, because a queue links to a place where it stands.
    #[allow(clippy::vec_box)]
    places: Vec<Box<Place<'a>>>,
    /// Dropped after the places.
    any: Option<Box<Alarm>>,
    out_of_memory: bool,
}

/// What the places of a [`WaitSet`] have in common.
struct Alarm {
    /// Whether one of the places was woken: a sleeper looks at this with interrupts off, and at
    /// the places, as many as there may be, with interrupts on.
    rings: AtomicBool,
    /// The sleeper. A set that is forgotten leaves its places in the queues, and this with them.
    _task: Arc<Task>,
}

impl<'a> WaitSet<'a> {
    /// The memory for a queue in the set, in bytes.
    pub const PLACE_BYTES: usize = size_of::<Place<'static>>() + size_of::<usize>();

    /// Queues that are added between two questions whether memory is scarce.
    const UNASKED: usize = PAGE_SIZE / (2 * Self::PLACE_BYTES);

    /// Waits on nothing yet.
    pub fn new() -> WaitSet<'a> {
        WaitSet {
            places: Vec::new(),
            any: None,
            out_of_memory: false,
        }
    }

    fn enlist(&mut self, queue: QueueRef<'a>) {
        if !self.out_of_memory && self.try_enlist(queue).is_err() {
            self.out_of_memory = true;
        }
    }

    fn try_enlist(&mut self, queue: QueueRef<'a>) -> Result<(), OutOfMemory> {
        // A page of places at most between two looks at the reserve.
        if self.places.len() % Self::UNASKED == Self::UNASKED - 1 {
            frame::check_not_scarce()?;
        }
        self.places.try_reserve(1).map_err(|_| OutOfMemory)?;
        let any = match &mut self.any {
            Some(any) => any,
            none => none.insert(try_box(Alarm {
                rings: AtomicBool::new(false),
                _task: current(),
            })?),
        };
        // SAFETY: the flag is dropped after the places, each of which takes its queue's lock
        // before it goes away.
        let waiter = unsafe { Waiter::with_flag(&raw const any.rings) };
        let place = try_box(Place::new(queue, waiter))?;
        place.enlist();
        self.places.push(place);
        Ok(())
    }

    /// Returns the number of queues that are waited on.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no queue is waited on.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether all queues that were added are waited on.
    ///
    /// # Errors
    /// There was no memory for one of them.
    pub fn check(&self) -> Result<(), OutOfMemory> {
        match self.out_of_memory {
            true => Err(OutOfMemory),
            false => Ok(()),
        }
    }

    /// Sleeps until one of the queues was woken since it was added or since the last `wait`.
    ///
    /// # Errors
    /// An interruption or the deadline came first.
    #[track_caller]
    pub fn wait(&mut self, how: Sleep) -> Result<(), Woken> {
        let mut sleeper = Sleeper::new(how);
        let any = self.any.as_ref().map(|any| &any.rings);
        let slept = sleeper.sleep(|| any.is_some_and(|any| any.load(Ordering::SeqCst)));
        if any.is_some_and(|any| any.swap(false, Ordering::SeqCst)) {
            for place in &self.places {
                if place.waiter.rearm() {
                    place.enlist();
                }
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

/// Wakes the task whose timer has expired.
///
/// # Safety
/// The task is alive.
unsafe fn wake_sleeper(task: *const ()) {
    // SAFETY: the caller's promise.
    placement::wake(unsafe { &*task.cast::<Task>() }, false);
}

impl Sleeper {
    fn new(how: Sleep) -> Sleeper {
        Sleeper {
            how,
            // SAFETY: the current task outlives its own frame, in which the timer stands.
            timer: unsafe { TimerNode::for_sleeper(wake_sleeper, current_raw().cast()) },
            timer_started: false,
        }
    }

    /// Sleeps until `woken` holds, which is looked at after each wake-up of the task.
    #[track_caller]
    fn sleep(&mut self, woken: impl Fn() -> bool) -> Result<(), Woken> {
        lockdep::may_sleep();
        loop {
            if woken() {
                return Ok(());
            }
            if self.how.interruptible && is_interrupted() {
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
    #[inline]
    fn drop(&mut self) {
        if self.timer_started {
            self.timer.cancel();
        }
    }
}
