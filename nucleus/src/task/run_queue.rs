//! One CPU's run queue: its tasks by virtual time.
//!
//! *Virtual time* is the time a task has run, weighed by its nice value. The task that is furthest
//! behind runs next, so all get their share; one that has slept is behind, but by no more than the
//! credit that `placement.rs` gives, so it gets the CPU soon and can't hoard. `floor` is the least
//! virtual time in the queue, never going back; a task that changes CPUs keeps its distance from
//! the floor.
//!
//! Tasks with a real-time level are in a heap of their own, by level and then in the order in which they came. They run first, as
//! long as the CPU's [`Budget`] lasts.
//!
//! # Locking
//!
//! A run queue's lock is held, with interrupts off, *across* the switch: the next task gives it
//! back. So whoever holds the lock and finds that a task is not `current` knows that its registers
//! are saved. A task belongs to the queue that its `cpu` names. When it moves, it is out of the old
//! heap before its `cpu` changes under the new one's lock; between, it is runnable, in no heap and
//! on no CPU, and only the mover touches it. Two run queues are never locked at once.

#[cfg(not(target_os = "none"))]
use alloc::sync::Arc;
use core::{
    cell::UnsafeCell,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use super::{
    Task,
    priority::{Budget, Priority},
};
use crate::{
    counters::Counter,
    cpu::percpu::Restart,
    hw::machine,
    lock::{Rank, RawSpin, lockdep},
    time::pairing_heap::PairingHeap,
};

/// The weight of nice 0; each step is a factor of 1.25, so one step moves about a tenth of the CPU.
const WEIGHT_0: u64 = 1024;

/// By nice value, from -20; the last one is for what runs when there is hardly anything else to run.
const WEIGHTS: [u64; 41] = {
    let mut weights = [0; 41];
    let mut nice = 20;
    let mut weight = WEIGHT_0;
    while nice < 40 {
        weights[nice] = weight;
        weight = (weight * 4 + 2) / 5;
        nice += 1;
    }
    nice = 20;
    weight = WEIGHT_0;
    while nice > 0 {
        nice -= 1;
        weight = weight * 5 / 4;
        weights[nice] = weight;
    }
    weights[40] = 3;
    weights
};

#[repr(align(64))]
pub(super) struct RunQueue {
    lock: RawSpin,
    /// `lock`
    pub(super) inner: UnsafeCell<Inner>,
    /// Tasks in the heap [written under `lock`].
    pub(super) queued: AtomicUsize,
    /// See the top of this file [written under `lock`].
    pub(super) floor: AtomicU64,
    /// The highest level of the task that runs and of those in the heap, 0 if none has one [written under `lock`].
    pub(super) urgency: AtomicU8,
}

/// Where a task with a level goes among those that have it too.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Among {
    /// Before them: it was displaced.
    First,
    /// Behind them: it is new here, has had its turn or has yielded.
    Last,
}

pub(super) struct Inner {
    /// This CPU's bit.
    pub(super) bit: u64,
    /// Tasks with a share, by virtual time.
    pub(super) heap: PairingHeap<Task>,
    /// Tasks with a level, see [`urgent_key`].
    pub(super) urgent: PairingHeap<Task>,
    /// How many were put into `urgent`.
    urgent_count: u64,
    pub(super) budget: Budget,
    /// Who runs; null before this CPU schedules.
    pub(super) current: *const Task,
    pub(super) idle: *const Task,
    /// When `current` was last charged for its time, nanoseconds since boot.
    pub(super) charged_at: u64,
    /// Nanoseconds in which there was nothing to run, and in which there was.
    pub(super) idle_time: u64,
    pub(super) busy_time: u64,
    /// Nanoseconds for which ticks found a program running, and the kernel.
    pub(super) sampled: [u64; 2],
    /// When the last tick was, and when `current` began to run: nanoseconds since boot.
    pub(super) ticked_at: u64,
    pub(super) switched_at: u64,
    /// Whether `current` has been asked to give way and has not yet.
    pub(super) kicked: bool,
    /// This CPU has nothing to do and looks into this queue: no interrupt need tell it.
    pub(super) looks: bool,
    /// When the idle task was last switched away from: nanoseconds since boot.
    pub(super) idle_left_at: u64,
    /// Who was switched away from and must not go into this heap: dead, or not allowed here.
    pub(super) leaving: *const Task,
}

// SAFETY: `inner` is reached with `lock` held only, and its pointers are to tasks that the
// scheduler's handles keep alive.
unsafe impl Sync for RunQueue {}

impl RunQueue {
    const fn new() -> RunQueue {
        RunQueue {
            lock: RawSpin::new(),
            inner: UnsafeCell::new(Inner {
                bit: 0,
                heap: PairingHeap::new(),
                urgent: PairingHeap::new(),
                urgent_count: 0,
                budget: Budget::new(),
                current: ptr::null(),
                idle: ptr::null(),
                charged_at: 0,
                idle_time: 0,
                busy_time: 0,
                sampled: [0; 2],
                ticked_at: 0,
                switched_at: 0,
                kicked: false,
                looks: false,
                idle_left_at: 0,
                leaving: ptr::null(),
            }),
            queued: AtomicUsize::new(0),
            floor: AtomicU64::new(0),
            urgency: AtomicU8::new(0),
        }
    }

    /// Takes the lock. Interrupts are off.
    #[allow(clippy::mut_from_ref)]
    pub(super) fn lock(&self) -> &mut Inner {
        debug_assert!(!machine::irqs_enabled());
        lockdep::check(Rank::RunQueue, &raw const self.lock as usize);
        self.lock.lock();
        // SAFETY: the lock is held; callers drop the reference before they unlock.
        unsafe { &mut *self.inner.get() }
    }

    pub(super) fn unlock(&self) {
        self.lock.unlock();
    }

    /// Puts a task into its heap. Locked.
    pub(super) fn enqueue(&self, inner: &mut Inner, task: &Task, among: Among) {
        debug_assert!(!task.queued.load(Ordering::Relaxed));
        task.queued.store(true, Ordering::Relaxed);
        self.queued.fetch_add(1, Ordering::SeqCst);
        let level = task.level();
        let element = NonNull::from(task);
        // SAFETY: it was in no heap; the scheduler's handle keeps it alive until it is dead, and a
        // dead task is in no heap.
        unsafe {
            if level == 0 {
                let key = task.virtual_time.load(Ordering::Relaxed);
                inner.heap.insert(element, key);
            } else {
                inner.urgent_count += 1;
                let key = urgent_key(level, inner.urgent_count, among);
                inner.urgent.insert(element, key);
                self.note_urgency(inner);
            }
        }
    }

    /// Takes a task out of its heap. Locked.
    pub(super) fn dequeue(&self, inner: &mut Inner, task: &Task) {
        task.queued.store(false, Ordering::Relaxed);
        self.queued.fetch_sub(1, Ordering::SeqCst);
        let element = NonNull::from(task);
        // SAFETY: it is in this heap: `queued` said so, or it was found there; and its level has not
        // changed since it was put there.
        unsafe {
            if task.level() == 0 {
                inner.heap.remove(element);
            } else {
                inner.urgent.remove(element);
                self.note_urgency(inner);
            }
        }
    }

    /// Brings `urgency` up to date after a change of who runs or waits. Locked.
    pub(super) fn note_urgency(&self, inner: &Inner) {
        // SAFETY: the running task is alive, and so are those in the heap.
        let (current, first) = unsafe {
            let first = inner.urgent.first();
            (inner.current.as_ref(), first.map(|first| first.as_ref()))
        };
        let urgency = current
            .map_or(0, Task::level)
            .max(first.map_or(0, Task::level));
        if self.urgency.load(Ordering::Relaxed) != urgency {
            self.urgency.store(urgency, Ordering::Relaxed);
        }
        let here = inner.bit;
        let waits = inner.urgent.first().is_some();
        if waits != (URGENT.load(Ordering::Relaxed) & here != 0) {
            match waits {
                true => URGENT.fetch_or(here, Ordering::SeqCst),
                false => URGENT.fetch_and(!here, Ordering::SeqCst),
            };
        }
    }

    /// Adds the time since the last charge to the running task. Locked.
    pub(super) fn charge(&self, inner: &mut Inner, now: u64) {
        // SAFETY: the running task is alive.
        let Some(current) = (unsafe { inner.current.as_ref() }) else {
            return;
        };
        let ran = now.saturating_sub(inner.charged_at);
        inner.charged_at = now;
        if current.idle {
            inner.idle_time += ran;
            return;
        }
        inner.busy_time += ran;
        current.run_time.fetch_add(ran, Ordering::Relaxed);
        let level = current.level();
        if level != 0 {
            inner.budget.charge(level, ran);
            // Its own CPU's alone writes it.
            let used = current.turn_used.load(Ordering::Relaxed) + ran;
            current.turn_used.store(used, Ordering::Relaxed);
            return;
        }
        let nice = current.nice.load(Ordering::Relaxed) as i64;
        let virtual_time = current.virtual_time.load(Ordering::Relaxed)
            + ran * WEIGHT_0 / WEIGHTS[(nice + 20) as usize];
        current.virtual_time.store(virtual_time, Ordering::Relaxed);
        let least = match inner.heap.first_key() {
            Some(first) if first < virtual_time => first,
            _ => virtual_time,
        };
        self.floor.fetch_max(least, Ordering::Relaxed);
    }
}

impl Inner {
    /// The task of the queue that is to run first.
    pub(super) fn first(&self) -> Option<NonNull<Task>> {
        let Some(urgent) = self.urgent.first() else {
            return self.heap.first();
        };
        // SAFETY: it is in the heap, hence alive.
        if self.budget.holds_back(unsafe { urgent.as_ref() }.level()) {
            return self.heap.first().or(Some(urgent));
        }
        Some(urgent)
    }

    /// The first of at most `limit` tasks for which `fits` holds, those with levels first.
    pub(super) fn find(&self, limit: usize, fits: impl Fn(&Task) -> bool) -> Option<NonNull<Task>> {
        let urgent = self.urgent.find(limit, &fits);
        urgent.or_else(|| self.heap.find(limit, &fits))
    }

    /// Whether `task`, which runs here, is to give way to the first of the queue.
    pub(super) fn is_behind(&self, task: &Task) -> bool {
        // SAFETY: it is in the heap, hence alive.
        let Some(first) = self.first().map(|first| unsafe { first.as_ref() }) else {
            return false;
        };
        match (task.level(), first.level()) {
            (0, 0) => {
                let time = |task: &Task| task.virtual_time.load(Ordering::Relaxed);
                time(first) <= time(task)
            }
            (0, level) => !self.budget.holds_back(level),
            (level, 0) => self.budget.holds_back(level),
            (level, other) => other > level || other == level && gives_way(task),
        }
    }
}

/// Whether a task has had its turn, or has asked to let others of its level run.
pub(super) fn gives_way(task: &Task) -> bool {
    task.yields.load(Ordering::Relaxed) || task.turn_is_over()
}

/// The place of a task with a level: higher levels first, within a level by `count`, which grows; those that were displaced
/// before, the last one first.
fn urgent_key(level: u8, count: u64, among: Among) -> u64 {
    const MIDDLE: u64 = 1 << 55;
    let place = match among {
        Among::First => MIDDLE - count,
        Among::Last => MIDDLE + count,
    };
    u64::from(u8::MAX - level) << 56 | place
}

pub(super) static QUEUES: [Restart<RunQueue>; machine::MAX_CPUS] =
    [const { Restart::new(RunQueue::new()) }; machine::MAX_CPUS];

/// Bit per CPU that schedules.
pub(super) static ONLINE: AtomicU64 = AtomicU64::new(0);
/// Bit per CPU that found nothing to run and has not been given anything since.
pub(super) static IDLE: AtomicU64 = AtomicU64::new(0);
/// Bit per CPU in whose queue a task with a level waits.
pub(super) static URGENT: AtomicU64 = AtomicU64::new(0);

/// Runs `f` with the run queue locked that the task belongs to. Interrupts off.
pub(super) fn with_queue_of<R>(task: &Task, f: impl FnOnce(&RunQueue, &mut Inner) -> R) -> R {
    loop {
        let cpu = task.cpu.load(Ordering::SeqCst);
        let queue = &*QUEUES[cpu];
        let inner = queue.lock();
        if task.cpu.load(Ordering::SeqCst) == cpu {
            let result = f(queue, inner);
            queue.unlock();
            return result;
        }
        queue.unlock();
    }
}

/// See [`Task::set_priority`].
pub(super) fn set_priority(task: &Task, priority: Priority) {
    if task.priority() == priority {
        return;
    }
    let irqs = machine::irqs_disable();
    with_queue_of(task, |queue, inner| {
        let old = task.level();
        if let (0, Priority::Share(_)) = (old, priority) {
            task.store_priority(priority);
            return;
        }
        let running = ptr::eq(inner.current, task);
        if running {
            queue.charge(inner, machine::nanoseconds());
        }
        let queued = task.queued.load(Ordering::Relaxed);
        if queued {
            queue.dequeue(inner, task);
        }
        task.store_priority(priority);
        if task.level() == 0 {
            // As if it were new.
            let floor = queue.floor.load(Ordering::Relaxed);
            task.virtual_time.store(floor, Ordering::Relaxed);
        }
        if queued {
            // As on Linux, who steps down is the first of its new level.
            let among = match task.level() < old {
                true => Among::First,
                false => Among::Last,
            };
            queue.enqueue(inner, task, among);
        } else if running {
            queue.note_urgency(inner);
        }
        // Who is to run now is found out by a look at the queue.
        let cpu = task.cpu.load(Ordering::Relaxed);
        if !queued && !running {
        } else if cpu == machine::cpu() {
            machine::set_reschedule(true);
        } else {
            Counter::ipi_reschedule.add(1);
            machine::send_reschedule(cpu);
        }
    });
    machine::irqs_restore(irqs);
    machine::preempt();
}

/// Nanoseconds that `task` has run.
pub(super) fn run_time(task: &Task) -> u64 {
    let irqs = machine::irqs_disable();
    let total = with_queue_of(task, |queue, inner| {
        if ptr::eq(inner.current, task) {
            queue.charge(inner, machine::nanoseconds());
        }
        task.run_time.load(Ordering::Relaxed)
    });
    machine::irqs_restore(irqs);
    total
}

/// The part of `total` that went to programs, where the ticks found so much for programs and so
/// much for the kernel. Before the first tick all of it: programs run more than the kernel does.
pub(super) fn share(total: u64, program: u64, kernel: u64) -> u64 {
    match program + kernel {
        0 => total,
        ticks => (total as u128 * program as u128 / ticks as u128) as u64,
    }
}

/// Time that a CPU, below [`cpu_count`], has spent in programs, in the kernel, and without anything
/// to run. The sum of the first two is exact; the ticks say how it is divided.
pub fn cpu_times(cpu: usize) -> [Duration; 3] {
    let irqs = machine::irqs_disable();
    let queue = &*QUEUES[cpu];
    let inner = queue.lock();
    queue.charge(inner, machine::nanoseconds());
    let (idle, busy) = (inner.idle_time, inner.busy_time);
    let [program, kernel] = inner.sampled;
    queue.unlock();
    machine::irqs_restore(irqs);
    let in_program = share(busy, program, kernel);
    [in_program, busy - in_program, idle].map(Duration::from_nanos)
}

/// Forgets all tasks, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    for queue in &QUEUES {
        // SAFETY: the machine that used it is gone and the next has not started. Idle tasks had no
        // other owner than the queue.
        unsafe {
            let idle = (*queue.inner.get()).idle;
            if !idle.is_null() {
                drop(Arc::from_raw(idle));
            }
            queue.set(RunQueue::new());
        }
    }
    ONLINE.store(0, Ordering::SeqCst);
    IDLE.store(0, Ordering::SeqCst);
    URGENT.store(0, Ordering::SeqCst);
}
