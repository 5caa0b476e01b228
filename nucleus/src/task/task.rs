//! A task: its state, and what the current one reads of itself.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::{
    any::Any,
    cell::UnsafeCell,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicI8, AtomicU8, AtomicU64, AtomicUsize, Ordering},
};

use sched::debt::Place;
use sched::pairing_heap::{Link, Linked};
use sched::priority::{Priority, TURN};
use sched::run_queue::Runnable;

use super::waiter::Parked;
#[cfg(debug_assertions)]
use crate::lock::lockdep::Held;
use crate::{
    hw::{context::Context, machine},
    mem::KernelStack,
    pmap::PmapRef,
};
#[cfg(debug_assertions)]
use core::panic::Location;

/// On a CPU or in a run queue, or on the way to one.
pub(super) const RUNNABLE: u8 = 0;
/// Asleep until woken.
pub(super) const SLEEPING: u8 = 1;
/// Asleep until woken or interrupted.
pub(super) const SLEEPING_INTERRUPTIBLE: u8 = 2;
/// Has ended.
pub(super) const DEAD: u8 = 3;

/// A kernel thread.
pub struct Task {
    pub(super) name: &'static str,
    pub(super) attachment: Option<Arc<dyn Any + Send + Sync>>,
    pub(super) context: Context,
    /// None for an idle task, which has the stack that its CPU booted on.
    _stack: Option<KernelStack>,
    /// Set to a sleeping state by the task itself, back by its waker [run queue of `cpu`].
    pub(super) state: AtomicU8,
    pub(super) interrupted: AtomicBool,
    /// The CPU whose run queue it is in or was in last [that run queue's lock]; with [`DEPARTED`]
    /// while it moves from there to another one [its mover].
    pub(super) cpu: AtomicUsize,
    pub(super) cpus: AtomicU64,
    pub(super) nice: AtomicI8,
    /// Real-time level, 0 for none; whether it takes turns with others of that level; nanoseconds
    /// of its turn that are over [run queue of `cpu`].
    pub(super) level: AtomicU8,
    pub(super) turns: AtomicBool,
    pub(super) turn_used: AtomicU64,
    /// It asks to let others of its level run; the task's own.
    pub(super) yields: AtomicBool,
    /// Whether it wants to know that it was switched to; and whether it was since it asked last, or
    /// has a debt. The task's own, except that a CPU that switches to it or sets its place sets the
    /// second one.
    pub(super) watches_switches: AtomicBool,
    pub(super) switched: AtomicBool,
    /// How often it gave its CPU up because it had to wait, and how often though it could have gone
    /// on [run queue of `cpu`].
    pub(super) switches: [AtomicU64; 2],
    /// Nanoseconds on a CPU, up to the last switch.
    pub(super) run_time: AtomicU64,
    /// Nanoseconds for which ticks found it in its program, and in the kernel.
    pub(super) sampled: [AtomicU64; 2],
    /// What [`cpu_time`](Task::cpu_time) gave last: neither part goes back.
    pub(super) reported: [AtomicU64; 2],
    /// [run queue of `cpu`]
    link: Link<TaskRef>,
    /// Run time weighed by the nice value, in nanoseconds [run queue of `cpu`; atomic for
    /// `yield_now`].
    pub(super) virtual_time: AtomicU64,
    /// What it has used beyond its virtual time, in nanoseconds: see [`sched::debt`] [run queue of
    /// `cpu`, or the mover of a task that is in no queue].
    pub(super) debt: AtomicU64,
    /// Whether it is in the heap of a run queue [that run queue].
    pub(super) queued: AtomicBool,
    /// Runs when there is nothing else to run; never in a heap.
    pub(super) idle: bool,
    /// The task's own.
    pub(super) pmap: UnsafeCell<Option<PmapRef>>,
    /// The task's own.
    pub(super) body: UnsafeCell<Option<Box<dyn FnOnce() + Send>>>,
    /// What [`user::compat_scratch`](crate::user::compat_scratch) keeps; the task's own.
    compat_scratch: UnsafeCell<Vec<u8>>,
    /// How many are about to wake it and rely on it being there.
    wakers: Wakers,
    /// Its place among those that wait for a sleeping lock: the task's own, unless it is in a list.
    pub(super) parked: Parked,
    /// The reaper's list.
    pub(super) next_dead: UnsafeCell<*const Task>,
    /// The task's own, or of an interrupt handler on top of it.
    #[cfg(debug_assertions)]
    held: UnsafeCell<Held>,
    /// Where it went to sleep last; the task's own.
    #[cfg(debug_assertions)]
    waits_at: UnsafeCell<Option<&'static Location<'static>>>,
}

// SAFETY: what is not atomic or constant is changed by one party at a time, as the fields say: the
// task itself, the holder of a run queue's lock, the reaper.
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

/// Beside the number of a CPU: the task is [on its way](Task::depart) to another one, or back.
pub(super) const DEPARTED: usize = 1 << 31;

/// A handle to a task that is queued, or about to be.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct TaskRef(NonNull<Task>);

impl TaskRef {
    /// A handle to a task.
    ///
    /// # Safety
    /// The task lives as long as the handle and its copies, those in a queue included. The caller
    /// holds the lock of the task's run queue whenever it uses [`link`](Linked::link).
    #[inline]
    pub(super) unsafe fn new(task: &Task) -> TaskRef {
        TaskRef(NonNull::from(task))
    }

    /// The task, which the scheduler's handle keeps alive: a queued task is not dead.
    #[inline]
    pub(super) fn get<'a>(self) -> &'a Task {
        // SAFETY: `new`'s promise.
        unsafe { self.0.as_ref() }
    }
}

impl PartialEq for TaskRef {
    #[inline]
    fn eq(&self, other: &TaskRef) -> bool {
        self.0 == other.0
    }
}

impl Eq for TaskRef {}

impl Linked for TaskRef {
    #[inline]
    fn link(&self) -> &Link<TaskRef> {
        // SAFETY: `new`'s promise.
        unsafe { &self.0.as_ref().link }
    }
}

impl Runnable for TaskRef {
    #[inline]
    fn level(&self) -> u8 {
        self.get().level()
    }

    #[inline]
    fn virtual_time(&self) -> u64 {
        self.get().virtual_time.load(Ordering::Relaxed)
    }

    #[inline]
    fn gives_way(&self) -> bool {
        self.get().gives_way()
    }
}

/// How many are about to wake a task.
struct Wakers(AtomicUsize);

#[cfg(debug_assertions)]
impl Drop for Wakers {
    fn drop(&mut self) {
        assert!(
            *self.0.get_mut() == 0,
            "a task is freed while a waker is about to use it"
        );
    }
}

/// The current task; null before the scheduler runs on this CPU.
#[inline]
pub(crate) fn current_raw() -> *const Task {
    machine::task_pointer() as *const Task
}

/// Whether the scheduler runs here.
pub(crate) fn has_current() -> bool {
    !current_raw().is_null()
}

/// The current task, as long as the caller runs.
pub(super) fn current_ref<'a>() -> Option<&'a Task> {
    // SAFETY: a running task is alive; the reference goes no further than this module's functions,
    // which run in the task.
    unsafe { current_raw().as_ref() }
}

/// The current task.
///
/// # Panics
/// Before the first task.
pub fn current() -> Arc<Task> {
    let task = current_raw();
    assert!(!task.is_null(), "there is no task yet");
    // SAFETY: it comes from `Arc::into_raw`, and the scheduler's handle keeps it alive while it
    // runs, so another handle may be made.
    unsafe {
        Arc::increment_strong_count(task);
        Arc::from_raw(task)
    }
}

/// Runs `f` with the current task's attachment, without touching a reference count.
#[inline]
pub fn with_attachment<R>(f: impl FnOnce(Option<&(dyn Any + Send + Sync)>) -> R) -> R {
    f(current_ref().and_then(|task| task.attachment.as_deref()))
}

/// Whether the current task was [interrupted](Task::interrupt). False before the first task.
#[inline]
pub(crate) fn is_interrupted() -> bool {
    current_ref().is_some_and(|task| task.interrupted.load(Ordering::SeqCst))
}

/// Switches the current task to another address space, or to none (the kernel's own), at once.
pub fn set_pmap(pmap: Option<PmapRef>) {
    let Some(task) = current_ref() else { return };
    let irqs = machine::irqs_disable();
    // SAFETY: the field is the task's own, and with interrupts off the scheduler doesn't look at
    // it.
    let old = unsafe {
        match &pmap {
            Some(pmap) => crate::pmap::activate(Some(pmap)),
            // Not even borrowed: the caller may be about to tear it down.
            None => crate::pmap::leave(),
        }
        ptr::replace(task.pmap.get(), pmap)
    };
    machine::irqs_restore(irqs);
    // With interrupts on: the last handle frees page tables.
    drop(old);
}

/// Runs `f` with the current task's scratch space; `None` before the first task. `f` must not come
/// here again.
pub(crate) fn with_compat_scratch<R>(f: impl FnOnce(&mut Vec<u8>) -> R) -> Option<R> {
    // SAFETY: the field is the task's own, interrupt handlers don't touch it, and this is the only
    // way to it: the reference ends with `f`.
    current_ref().map(|task| f(unsafe { &mut *task.compat_scratch.get() }))
}

/// The current task's list of held locks.
#[cfg(debug_assertions)]
pub(crate) fn held_locks() -> *mut Held {
    current_ref().map_or(ptr::null_mut(), |task| task.held.get())
}

impl Task {
    pub(super) fn new(name: &'static str, context: Context, stack: Option<KernelStack>) -> Task {
        let idle = stack.is_none();
        Task {
            name,
            attachment: None,
            context,
            _stack: stack,
            state: AtomicU8::new(RUNNABLE),
            interrupted: AtomicBool::new(false),
            cpu: AtomicUsize::new(machine::cpu()),
            cpus: AtomicU64::new(u64::MAX),
            nice: AtomicI8::new(0),
            level: AtomicU8::new(0),
            turns: AtomicBool::new(false),
            turn_used: AtomicU64::new(0),
            yields: AtomicBool::new(false),
            watches_switches: AtomicBool::new(false),
            switched: AtomicBool::new(false),
            switches: [const { AtomicU64::new(0) }; 2],
            run_time: AtomicU64::new(0),
            sampled: [const { AtomicU64::new(0) }; 2],
            reported: [const { AtomicU64::new(0) }; 2],
            link: Link::new(),
            virtual_time: AtomicU64::new(0),
            debt: AtomicU64::new(0),
            queued: AtomicBool::new(false),
            idle,
            pmap: UnsafeCell::new(None),
            body: UnsafeCell::new(None),
            compat_scratch: UnsafeCell::new(Vec::new()),
            wakers: Wakers(AtomicUsize::new(0)),
            parked: Parked::new(),
            next_dead: UnsafeCell::new(ptr::null()),
            #[cfg(debug_assertions)]
            held: UnsafeCell::new(Held::new()),
            #[cfg(debug_assertions)]
            waits_at: UnsafeCell::new(None),
        }
    }

    /// The idle task of this CPU, on the stack that it booted on.
    pub(super) fn idle() -> Task {
        Task::new("idle", Context::current_boot(), None)
    }

    /// Keeps the task from being freed until [`unclaim`](Task::unclaim). The caller knows that it
    /// is alive now, and has interrupts off until then.
    pub(super) fn claim(&self) {
        self.wakers.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a [`claim`](Task::claim): the last touch of the task.
    pub(super) fn unclaim(&self) {
        self.wakers.0.fetch_sub(1, Ordering::Release);
    }

    /// Waits until no waker has a [`claim`](Task::claim) on the task, which is dead: no new one
    /// comes, and those that there are end within a few hundred instructions.
    pub(super) fn wait_for_wakers(&self) {
        while self.wakers.0.load(Ordering::Acquire) != 0 {
            machine::spin_hint();
        }
    }

    /// Notes where the current task, which this is, goes to sleep.
    #[cfg(debug_assertions)]
    #[track_caller]
    pub(super) fn note_wait(&self) {
        // SAFETY: the field is the task's own.
        unsafe { *self.waits_at.get() = Some(Location::caller()) };
    }

    /// What it was called at [`spawn`].
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What was attached at [`spawn`].
    pub fn attachment(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.attachment.as_ref()
    }

    /// Takes back an [`interrupt`](Task::interrupt) that has been dealt with.
    pub fn clear_interrupt(&self) {
        self.interrupted.store(false, Ordering::SeqCst);
    }

    /// Whether an [`interrupt`](Task::interrupt) is outstanding.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::SeqCst)
    }

    /// Its level, 0 if it has a share.
    pub(super) fn level(&self) -> u8 {
        self.level.load(Ordering::Relaxed)
    }

    /// Whether its turn among those of its level is over.
    pub(super) fn turn_is_over(&self) -> bool {
        self.turns.load(Ordering::Relaxed) && self.turn_used.load(Ordering::Relaxed) >= TURN
    }

    /// The priority.
    pub fn priority(&self) -> Priority {
        match self.level() {
            0 => Priority::Share(self.nice.load(Ordering::Relaxed)),
            level => Priority::Level {
                level,
                turns: self.turns.load(Ordering::Relaxed),
            },
        }
    }

    /// Stores a priority. The task is in no heap.
    pub(super) fn store_priority(&self, priority: Priority) {
        match priority.clamped() {
            Priority::Share(nice) => {
                self.nice.store(nice, Ordering::Relaxed);
                self.level.store(0, Ordering::Relaxed);
            }
            Priority::Level { level, turns } => {
                self.level.store(level, Ordering::Relaxed);
                self.turns.store(turns, Ordering::Relaxed);
                self.turn_used.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Whether it has less of the CPU than others that compute: a lock that it holds could be held
    /// long.
    pub(super) fn has_small_share(&self) -> bool {
        self.nice.load(Ordering::Relaxed) > 0 && self.level() == 0
    }

    /// Returns its place among others.
    pub(super) fn place(&self) -> Place {
        Place {
            virtual_time: self.virtual_time.load(Ordering::Relaxed),
            debt: self.debt.load(Ordering::Relaxed),
        }
    }

    /// Sets its place. It is in no heap.
    pub(super) fn set_place(&self, place: Place) {
        self.virtual_time
            .store(place.virtual_time, Ordering::Relaxed);
        self.debt.store(place.debt, Ordering::Relaxed);
        if place.debt != 0 {
            // It is looked at on the way to its program, and paid.
            self.switched.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it has had its turn, or has asked to let others of its level run.
    pub(super) fn gives_way(&self) -> bool {
        self.yields.load(Ordering::Relaxed) || self.turn_is_over()
    }

    /// The CPU it runs or last ran on.
    pub fn cpu(&self) -> usize {
        self.cpu.load(Ordering::Relaxed) & !DEPARTED
    }

    /// Begins its move to a run queue, which [`place`](super::placement::place) ends. The caller
    /// holds the lock of the queue that the task belongs to, and keeps interrupts off until then.
    ///
    /// Meanwhile the task is in no queue, and its mover alone changes its CPU and priority: other
    /// CPUs spin in `with_queue_of`, as long as for a spin lock that the mover held. The section
    /// runs with interrupts off, so it is neither preempted nor interrupted. It takes one lock, the
    /// target queue's, which is held for a few steps each time, or across a switch. It allocates
    /// nothing, and waits for no other CPU. It takes the lock again only if the task's affinity has
    /// changed since it chose the target: once for each task that changes it, as these wait for the
    /// arrival. The spinners cannot deadlock with the mover: they hold no run queue's lock.
    pub(super) fn depart(&self) {
        debug_assert!(!machine::irqs_enabled(), "a mover could be preempted");
        let cpu = self.cpu.load(Ordering::Relaxed);
        debug_assert!(cpu & DEPARTED == 0, "a task has two movers");
        self.cpu.store(cpu | DEPARTED, Ordering::Relaxed);
    }

    /// Whether it is on a CPU or a run queue, rather than asleep.
    pub fn is_runnable(&self) -> bool {
        self.state.load(Ordering::Relaxed) == RUNNABLE
    }

    /// Makes the task, the current one, notice when it was switched to: from then on
    /// [`UserContext::run`](crate::trap::UserContext::run) comes back at once until
    /// [`take_switched`](Task::take_switched) has said so. To begin with it was.
    pub fn watch_switches(&self, on: bool) {
        self.watches_switches.store(on, Ordering::Relaxed);
        self.switched.store(on, Ordering::Relaxed);
    }

    /// As if it had been switched to just now, for a task that [watches](Task::watch_switches).
    /// What it runs it leaves at the next interrupt.
    pub fn disturb(&self) {
        if self.watches_switches.load(Ordering::Relaxed) {
            self.switched.store(true, Ordering::SeqCst);
        }
    }

    /// Whether it was switched to since the last time it, the current task, asked.
    #[inline]
    pub fn take_switched(&self) -> bool {
        let switched = self.switched.load(Ordering::Relaxed);
        if switched {
            // A debt is seen, and paid, on the way to its program.
            let owes = self.debt.load(Ordering::Relaxed) != 0;
            self.switched.store(owes, Ordering::Relaxed);
        }
        switched
    }

    /// How often it gave its CPU up because it had to wait, and how often though it could have gone
    /// on.
    pub fn switches(&self) -> [u64; 2] {
        self.switches.each_ref().map(|n| n.load(Ordering::Relaxed))
    }

    /// The CPUs on which it may run.
    pub fn cpus(&self) -> u64 {
        self.cpus.load(Ordering::Relaxed)
    }
}

/// The living tasks, for the reports of the simulated machine.
#[cfg(not(target_os = "none"))]
pub(crate) mod registry {
    use super::*;
    use std::sync::Mutex;

    struct Entry(*const Task);
    // SAFETY: a task is `Sync`, and is removed before it dies.
    unsafe impl Send for Entry {}

    static ALL: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

    fn all() -> std::sync::MutexGuard<'static, Vec<Entry>> {
        ALL.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(in super::super) fn add(task: &Arc<Task>) {
        all().push(Entry(Arc::as_ptr(task)));
    }

    pub(in super::super) fn remove(task: *const Task) {
        all().retain(|entry| !ptr::eq(entry.0, task));
    }

    pub(super) fn clear() {
        all().clear();
    }

    /// The living, except the kernel's own, in a line each.
    pub(crate) fn report() -> Vec<String> {
        all()
            .iter()
            // SAFETY: registered tasks are alive, and nothing runs while the simulation reports.
            .map(|entry| unsafe { &*entry.0 })
            .filter(|task| task.name != "reaper")
            .map(|task| {
                let state = match task.state.load(Ordering::Relaxed) {
                    RUNNABLE => "runnable",
                    SLEEPING => "asleep",
                    SLEEPING_INTERRUPTIBLE => "asleep, interruptible",
                    _ => "dead",
                };
                // SAFETY: nothing runs while the simulation reports.
                #[cfg(debug_assertions)]
                let place = unsafe { *task.waits_at.get() }
                    .filter(|_| state != "runnable")
                    .map_or(String::new(), |at| format!(" at {at}"));
                #[cfg(not(debug_assertions))]
                let place = "";
                format!("{} ({state}{place}, CPU {})", task.name, task.cpu())
            })
            .collect()
    }
}

/// Forgets all tasks, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    registry::clear();
}
