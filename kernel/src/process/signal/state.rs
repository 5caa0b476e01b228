//! The signal state of a process and of a thread.

use alloc::{sync::Arc, vec::Vec};
use core::{
    ops::ControlFlow::{self, Break, Continue},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    sync::{SpinGuard, SpinLock},
    task::{Task, WaitQueue},
};

use super::{Actions, Queue, SignalSet, action::ChildRules, queue::Removed};
use crate::process::{Pid, Thread};

/// How many threads are looked at with the lock of their process's signals held.
pub(super) const AT_ONCE: usize = 64;
/// How many threads drop signals with the lock held.
const FEW: usize = 8;
/// The sets of signals that undo each other, of standard signals only.
const OPPOSITES: [SignalSet; 2] = [SignalSet::STOPS, SignalSet::one(raw::SIGCONT)];
/// The places of the two sets in [`OPPOSITES`].
const STOPS: usize = 0;
const CONTINUE: usize = 1;

/// Why all threads of a process, or all but one, shall end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The process ends with this wait status.
    Exit(i32),
    /// The thread with this id replaces the program and is to be the only one.
    Exec(Pid),
}

/// A process's signals, threads, stop and end.
pub struct ProcessSignals {
    state: SpinLock<SignalState>,
    /// How often each of [`OPPOSITES`] was dropped; written with the lock of `state` held.
    undone: [AtomicU64; OPPOSITES.len()],
    /// Stopped threads sleep here.
    pub(super) resume: WaitQueue,
    /// Woken when a thread has ended.
    pub(super) gone: WaitQueue,
    /// Woken when a signal has become pending, for readers of signals.
    pub arrivals: Arc<WaitQueue>,
}

/// Guarded by the process's signal lock.
pub(super) struct SignalState {
    pub pending: Queue,
    pub actions: Arc<Actions>,
    /// By rising id.
    pub threads: Vec<Arc<Thread>>,
    pub ending: Option<Ending>,
    /// The signal that stopped the process, or is about to.
    pub stop: Option<u32>,
    /// Threads that sleep because of `stop`.
    pub parked: usize,
    /// A stop signal was taken and nothing that undoes it has come since.
    pub stop_taken: bool,
    /// The parent is to hear that the process goes on.
    pub tell_continued: bool,
    /// Deadly signals without a handler are dropped: the first process.
    pub unkillable: bool,
    /// The wait status of the leader, if it ended before the others.
    pub leader_status: i32,
}

/// A thread's signals.
pub struct ThreadSignals {
    /// Blocked signals. Written by the thread itself, with the process's signal lock held.
    mask: AtomicU64,
    /// Signals that `sigtimedwait` takes although they are blocked.
    waiting: AtomicU64,
    /// The mask to go back to after a call with a temporary one.
    saved: AtomicU64,
    has_saved: AtomicBool,
    /// Something may have to be done before the thread returns to its program.
    attention: AtomicBool,
    /// The thread has woken a file whose owner wants a signal.
    woken_file: AtomicBool,
    pub(super) inner: SpinLock<ThreadState>,
}

/// Guarded by the thread's own lock, inside its process's.
pub(super) struct ThreadState {
    pub pending: Queue,
    /// Those of the process's `undone` that `pending` reflects.
    undone: [u64; OPPOSITES.len()],
    pub task: Option<Arc<Task>>,
}

impl ThreadState {
    /// Drops the signals that were undone since they came.
    #[cold]
    fn drop_undone(&mut self, now: [u64; OPPOSITES.len()]) {
        for ((seen, now), set) in self.undone.iter_mut().zip(now).zip(OPPOSITES) {
            if core::mem::replace(seen, now) != now {
                // As many as in `ProcessSignals::undo`.
                drop(self.pending.remove(set));
            }
        }
    }
}

impl ProcessSignals {
    /// Nothing pending, no threads yet.
    pub fn new(actions: Arc<Actions>, unkillable: bool) -> ProcessSignals {
        ProcessSignals {
            state: SpinLock::new(
                crate::rank::SIGNALS,
                SignalState {
                    pending: Queue::default(),
                    actions,
                    threads: Vec::new(),
                    ending: None,
                    stop: None,
                    parked: 0,
                    stop_taken: false,
                    tell_continued: false,
                    unkillable,
                    leader_status: 0,
                },
            ),
            undone: Default::default(),
            resume: WaitQueue::default(),
            gone: WaitQueue::default(),
            arrivals: Arc::new(WaitQueue::default()),
        }
    }

    pub(super) fn lock(&self) -> SpinGuard<'_, SignalState> {
        #[cfg(test)]
        looks::begin();
        self.state.lock()
    }

    pub fn actions(&self) -> Arc<Actions> {
        self.lock().actions.clone()
    }

    /// Returns the rules for the signals and zombies of children.
    pub fn child_rules(&self) -> ChildRules {
        self.lock().actions.child_rules()
    }

    /// Gives the process actions that it shares with no other (`execve`).
    pub fn own_actions(&self) {
        let mut state = self.lock();
        if Arc::strong_count(&state.actions) > 1 {
            state.actions = state.actions.duplicate(false);
        }
        state.actions.reset();
    }

    /// Sets the action of `signal`, if there is a new one, and returns the old one. What is pending
    /// and would now be ignored is dropped; its timers are to [hear](super::timer::dropped) of it.
    pub fn set_action(&self, signal: u32, new: Option<super::Action>) -> super::Action {
        let state = self.lock();
        let Some(new) = new else {
            return state.actions.get(signal);
        };
        let old = state.actions.set(signal, new);
        if new.ignores(signal) {
            self.forget(state, SignalSet::one(signal));
        }
        old
    }

    /// Drops pending signals of the process and all its threads, a few threads at a time with the
    /// lock held. Their timers are to [hear](super::timer::dropped) of it.
    pub(super) fn forget(&self, state: SpinGuard<'_, SignalState>, set: SignalSet) {
        let is_free = |queue: &Queue| queue.set().and(set).is_empty();
        let is_done = state.threads.len() <= FEW
            && is_free(&state.pending)
            && state
                .threads
                .iter()
                .all(|thread| is_free(&thread.lock_signals().pending));
        if !is_done {
            self.forget_pending(state, set);
        }
    }

    #[cold]
    fn forget_pending(&self, mut state: SpinGuard<'_, SignalState>, set: SignalSet) {
        let removed = state.pending.remove(set);
        drop(state);
        drop(removed);
        let mut last = None;
        loop {
            let mut removed: [Removed; FEW] = Default::default();
            let state = self.lock();
            let start = last.map_or(0, |last| {
                state.threads.partition_point(|it| it.tid() <= last)
            });
            let rest = &state.threads[start..];
            for (thread, removed) in rest.iter().zip(&mut removed) {
                *removed = thread.lock_signals().pending.remove(set);
                last = Some(thread.tid());
            }
            let is_last = rest.len() <= removed.len();
            drop(state);
            if is_last {
                return;
            }
        }
    }

    /// Drops the pending signals of the process and all its threads that `signal` undoes (job
    /// control), whatever becomes of itself, and returns their set. Threads drop theirs when their
    /// signals are next [locked](Thread::lock_signals). Timers are to
    /// [hear](super::timer::dropped) of it.
    pub(super) fn undo(&self, state: &mut SignalState, signal: u32) -> SignalSet {
        let undone = match signal {
            raw::SIGCONT => STOPS,
            signal if SignalSet::STOPS.has(signal) => CONTINUE,
            _ => return SignalSet::EMPTY,
        };
        // One of each, and one for each timer of the process that sends it.
        drop(state.pending.remove(OPPOSITES[undone]));
        self.undone[undone].fetch_add(1, Relaxed);
        OPPOSITES[undone]
    }

    /// Returns the signals pending for the process as a whole.
    pub fn pending(&self) -> SignalSet {
        self.lock().pending.set()
    }

    /// How many threads have not ended.
    pub fn thread_count(&self) -> usize {
        self.lock().threads.len()
    }

    /// Calls `f` with the thread of this id, or else the first one, with the lock held.
    pub fn with_thread_or_first<T>(&self, id: Pid, f: impl FnOnce(&Arc<Thread>) -> T) -> Option<T> {
        let state = self.lock();
        let place = state.threads.partition_point(|it| it.tid() < id);
        let named = state.threads.get(place).filter(|it| it.tid() == id);
        named.or_else(|| state.threads.first()).map(f)
    }

    /// Visits the threads whose ids are above `last`, by rising id, without memory of its own. One
    /// that comes or goes meanwhile may be seen or not.
    pub fn threads_after(&self, mut last: Pid) -> impl Iterator<Item = Arc<Thread>> {
        core::iter::from_fn(move || {
            let state = self.lock();
            let place = state.threads.partition_point(|it| it.tid() <= last);
            let thread = state.threads.get(place)?;
            last = thread.tid();
            Some(thread.clone())
        })
    }

    /// Whether the process is to end; a killed one has no business sleeping on.
    pub fn ending(&self) -> Option<Ending> {
        self.lock().ending
    }

    /// The signal that stops the process, once every thread has stopped.
    pub fn stopped(&self) -> Option<u32> {
        let state = self.lock();
        state.stop.filter(|_| state.parked == state.threads.len())
    }

    /// Adds a thread, which may call what `maker` may. May sleep.
    ///
    /// # Errors
    /// `EAGAIN` if the process is ending, `ENOMEM`.
    pub fn add_thread(&self, thread: Arc<Thread>, maker: Option<&Thread>) -> Result<()> {
        let _restricting = maker.map(|maker| maker.process().restricting.lock());
        let mut state = self.lock();
        if state.ending.is_some() {
            return Err(Errno::EAGAIN);
        }
        state.threads.try_reserve(1)?;
        if state.stop.is_some() || !state.pending.set().is_empty() {
            thread.signals.call_attention();
        }
        if let Some(maker) = maker {
            thread.seccomp.inherit(&maker.seccomp);
        }
        thread.process().charge_thread();
        let place = state.threads.partition_point(|it| it.tid() < thread.tid());
        state.threads.insert(place, thread);
        Ok(())
    }

    /// Ends the process with a wait status, unless it is ending already.
    pub fn end(&self, status: i32) {
        self.begin_end(self.lock(), status);
    }

    pub(super) fn begin_end(&self, mut state: SpinGuard<'_, SignalState>, status: i32) {
        if !matches!(state.ending, Some(Ending::Exit(_))) {
            state.ending = Some(Ending::Exit(status));
            state.stop = None;
            self.notify_others(state, None, |_| true);
            self.resume.wake_all();
            self.gone.wake_all();
        }
    }

    /// Visits the threads by rising id until `visit` breaks, a few at a time with the lock held.
    /// A thread that is added or removed meanwhile is visited or not.
    fn visit<'a>(
        &'a self,
        mut state: SpinGuard<'a, SignalState>,
        mut visit: impl FnMut(&Thread) -> ControlFlow<()>,
    ) {
        let mut start = 0;
        loop {
            let rest = &state.threads[start..];
            let some = &rest[..rest.len().min(AT_ONCE)];
            if some.iter().try_for_each(|thread| visit(thread)).is_break() {
                return;
            }
            let last = match some.last() {
                Some(last) if some.len() < rest.len() => last.tid(),
                _ => return,
            };
            drop(state);
            state = self.lock();
            start = state.threads.partition_point(|it| it.tid() <= last);
        }
    }

    /// Notifies all threads but `except` that are `wanted`. The caller has noted in the state why,
    /// so that none that is added meanwhile need be notified.
    pub(super) fn notify_others<'a>(
        &'a self,
        state: SpinGuard<'a, SignalState>,
        except: Option<&Thread>,
        wanted: impl Fn(&Thread) -> bool,
    ) {
        self.visit(state, |thread| {
            if except.is_none_or(|it| it.tid() != thread.tid()) && wanted(thread) {
                thread.signals.notify();
            }
            Continue(())
        });
    }

    /// Notifies for each signal of `set`, which are pending for the process, a thread that would
    /// take it: one that was not notified, if there is one. A thread that begins to want a signal
    /// meanwhile looks for it itself.
    pub(super) fn notify_takers(&self, mut set: SignalSet) {
        self.visit(self.lock(), |thread| {
            if thread.signals.needs_attention() {
                // It looks at its signals anyway, and takes one.
                return Continue(());
            }
            let taken = thread.signals.wanted().and(set);
            if !taken.is_empty() {
                thread.signals.notify();
                set = set.without(taken);
            }
            if set.is_empty() {
                Break(())
            } else {
                Continue(())
            }
        });
    }

    /// Makes `thread` the only one of the process (`execve`).
    ///
    /// # Errors
    /// `EAGAIN` if the process is ending, or another thread does the same.
    pub fn become_only(&self, thread: &Thread) -> Result<()> {
        {
            let mut state = self.lock();
            if state.ending.is_some() {
                return Err(Errno::EAGAIN);
            }
            if state.threads.len() == 1 {
                return Ok(());
            }
            state.ending = Some(Ending::Exec(thread.tid()));
            state.stop = None;
            self.notify_others(state, Some(thread), |_| true);
            self.resume.wake_all();
        }
        let alone = self.gone.wait_soundly(|| {
            let state = self.lock();
            match state.ending {
                Some(Ending::Exit(_)) => Some(false),
                _ => (state.threads.len() == 1).then_some(true),
            }
        });
        let mut state = self.lock();
        if alone && matches!(state.ending, Some(Ending::Exec(_))) {
            state.ending = None;
            return Ok(());
        }
        Err(Errno::EAGAIN)
    }

    /// SIGCONT or SIGKILL: stopped threads go on.
    pub(super) fn go_on(&self, state: &mut SignalState) {
        state.stop_taken = false;
        if state.stop.take().is_some() {
            state.tell_continued = state.parked == state.threads.len();
            self.resume.wake_all();
        }
    }
}

impl ThreadSignals {
    pub fn new(mask: SignalSet) -> ThreadSignals {
        ThreadSignals {
            mask: AtomicU64::new(mask.0),
            waiting: AtomicU64::new(0),
            saved: AtomicU64::new(0),
            has_saved: AtomicBool::new(false),
            attention: AtomicBool::new(false),
            woken_file: AtomicBool::new(false),
            inner: SpinLock::new(
                crate::rank::THREAD_SIGNALS,
                ThreadState {
                    pending: Queue::default(),
                    undone: Default::default(),
                    task: None,
                },
            ),
        }
    }

    /// Sets or takes away the task that runs the thread.
    pub fn set_task(&self, task: Option<Arc<Task>>) {
        let old = core::mem::replace(&mut self.inner.lock().task, task);
        drop(old);
    }

    /// The task that runs the thread.
    pub fn task(&self) -> Option<Arc<Task>> {
        self.inner.lock().task.clone()
    }

    /// Blocked signals.
    #[inline]
    pub fn mask(&self) -> SignalSet {
        #[cfg(test)]
        looks::count();
        SignalSet(self.mask.load(Relaxed))
    }

    /// Whether something may have to be done before the thread returns to its program.
    #[inline]
    pub fn needs_attention(&self) -> bool {
        self.attention.load(Relaxed)
    }

    /// Makes the thread look at its signals before it returns to its program.
    pub fn call_attention(&self) {
        self.attention.store(true, SeqCst);
    }

    /// The thread, the current one, has woken a file whose owner is told before it returns to its
    /// program.
    pub fn note_woken_file(&self) {
        self.woken_file.store(true, SeqCst);
        self.call_attention();
    }

    /// Takes the [note](Self::note_woken_file) of a woken file back; returns whether there was one.
    pub fn take_woken_file(&self) -> bool {
        self.woken_file.load(Relaxed) && self.woken_file.swap(false, SeqCst)
    }

    /// Calls [attention](Self::call_attention), and interrupts the thread's sleep or program.
    pub fn notify(&self) {
        self.notify_locked(&self.inner.lock());
    }

    /// As [`notify`](Self::notify), with the thread's own lock held.
    pub(super) fn notify_locked(&self, inner: &ThreadState) {
        self.call_attention();
        if let Some(task) = &inner.task {
            task.interrupt();
        }
    }

    /// The thread is about to look at its signals: takes attention and interrupt back, both at
    /// once.
    pub(super) fn take_attention(&self, inner: &ThreadState) {
        self.attention.store(false, SeqCst);
        if let Some(task) = &inner.task {
            task.clear_interrupt();
        }
    }

    /// The signals that the thread would take now.
    pub(super) fn wanted(&self) -> SignalSet {
        SignalSet(!self.mask().0 | self.waiting.load(Relaxed))
    }

    /// Whether the thread would take `signal` now.
    pub(super) fn wants(&self, signal: u32) -> bool {
        self.wanted().has(signal)
    }

    /// The signals that `sigtimedwait` waits for; empty when it is over. The process's signal lock
    /// is held.
    pub(super) fn set_waiting(&self, set: SignalSet) {
        self.waiting.store(set.0, SeqCst);
    }

    pub(super) fn take_saved(&self) -> Option<SignalSet> {
        self.has_saved
            .swap(false, Relaxed)
            .then(|| SignalSet(self.saved.load(Relaxed)))
    }

    fn store_mask(&self, mask: SignalSet) {
        self.mask
            .store(mask.without(SignalSet::UNSTOPPABLE).0, SeqCst);
    }
}

impl Thread {
    /// Locks the signals pending for this thread alone, without those that were undone since they
    /// came.
    #[inline]
    pub(super) fn lock_signals(&self) -> SpinGuard<'_, ThreadState> {
        #[cfg(test)]
        looks::count();
        let mut inner = self.signals.inner.lock();
        let now = &self.process().signals.undone;
        let now = [now[STOPS].load(Relaxed), now[CONTINUE].load(Relaxed)];
        if inner.undone != now {
            inner.drop_undone(now);
        }
        inner
    }

    /// Returns the signals pending for this thread alone.
    pub fn pending_signals(&self) -> SignalSet {
        self.lock_signals().pending.set()
    }

    /// Sets the mask of blocked signals and returns the old one. What was pending and is no longer
    /// blocked is delivered before the program goes on.
    pub fn set_mask(&self, mask: SignalSet) -> SignalSet {
        let old = self.signals.mask();
        if mask == old {
            // Senders of signals read the mask themselves.
            return old;
        }
        let state = self.process().signals.lock();
        self.signals.store_mask(mask);
        let pending = state.pending.set();
        let mine = pending.union(self.pending_signals());
        if !mine.without(self.signals.mask()).is_empty() {
            self.signals.notify();
        }
        // Another thread may take the signals that this one blocks from now on.
        let passed_on = pending.and(mask.without(old));
        if !passed_on.is_empty() {
            let wants = |it: &Thread| !passed_on.without(it.signals.mask()).is_empty();
            let signals = &self.process().signals;
            signals.notify_others(state, Some(self), wants);
        }
        old
    }

    /// Replaces the mask until the next return to the program (`ppoll`, `pselect`, `sigsuspend`): a
    /// handler that is then run sees the old one restored after it.
    pub fn set_temporary_mask(&self, mask: SignalSet) {
        let old = self.set_mask(mask);
        if mask == old {
            // What is put back is there already.
            return;
        }
        self.signals.saved.store(old.0, Relaxed);
        self.signals.has_saved.store(true, Relaxed);
        self.signals.call_attention();
    }

    /// Whether the thread blocks or ignores the signal (`SIGTTIN`, `SIGTTOU` rules).
    pub fn blocks_or_ignores(&self, signal: u32) -> bool {
        self.signals.mask().has(signal)
            || self.process().signals.actions().get(signal).handler == super::IGNORE
    }

    /// Whether the thread is to end.
    pub fn is_dying(&self) -> bool {
        match self.process().signals.ending() {
            Some(Ending::Exit(_)) => true,
            Some(Ending::Exec(tid)) => tid != self.tid(),
            None => false,
        }
    }
}

/// Counts looks at threads between two locks of a process's signals: with one held, they must be
/// bounded.
#[cfg(test)]
pub(in crate::process) mod looks {
    use core::cell::Cell;

    std::thread_local! {
        static NOW: Cell<usize> = const { Cell::new(0) };
        static MOST: Cell<usize> = const { Cell::new(0) };
    }

    /// A lock is taken.
    pub fn begin() {
        NOW.set(0);
    }

    pub fn count() {
        NOW.set(NOW.get() + 1);
        MOST.set(MOST.get().max(NOW.get()));
    }

    /// Returns the most that were counted under one lock since the last call.
    pub fn most() -> usize {
        begin();
        MOST.take()
    }
}
