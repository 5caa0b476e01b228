//! Who runs where, and for how long.
//!
//! Each CPU has a run queue ordered by *virtual time*: the time a task has run, weighed by its nice value. The task
//! that is furthest behind runs next, so all get their share; one that has slept is behind, but by no more than
//! [`SLEEPER_CREDIT`], so it gets the CPU soon and can't hoard. `floor` is the least virtual time in the queue, never going
//! back; a task that changes CPUs keeps its distance from the floor.
//!
//! A CPU that has nothing to do takes a task from another, or sleeps until an interrupt; its bit is set in
//! [`IDLE`] then, and who wakes a task looks there first. A CPU with work has a tick,
//! a hundred times a second, which ends time slices and evens out the queues.
//!
//! # Locking
//!
//! A run queue's lock is held, with interrupts off, *across* the switch: the next task gives it back in
//! [`finish_switch`]. So whoever holds the lock and finds that a task is not `current` knows that
//! its registers are saved. A task belongs to the queue that its `cpu` names. When it moves, it is out
//! of the old heap before its `cpu` changes under the new one's lock; between, it is runnable, in no
//! heap and on no CPU, and only the mover touches it. Two run queues are never locked at once.

use alloc::{boxed::Box, sync::Arc};
use core::{
    cell::UnsafeCell,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    time::Duration,
};

use super::{
    Task, reaper,
    task::{self, DEAD, RUNNABLE, SLEEPING, SLEEPING_INTERRUPTIBLE, current_raw, current_ref},
};
use crate::{
    arch::machine::{self, Context},
    counters::Counter,
    pairing::PairingHeap,
    sync::{Rank, RawSpin, held},
    time,
};

/// Between two ticks, in nanoseconds; also the time slice where more than one task is in the queue.
const TICK: u64 = 1_000_000_000 / time::TICKS_PER_SECOND as u64;

/// How far behind the others a task may be when it wakes up, in nanoseconds: enough to run at once before tasks that
/// compute, less than a slice, so that many wake-ups in a row don't starve them.
const SLEEPER_CREDIT: u64 = 6_000_000;

/// How far behind the running task one must be to take its CPU at once, in nanoseconds. Below it the switches
/// would cost more than the wait: a pipeline's stages would alternate at every write.
const WAKE_GRANULARITY: u64 = 1_000_000;

/// How many queued tasks a CPU looks at for one that it may take.
const STEAL_SCAN: usize = 16;

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
struct RunQueue {
    lock: RawSpin,
    /// `lock`
    inner: UnsafeCell<Inner>,
    /// Tasks in the heap [written under `lock`].
    queued: AtomicUsize,
    /// See the top of this file [written under `lock`].
    floor: AtomicU64,
}

struct Inner {
    heap: PairingHeap<Task>,
    /// Who runs; null before this CPU schedules.
    current: *const Task,
    idle: *const Task,
    /// When `current` was last charged for its time, nanoseconds since boot.
    charged_at: u64,
    /// Nanoseconds in which there was nothing to run, and in which there was.
    idle_time: u64,
    busy_time: u64,
    /// Ticks that found a program running, and the kernel.
    program_ticks: u64,
    kernel_ticks: u64,
    /// Whether `current` has been asked to give way and has not yet.
    kicked: bool,
    /// Who was switched away from and must not go into this heap: dead, or not allowed here.
    leaving: *const Task,
}

// SAFETY: `inner` is reached with `lock` held only, and its pointers are to tasks that the scheduler's handles
// keep alive.
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
                program_ticks: 0,
                kernel_ticks: 0,
                kicked: false,
                leaving: ptr::null(),
            }),
            queued: AtomicUsize::new(0),
            floor: AtomicU64::new(0),
        }
    }

    /// Takes the lock. Interrupts are off.
    #[allow(clippy::mut_from_ref)]
    fn lock(&self) -> &mut Inner {
        debug_assert!(!machine::irqs_enabled());
        held::check(Rank::RunQueue, &raw const self.lock as usize);
        self.lock.lock();
        // SAFETY: the lock is held; callers drop the reference before they unlock.
        unsafe { &mut *self.inner.get() }
    }

    fn unlock(&self) {
        self.lock.unlock();
    }

    /// Puts a task into the heap. Locked.
    fn enqueue(&self, inner: &mut Inner, task: &Task) {
        debug_assert!(!task.queued.load(Ordering::Relaxed));
        task.queued.store(true, Ordering::Relaxed);
        self.queued.fetch_add(1, Ordering::SeqCst);
        let key = task.virtual_time.load(Ordering::Relaxed);
        // SAFETY: it was in no heap; the scheduler's handle keeps it alive until it is dead, and a
        // dead task is in no heap.
        unsafe { inner.heap.insert(NonNull::from(task), key) };
    }

    /// Takes a task out of the heap. Locked.
    fn dequeue(&self, inner: &mut Inner, task: &Task) {
        task.queued.store(false, Ordering::Relaxed);
        self.queued.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: it is in this heap: `queued` said so, or it was found there.
        unsafe { inner.heap.remove(NonNull::from(task)) };
    }

    /// Adds the time since the last charge to the running task. Locked.
    fn charge(&self, inner: &mut Inner, now: u64) {
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

static QUEUES: [RunQueue; machine::MAX_CPUS] = [const { RunQueue::new() }; machine::MAX_CPUS];

/// Bit per CPU that schedules.
static ONLINE: AtomicU64 = AtomicU64::new(0);
/// Bit per CPU that found nothing to run and has not been given anything since.
static IDLE: AtomicU64 = AtomicU64::new(0);

/// The number of CPUs running, 1 to 16.
pub fn cpu_count() -> usize {
    machine::cpu_count()
}

/// Time that a CPU, below [`cpu_count`], has spent in programs, in the kernel, and without anything to run. The sum of
/// the first two is exact; the ticks say how it is divided.
pub fn cpu_times(cpu: usize) -> [Duration; 3] {
    let irqs = machine::irqs_disable();
    let queue = &QUEUES[cpu];
    let inner = queue.lock();
    queue.charge(inner, machine::nanoseconds());
    let (idle, busy) = (inner.idle_time, inner.busy_time);
    let (program, ticks) = (
        inner.program_ticks,
        inner.program_ticks + inner.kernel_ticks,
    );
    queue.unlock();
    machine::irqs_restore(irqs);
    let in_program = match ticks {
        0 => busy,
        _ => (busy as u128 * program as u128 / ticks as u128) as u64,
    };
    [in_program, busy - in_program, idle].map(Duration::from_nanos)
}

/// The CPU this runs on; it may be another one by the time the caller looks at the answer.
pub fn cpu() -> usize {
    machine::cpu()
}

/// Lets others run.
pub fn yield_now() {
    held::may_sleep();
    let Some(task) = current_ref() else { return };
    let irqs = machine::irqs_disable();
    let queue = &QUEUES[machine::cpu()];
    let inner = queue.lock();
    queue.charge(inner, machine::nanoseconds());
    if let Some(first) = inner.heap.first_key() {
        task.virtual_time.fetch_max(first + 1, Ordering::Relaxed);
    }
    queue.unlock();
    schedule();
    machine::irqs_restore(irqs);
}

/// Runs another task if one was wanted, unless preemption is disabled. At the end of an interrupt
/// handler, and where preemption is enabled again. Gives back the interrupt flag as it found it.
#[inline]
pub(crate) fn preempt() {
    if machine::reschedule_wanted() {
        reschedule();
    }
}

#[cold]
fn reschedule() {
    if machine::preempt_count() != 0 || current_raw().is_null() {
        return;
    }
    let irqs = machine::irqs_disable();
    while machine::reschedule_wanted() {
        schedule();
    }
    machine::irqs_restore(irqs);
}

/// Another CPU wants this one to reschedule, or to leave its program. Interrupts off.
pub(crate) fn on_reschedule() {
    machine::set_reschedule(true);
}

/// Puts the current task to sleep unless `awake` holds. May return for no reason: callers look at what they wait for again.
///
/// The state is set before `awake` looks, and who makes it true wakes after that: one of the two sees the other.
pub(crate) fn block(interruptible: bool, awake: impl FnOnce() -> bool) {
    let Some(task) = current_ref() else {
        panic!("nothing can sleep before the first task");
    };
    let irqs = machine::irqs_disable();
    let asleep = if interruptible {
        SLEEPING_INTERRUPTIBLE
    } else {
        SLEEPING
    };
    task.state.store(asleep, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    machine::point();
    if awake() || interruptible && task.is_interrupted() {
        // A waker that gets in between finds the task running here and changes nothing else.
        task.state.store(RUNNABLE, Ordering::SeqCst);
    } else {
        schedule();
    }
    machine::irqs_restore(irqs);
}

/// Makes a sleeping task runnable; one that sleeps soundly only without `interrupting`. Any
/// context. Returns whether it slept.
pub(crate) fn wake(task: &Task, interrupting: bool) -> bool {
    let sleeps = |task: &Task| {
        let state = task.state.load(Ordering::SeqCst);
        state == SLEEPING_INTERRUPTIBLE || state == SLEEPING && !interrupting
    };
    fence(Ordering::SeqCst);
    if !sleeps(task) {
        return false;
    }
    let irqs = machine::irqs_disable();
    let woke = with_queue_of(task, |_, inner| {
        if !sleeps(task) {
            return None;
        }
        task.state.store(RUNNABLE, Ordering::SeqCst);
        // Not yet switched away: it goes on by itself.
        Some(!ptr::eq(inner.current, task))
    });
    if woke == Some(true) {
        place(task, true);
    }
    machine::irqs_restore(irqs);
    woke.is_some()
}

/// Runs `f` with the run queue locked that the task belongs to. Interrupts off.
fn with_queue_of<R>(task: &Task, f: impl FnOnce(&RunQueue, &mut Inner) -> R) -> R {
    loop {
        let cpu = task.cpu.load(Ordering::SeqCst);
        let queue = &QUEUES[cpu];
        let inner = queue.lock();
        if task.cpu.load(Ordering::SeqCst) == cpu {
            let result = f(queue, inner);
            queue.unlock();
            return result;
        }
        queue.unlock();
    }
}

/// The CPUs that `task` may run on; all, if none of those runs.
fn allowed(task: &Task) -> u64 {
    let online = ONLINE.load(Ordering::Relaxed);
    match task.cpus.load(Ordering::SeqCst) & online {
        0 => online,
        some => some,
    }
}

/// A CPU for a task that becomes runnable: its last one if that is idle, for its caches; then any idle one; then
/// the last one again, or the least loaded of those it may use.
fn choose(task: &Task) -> usize {
    let allowed = allowed(task);
    let last = task.cpu.load(Ordering::Relaxed);
    let here = machine::cpu();
    loop {
        let idle = IDLE.load(Ordering::SeqCst) & allowed;
        if idle == 0 {
            break;
        }
        let cpu = if idle & 1 << last != 0 {
            last
        } else if idle & 1 << here != 0 {
            here
        } else {
            idle.trailing_zeros() as usize
        };
        // Who clears the bit has it; the next waker chooses another one.
        if IDLE.fetch_and(!(1 << cpu), Ordering::SeqCst) & 1 << cpu != 0 {
            return cpu;
        }
    }
    let load = |cpu: usize| QUEUES[cpu].queued.load(Ordering::Relaxed);
    let least = (0..machine::MAX_CPUS)
        .filter(|cpu| allowed & 1 << cpu != 0)
        .min_by_key(|&cpu| load(cpu))
        .unwrap_or(here);
    if allowed & 1 << last != 0 && load(last) <= load(least) + 1 {
        last
    } else {
        least
    }
}

/// Puts a runnable task that is in no heap and on no CPU into a run queue, and tells that CPU if it should look. Interrupts off.
fn place(task: &Task, waking: bool) {
    loop {
        let target = choose(task);
        let from = &QUEUES[task.cpu.load(Ordering::Relaxed)];
        let queue = &QUEUES[target];
        let from_floor = from.floor.load(Ordering::Relaxed);
        let inner = queue.lock();
        if allowed(task) & 1 << target == 0 {
            queue.unlock();
            continue;
        }
        let floor = queue.floor.load(Ordering::Relaxed);
        let mut virtual_time = task
            .virtual_time
            .load(Ordering::Relaxed)
            .wrapping_add(floor.wrapping_sub(from_floor));
        if ptr::eq(from, queue) {
            virtual_time = task.virtual_time.load(Ordering::Relaxed);
        }
        let least = if waking {
            floor.saturating_sub(SLEEPER_CREDIT)
        } else {
            floor
        };
        // Below the floor by more than the credit, or so far above that it must have wrapped.
        if virtual_time < least || virtual_time > floor + (1 << 62) {
            virtual_time = least;
        }
        task.virtual_time.store(virtual_time, Ordering::Relaxed);
        task.cpu.store(target, Ordering::SeqCst);
        queue.enqueue(inner, task);
        let kick = !inner.kicked && {
            queue.charge(inner, machine::nanoseconds());
            // SAFETY: the running task is alive.
            let current = unsafe { &*inner.current };
            current.idle
                || virtual_time + WAKE_GRANULARITY < current.virtual_time.load(Ordering::Relaxed)
        };
        inner.kicked |= kick;
        queue.unlock();
        if kick {
            if target == machine::cpu() {
                machine::set_reschedule(true);
            } else {
                Counter::ipi_reschedule.add(1);
                machine::send_reschedule(target);
            }
        }
        return;
    }
}

/// Makes the CPU that runs `task`, if another one does, take an interrupt, so that it leaves its program.
pub(super) fn poke(task: &Task) {
    let irqs = machine::irqs_disable();
    let cpu = with_queue_of(task, |_, inner| {
        ptr::eq(inner.current, task).then(|| task.cpu.load(Ordering::Relaxed))
    });
    if let Some(cpu) = cpu
        && cpu != machine::cpu()
    {
        Counter::ipi_reschedule.add(1);
        machine::send_reschedule(cpu);
    }
    machine::irqs_restore(irqs);
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

/// Moves the task to a CPU that it may use, now or, if it is running, as soon as it gives way.
pub(super) fn obey_affinity(task: &Task) {
    let irqs = machine::irqs_disable();
    let mut to_poke = false;
    let moved = with_queue_of(task, |queue, inner| {
        let cpu = task.cpu.load(Ordering::Relaxed);
        if allowed(task) & 1 << cpu != 0 {
            return false;
        }
        to_poke = ptr::eq(inner.current, task);
        let queued = task.queued.load(Ordering::Relaxed);
        if queued {
            queue.dequeue(inner, task);
        }
        queued
    });
    if moved {
        place(task, false);
    }
    machine::irqs_restore(irqs);
    if to_poke {
        if ptr::eq(task, current_raw()) {
            machine::set_reschedule(true);
            preempt();
        } else {
            poke(task);
        }
    }
}

/// Gives a new task its first CPU.
pub(super) fn start(task: Arc<Task>) {
    let irqs = machine::irqs_disable();
    // The scheduler's handle, given back by the reaper.
    let task = Arc::into_raw(task);
    // SAFETY: that handle keeps it alive.
    let task = unsafe { &*task };
    let floor = QUEUES[task.cpu()].floor.load(Ordering::Relaxed);
    task.virtual_time.store(floor, Ordering::Relaxed);
    place(task, false);
    machine::irqs_restore(irqs);
}

/// Ends the current task, whose stack is given back later.
pub(super) fn leave_for_ever() -> ! {
    machine::irqs_disable();
    if let Some(task) = current_ref() {
        task.state.store(DEAD, Ordering::SeqCst);
    }
    schedule();
    unreachable!("a dead task was run");
}

/// Switches to the task that is to run now, which may be the current one. Interrupts off,
/// preemption not disabled. Returns when the current task runs again.
fn schedule() {
    debug_assert!(
        machine::preempt_count() == 0,
        "a task is switched away from while it holds a spin lock"
    );
    let cpu = machine::cpu();
    let queue = &QUEUES[cpu];
    machine::set_reschedule(false);
    let mut inner = queue.lock();
    inner.kicked = false;
    let now = machine::nanoseconds();
    queue.charge(inner, now);
    // SAFETY: the running task, this one, is alive.
    let previous = unsafe { &*inner.current };
    let stays = previous.state.load(Ordering::SeqCst) == RUNNABLE && !previous.idle;
    let here = 1 << cpu;
    // Tasks that were forbidden this CPU while they were on their way to it.
    while let Some(first) = inner.heap.first() {
        // SAFETY: it is in the heap, hence alive.
        let first = unsafe { first.as_ref() };
        if allowed(first) & here != 0 {
            break;
        }
        queue.dequeue(inner, first);
        queue.unlock();
        place(first, false);
        inner = queue.lock();
    }
    let may_stay = stays && allowed(previous) & here != 0;
    let behind = match inner.heap.first_key() {
        Some(first) => !may_stay || first <= previous.virtual_time.load(Ordering::Relaxed),
        None => false,
    };
    let next = if may_stay && !behind {
        previous
    } else if behind && let Some(first) = inner.heap.first() {
        // SAFETY: it is in the heap, hence alive.
        let first = unsafe { first.as_ref() };
        queue.dequeue(inner, first);
        first
    } else {
        // SAFETY: idle tasks live as long as the machine.
        unsafe { &*inner.idle }
    };
    if ptr::eq(next, previous) {
        queue.unlock();
        return;
    }
    if may_stay {
        queue.enqueue(inner, previous);
    } else if stays || previous.state.load(Ordering::SeqCst) == DEAD {
        inner.leaving = previous;
    }
    if previous.idle {
        IDLE.fetch_and(!here, Ordering::SeqCst);
    }
    inner.current = next;
    if !next.idle && !time::has_tick() {
        time::set_tick(now + TICK);
    }
    Counter::task_switches.add(1);
    machine::set_task_pointer(ptr::from_ref(next) as usize);
    // A task without a program, the idle task above all, borrows the space it finds.
    // SAFETY: the field is the next task's own, which does not run yet.
    crate::pmap::activate(unsafe { (*next.pmap.get()).as_ref() });
    // SAFETY: both are contexts of tasks that the scheduler's handles keep alive; `next` is not running anywhere, since it
    // was in this heap or is this CPU's idle task, and its registers are saved, since the lock of the queue
    // that it ran on last has been given back. Interrupts are off.
    unsafe { Context::switch(&previous.context, &next.context) };
    finish_switch();
}

/// The first thing that a task does when it has been switched to: what the previous one could not do any more. Interrupts off.
pub(super) fn finish_switch() {
    let queue = &QUEUES[machine::cpu()];
    // SAFETY: the lock was taken by the task that was switched away from on this CPU.
    let leaving = unsafe { ptr::replace(&raw mut (*queue.inner.get()).leaving, ptr::null()) };
    queue.unlock();
    // SAFETY: the scheduler's handle keeps it alive.
    if let Some(task) = unsafe { leaving.as_ref() } {
        if task.state.load(Ordering::SeqCst) == DEAD {
            reaper::bury(task);
        } else {
            place(task, false);
        }
    }
}

/// The tick of a CPU. Interrupts off. Gives the time of the next one, nothing if the CPU is idle.
pub(crate) fn tick(now: u64, in_program: bool) -> Option<u64> {
    let cpu = machine::cpu();
    let queue = &QUEUES[cpu];
    let inner = queue.lock();
    queue.charge(inner, now);
    // SAFETY: the running task is alive.
    let current = unsafe { &*inner.current };
    let waiting = queue.queued.load(Ordering::Relaxed);
    let behind = inner
        .heap
        .first_key()
        .is_some_and(|first| first <= current.virtual_time.load(Ordering::Relaxed));
    if !current.idle {
        if in_program {
            inner.program_ticks += 1;
        } else {
            inner.kernel_ticks += 1;
        }
    }
    queue.unlock();
    if behind {
        machine::set_reschedule(true);
    }
    if current.idle {
        return None;
    }
    let ticks = if in_program {
        &current.program_ticks
    } else {
        &current.kernel_ticks
    };
    ticks.fetch_add(1, Ordering::Relaxed);
    if waiting > 0 {
        // Someone waits here while a CPU sleeps: it will come and take one.
        let idle = IDLE.load(Ordering::Relaxed);
        if idle != 0 {
            let sleeper = idle.trailing_zeros() as usize;
            Counter::ipi_reschedule.add(1);
            machine::send_reschedule(sleeper);
        }
    }
    if let Some(task) = steal(cpu, waiting + 2) {
        take_over(cpu, task);
    }
    Some(now + TICK)
}

/// Takes a task that may run on `cpu` out of another's queue that holds at least `enough`, the longest first. Interrupts off.
fn steal(cpu: usize, enough: usize) -> Option<&'static Task> {
    let (victim, waiting) = (0..machine::cpu_count())
        .filter(|&other| other != cpu)
        .map(|other| (other, QUEUES[other].queued.load(Ordering::SeqCst)))
        .max_by_key(|&(_, waiting)| waiting)?;
    if waiting < enough {
        return None;
    }
    let queue = &QUEUES[victim];
    let inner = queue.lock();
    let found = inner
        .heap
        .find(STEAL_SCAN, |task| allowed(task) & 1 << cpu != 0);
    let task = found.map(|task| {
        // SAFETY: it is in the heap, hence alive, and the scheduler's handle keeps it so.
        let task = unsafe { task.as_ref() };
        queue.dequeue(inner, task);
        task
    });
    queue.unlock();
    task
}

/// Puts a stolen task into the queue of this CPU. Interrupts off.
fn take_over(cpu: usize, task: &Task) {
    let from_floor = QUEUES[task.cpu.load(Ordering::Relaxed)]
        .floor
        .load(Ordering::Relaxed);
    let queue = &QUEUES[cpu];
    let inner = queue.lock();
    let behind = task
        .virtual_time
        .load(Ordering::Relaxed)
        .saturating_sub(from_floor);
    let floor = queue.floor.load(Ordering::Relaxed);
    task.virtual_time.store(floor + behind, Ordering::Relaxed);
    task.cpu.store(cpu, Ordering::SeqCst);
    queue.enqueue(inner, task);
    queue.unlock();
}

/// Makes this CPU schedule, with the current stack as its idle task's.
fn join() {
    machine::irqs_disable();
    let cpu = machine::cpu();
    let idle = Arc::into_raw(Arc::new(Task::idle()));
    let queue = &QUEUES[cpu];
    let inner = queue.lock();
    inner.current = idle;
    inner.idle = idle;
    inner.charged_at = machine::nanoseconds();
    queue.unlock();
    machine::set_task_pointer(idle as usize);
    ONLINE.fetch_or(1 << cpu, Ordering::SeqCst);
}

/// Starts the scheduler on the CPU that booted, with `main` as the first task.
pub(crate) fn run_boot_cpu(main: Box<dyn FnOnce() + Send>) -> ! {
    join();
    reaper::start();
    let spawn = task::Spawn {
        name: "main",
        pmap: None,
        attachment: None,
        cpus: u64::MAX,
    };
    let main = Box::new(|| {
        // A task may be restricted to any CPU from the start.
        while (ONLINE.load(Ordering::SeqCst).count_ones() as usize) < machine::cpu_count() {
            yield_now();
        }
        main();
    });
    task::spawn(spawn, main).expect("memory for the first tasks");
    idle()
}

/// Starts the scheduler on another CPU.
pub(crate) fn run_on_this_cpu() -> ! {
    join();
    idle()
}

/// What a CPU does when there is nothing to do. The interrupt that ends its sleep reschedules on its way
/// out, so the loop goes round when all work is done again.
fn idle() -> ! {
    let cpu = machine::cpu();
    let queue = &QUEUES[cpu];
    loop {
        machine::irqs_disable();
        if queue.queued.load(Ordering::SeqCst) == 0
            && let Some(task) = steal(cpu, 1)
        {
            take_over(cpu, task);
        }
        if queue.queued.load(Ordering::SeqCst) != 0 {
            schedule();
            continue;
        }
        // Who enqueues looks at `IDLE` after, and this looks at the queue after: one sees the other. The
        // interrupt that it sends then ends the wait, even if it comes before it.
        IDLE.fetch_or(1 << cpu, Ordering::SeqCst);
        machine::point();
        if queue.queued.load(Ordering::SeqCst) == 0 && !machine::reschedule_wanted() {
            machine::wait_for_interrupt();
        }
        IDLE.fetch_and(!(1 << cpu), Ordering::SeqCst);
        machine::irqs_restore(true);
        preempt();
    }
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
            (queue as *const RunQueue).cast_mut().write(RunQueue::new());
        }
    }
    ONLINE.store(0, Ordering::SeqCst);
    IDLE.store(0, Ordering::SeqCst);
}
