//! Posting signals.

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general as raw};

use super::{
    Action, DEFAULT, IGNORE, Info, Queue, SignalSet,
    action::{Fate, default_of},
    state::{AT_ONCE, SignalState},
    timer,
};
use crate::process::{Pid, Process, Thread, pid_table, thread};

/// Sends to one thread. Not in interrupt context. No permission check.
///
/// # Errors
/// `EAGAIN` if a real-time signal finds no room.
pub fn send_to_thread(thread: &Thread, info: Info) -> Result<()> {
    post(thread.process(), Some(thread), info).map(drop)
}

/// Sends to a process: some thread that does not block the signal takes it. Not in interrupt
/// context. No permission check.
///
/// # Errors
/// Those of [`send_to_thread`].
pub fn send_to_process(process: &Process, info: Info) -> Result<()> {
    post(process, None, info).map(drop)
}

/// Sends to all members of a group. Not in interrupt context. No permission check.
///
/// # Errors
/// `ESRCH` if the group has no members.
pub fn send_to_group(group: Pid, info: Info) -> Result<()> {
    let mut members = pid_table::members(group).peekable();
    members.peek().ok_or(Errno::ESRCH)?;
    members.try_for_each(|process| post(&process, None, info).map(drop))
}

/// Sends SIGPIPE to the current thread, which writes to a pipe or a connection that nothing reads.
/// Returns the error of its call.
#[cold]
pub fn broken_pipe() -> Errno {
    thread::with_current(|thread| {
        // A standard signal always finds room.
        let _ = send_to_thread(thread, Info::kernel(raw::SIGPIPE));
    });
    Errno::EPIPE
}

/// Makes the thread take the signal before its program goes on: if it is blocked or ignored, it
/// gets its default first. For faults of the program's own instructions.
pub fn force(thread: &Thread, info: Info) {
    let process = thread.process();
    let mut state = process.signals.lock();
    let action = state.actions.get(info.signal);
    let blocked = thread.signals.mask().has(info.signal);
    if blocked || action.handler == IGNORE {
        state.actions.set(info.signal, Action::default());
        state.unkillable = false;
    } else if action.handler == DEFAULT {
        state.unkillable = false;
    }
    // From the kernel: there is always room, if only for the signal without its details.
    let account = process.account();
    let mut inner = thread.lock_signals();
    let _ = inner.pending.push(info, &account, u64::MAX);
    drop(inner);
    drop(state);
    if blocked {
        thread.set_mask(thread.signals.mask().without(SignalSet::one(info.signal)));
    }
    thread.signals.notify();
}

/// A POSIX timer of the process has expired. Not in interrupt context. Returns whether the signal
/// waits to be taken.
pub(super) fn send_expiry(process: &Process, target: Option<&Thread>, info: Info) -> bool {
    let put = |queue: &mut Queue| {
        queue.push_expiry(info);
        Ok(())
    };
    // There is always room.
    post_by(process, target, info, put).unwrap_or(false)
}

/// Sends one of the kernel's own signals to a process. Not in interrupt context. Returns whether it
/// waits to be taken.
pub(super) fn send_kernels(process: &Process, signal: u32) -> bool {
    // There is always room.
    post(process, None, Info::kernel(signal)).unwrap_or(false)
}

/// Posts a signal; returns whether it waits to be taken.
fn post(process: &Process, target: Option<&Thread>, info: Info) -> Result<bool> {
    post_by(process, target, info, within_limit(process, info))
}

/// Puts a signal into a queue if its user may have one more.
fn within_limit(process: &Process, info: Info) -> impl FnOnce(&mut Queue) -> Result<()> {
    move |queue| {
        let limit = process.limits().soft(raw::RLIMIT_SIGPENDING);
        queue.push(info, &process.account(), limit)
    }
}

/// Posts a signal; `put` puts it into a queue if it is to wait there. Returns whether it does.
fn post_by(
    process: &Process,
    target: Option<&Thread>,
    info: Info,
    put: impl FnOnce(&mut Queue) -> Result<()>,
) -> Result<bool> {
    let mut news = News::default();
    let sent = replace(process, target, info, &mut news, put);
    news.tell(process);
    sent.map(|sent| sent == Sent::Waits)
}

/// What has become of a signal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sent {
    Ignored,
    Waits,
    /// The process is to end.
    Deadly,
}

/// What is to be done, and others to be told, after signals were sent to a process.
#[derive(Clone, Copy, Default)]
#[must_use]
pub struct News {
    /// One waits to be taken.
    waits: bool,
    /// Those that wait, and whose takers are to be looked for.
    wanting: SignalSet,
    /// One ends the process, with this wait status.
    deadly: Option<i32>,
    /// Signals that were dropped.
    opposites: SignalSet,
}

impl News {
    /// Does so. No locks are held: there may be any number of threads and observers, and the timers
    /// of dropped signals look for their process.
    #[inline]
    pub fn tell(self, process: &Process) {
        if self.deadly.is_some() || !self.wanting.is_empty() || !self.opposites.is_empty() {
            self.tell_more(process);
        } else if self.waits {
            process.signals.arrivals.wake_shared(false);
        }
    }

    #[cold]
    fn tell_more(self, process: &Process) {
        if let Some(status) = self.deadly {
            process.signals.end(status);
        }
        if !self.wanting.is_empty() {
            process.signals.notify_takers(self.wanting);
        }
        if self.waits {
            process.signals.arrivals.wake_shared(false);
        }
        if !self.opposites.is_empty() {
            timer::dropped(process, self.opposites);
        }
    }
}

/// Sends to a process while the table of processes is locked. What is left to do after that is
/// added to `news`. A real-time signal that finds no room is lost.
pub fn send_locked(process: &Process, info: Info, news: &mut News) {
    let _ = replace(process, None, info, news, within_limit(process, info));
}

/// Posts as [`post_by`] does, in the place of the pending signals that it undoes. What is left to
/// do without locks is added to `news`.
///
/// One of the process's first threads takes a signal for the process at once. If all of those block
/// it, it waits, even if it would be ignored, and its taker is looked for later: there may be tens
/// of thousands of threads, and the table of processes may be locked.
fn replace(
    process: &Process,
    target: Option<&Thread>,
    info: Info,
    news: &mut News,
    put: impl FnOnce(&mut Queue) -> Result<()>,
) -> Result<Sent> {
    let signal = info.signal;
    let mut state = process.signals.lock();
    if state.threads.is_empty() {
        return Ok(Sent::Ignored);
    }
    news.opposites = news
        .opposites
        .union(process.signals.undo(&mut state, signal));
    if signal == raw::SIGCONT {
        process.signals.go_on(&mut state);
    }

    let action = state.actions.get(signal);
    let open = |thread: &Thread| !thread.signals.mask().has(signal);
    let has_stopped = state.stop.is_some();
    let is_unkillable = state.unkillable;
    let SignalState {
        pending, threads, ..
    } = &mut *state;
    let first = &threads[..threads.len().min(AT_ONCE)];
    let taker = match target {
        Some(thread) => Some(thread).filter(|it| it.signals.wants(signal)),
        None => {
            let takes = |it: &&Arc<Thread>| it.signals.wants(signal);
            // One that was notified takes the signal that it was notified of.
            let idle = |it: &&Arc<Thread>| takes(it) && !it.signals.needs_attention();
            let found = first.iter().find(idle);
            found.or_else(|| first.iter().find(takes)).map(|it| &**it)
        }
    };
    // A thread that wants it and blocks it waits for it in `sigtimedwait`.
    let unblocked = taker.is_some_and(open)
        || target.is_none() && taker.is_some() && first.iter().any(|it| open(it));
    // A blocked signal waits even if it would be ignored now: the action may change before it is
    // taken.
    let ignored = action.ignores(signal) || is_unkillable && action.handler == DEFAULT;
    if ignored && unblocked {
        return Ok(Sent::Ignored);
    }
    let deadly = action.handler == DEFAULT
        && default_of(signal) == Fate::Terminate
        && !SignalSet::CORE.has(signal)
        && unblocked
        // A stopped process dies when it goes on.
        && !has_stopped;
    if deadly || signal == raw::SIGKILL {
        news.deadly = Some(signal as i32);
        return Ok(Sent::Deadly);
    }

    match target {
        Some(thread) => {
            let mut own = thread.lock_signals();
            put(&mut own.pending)?;
            if taker.is_some() {
                thread.signals.notify_locked(&own);
            }
        }
        None => put(pending)?,
    }
    news.waits = true;
    match taker {
        Some(thread) if target.is_none() => thread.signals.notify(),
        Some(_) => {}
        // Also if one waits already: the thread that was notified of it may leave without it.
        None if target.is_none() && first.len() < threads.len() => {
            news.wanting = news.wanting.union(SignalSet::one(signal));
        }
        None => {}
    }
    Ok(Sent::Waits)
}
