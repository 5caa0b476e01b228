//! One CPU's run queue: its tasks by virtual time.
//!
//! *Virtual time* is the time a task has run, weighed by its nice value. The task that is furthest
//! behind runs next, so all get their share; one that has slept is behind, but by no more than the
//! credit that `placement.rs` gives, so it gets the CPU soon and can't hoard. `floor` is the least
//! virtual time in the queue, never going back; a task that changes CPUs keeps its distance from
//! the floor.
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
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use super::Task;
use crate::{
    arch::machine,
    pairing::PairingHeap,
    pinned::Restart,
    sync::{Rank, RawSpin, held},
};

/// The weight of nice 0; each step is a factor of 1.25, so one step moves about a tenth of the CPU.
const WEIGHT_0: u64 = 1024;

const WEIGHTS: [u64; 40] = {
    let mut weights = [0; 40];
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
}

pub(super) struct Inner {
    pub(super) heap: PairingHeap<Task>,
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
                heap: PairingHeap::new(),
                current: ptr::null(),
                idle: ptr::null(),
                charged_at: 0,
                idle_time: 0,
                busy_time: 0,
                sampled: [0; 2],
                ticked_at: 0,
                switched_at: 0,
                kicked: false,
                leaving: ptr::null(),
            }),
            queued: AtomicUsize::new(0),
            floor: AtomicU64::new(0),
        }
    }

    /// Takes the lock. Interrupts are off.
    #[allow(clippy::mut_from_ref)]
    pub(super) fn lock(&self) -> &mut Inner {
        debug_assert!(!machine::irqs_enabled());
        held::check(Rank::RunQueue, &raw const self.lock as usize);
        self.lock.lock();
        // SAFETY: the lock is held; callers drop the reference before they unlock.
        unsafe { &mut *self.inner.get() }
    }

    pub(super) fn unlock(&self) {
        self.lock.unlock();
    }

    /// Puts a task into the heap. Locked.
    pub(super) fn enqueue(&self, inner: &mut Inner, task: &Task) {
        debug_assert!(!task.queued.load(Ordering::Relaxed));
        task.queued.store(true, Ordering::Relaxed);
        self.queued.fetch_add(1, Ordering::SeqCst);
        let key = task.virtual_time.load(Ordering::Relaxed);
        // SAFETY: it was in no heap; the scheduler's handle keeps it alive until it is dead, and a
        // dead task is in no heap.
        unsafe { inner.heap.insert(NonNull::from(task), key) };
    }

    /// Takes a task out of the heap. Locked.
    pub(super) fn dequeue(&self, inner: &mut Inner, task: &Task) {
        task.queued.store(false, Ordering::Relaxed);
        self.queued.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: it is in this heap: `queued` said so, or it was found there.
        unsafe { inner.heap.remove(NonNull::from(task)) };
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

pub(super) static QUEUES: [Restart<RunQueue>; machine::MAX_CPUS] =
    [const { Restart::new(RunQueue::new()) }; machine::MAX_CPUS];

/// Bit per CPU that schedules.
pub(super) static ONLINE: AtomicU64 = AtomicU64::new(0);
/// Bit per CPU that found nothing to run and has not been given anything since.
pub(super) static IDLE: AtomicU64 = AtomicU64::new(0);

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
}
