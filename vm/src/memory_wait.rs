//! Waiting for memory.
//!
//! A caller that gets no frame for a program releases its locks, waits here until the pagedaemon
//! has freed some, and starts again. Allocations by which the kernel finishes an operation come
//! from the reserve and do not wait.

use crate::counters::Counter;
use core::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    time::Duration,
};
use nucleus::{
    Frame, OutOfMemory,
    frame::{self, Contents},
    task::{Sleep, WaitQueue},
    time,
};

/// Whether the pagedaemon runs.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// The number of waiters.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// How often the pagedaemon has found nothing to free.
static EXHAUSTED: AtomicUsize = AtomicUsize::new(0);
static WAITERS: WaitQueue = WaitQueue::new();
/// Frames that are to be free beyond the targets: with `directmap=SIZE` a page table was not had
/// although frames enough were free ([`frame::only_outside`]). The pagedaemon frees them wherever
/// they are, so one that the kernel reaches may not be found before more are free.
static EXTRA: AtomicUsize = AtomicUsize::new(0);
/// What it is at first. It doubles each time: all that the pagedaemon may free for a waiter is
/// freed within a few attempts.
const EXTRA_FIRST: usize = 32;
/// Its bound, as a fraction of memory: where so much is free without a frame that the kernel
/// reaches, the pagedaemon cannot help.
const EXTRA_SHARE: usize = 4;
/// The pagedaemon could not free them all; this lasts as long as [`EXTRA`] does.
static IN_VAIN: AtomicBool = AtomicBool::new(false);
/// The number of failures that [`EXTRA`] accounts for, and when it grew, in milliseconds.
static ONLY_OUTSIDE: AtomicUsize = AtomicUsize::new(0);
static GREW: AtomicU64 = AtomicU64::new(0);
/// How long it lasts: a waiter that could not use the free frames tries again within this time.
const STAYS: Duration = Duration::from_secs(1);

/// The longest sleep: the waiter may have been killed meanwhile.
const PATIENCE: Duration = Duration::from_millis(50);

/// The outcome of waiting for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryWait {
    /// Trying again may succeed.
    Retry,
    /// Nothing can be freed: no page is clean, and there is no place to write one to.
    Exhausted,
}

/// Waits until frames for programs are free again, at most for 50 ms. The caller holds no
/// lock that the pagedaemon or a file system below it may need, as [`alloc_frame`] says.
pub fn wait_for_memory() -> MemoryWait {
    if !RUNNING.load(SeqCst) {
        return MemoryWait::Exhausted;
    }
    Counter::memory_waits.add(1);
    // Enough free frames are no contradiction: the pagedaemon may have been faster than the caller.
    let failures = frame::only_outside();
    if is_enough() && ONLY_OUTSIDE.swap(failures, SeqCst) != failures && !ask_for_more() {
        return MemoryWait::Exhausted;
    }
    wait(is_enough)
}

/// As [`wait_for_memory`], for a caller that was refused frames of the kernel's own though others
/// are free ([`frame::only_outside`]): waits until more are free than for those that waited before.
pub fn wait_for_more() -> MemoryWait {
    if !RUNNING.load(SeqCst) {
        return MemoryWait::Exhausted;
    }
    Counter::memory_waits.add(1);
    if is_enough() && !ask_for_more() {
        return MemoryWait::Exhausted;
    }
    wait(is_enough)
}

/// Has the pagedaemon free more than the targets say; false if that is vain.
fn ask_for_more() -> bool {
    let extra = EXTRA.load(SeqCst);
    let in_vain = IN_VAIN.load(SeqCst) && !is_extra_old();
    if in_vain || extra >= frame::total() / EXTRA_SHARE {
        return false;
    }
    IN_VAIN.store(false, SeqCst);
    EXTRA.fetch_add(extra.max(EXTRA_FIRST), SeqCst);
    GREW.store(now_ms(), SeqCst);
    true
}

/// Waits until more than the `low` target is free, as long as `goes_on` returns true. For callers
/// that bring many pages in but can stop, so that programs do not run short of memory. No lock is
/// held. Fewer frames may be free again on return.
pub(crate) fn wait_for_room(goes_on: &dyn Fn() -> bool) -> MemoryWait {
    let has_room = || frame::available() > frame::targets().low;
    while goes_on() {
        if has_room() {
            return MemoryWait::Retry;
        }
        if !RUNNING.load(SeqCst) || wait(has_room) == MemoryWait::Exhausted {
            break;
        }
    }
    MemoryWait::Exhausted
}

/// Waits until there are `enough` frames, nothing can be freed, or [`PATIENCE`] is over.
fn wait(enough: impl Fn() -> bool) -> MemoryWait {
    let failures = EXHAUSTED.load(SeqCst);
    WAITING.fetch_add(1, SeqCst);
    frame::report_shortage();
    let waited = WAITERS.wait(Sleep::within(PATIENCE), || {
        if !RUNNING.load(SeqCst) || EXHAUSTED.load(SeqCst) != failures {
            return Some(MemoryWait::Exhausted);
        }
        enough().then_some(MemoryWait::Retry)
    });
    WAITING.fetch_sub(1, SeqCst);
    // After a long sleep another attempt is worthwhile.
    waited.unwrap_or(MemoryWait::Retry)
}

/// Repeats `attempt` as long as it runs out of memory and the pagedaemon makes progress. No lock is
/// held.
///
/// # Errors
/// Those of `attempt`; [`OutOfMemory`] if nothing can be freed.
pub fn retry_for_memory<T, E: From<OutOfMemory> + PartialEq>(
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    loop {
        match attempt() {
            Err(e) if e == OutOfMemory.into() && wait_for_memory() == MemoryWait::Retry => {}
            result => return result,
        }
    }
}

/// Allocates a frame for data that a program writes, reads or sends, as
/// [`retry_for_memory`] does. The caller may hold sleeping locks that neither the pagedaemon nor
/// writeback takes, for example a pipe's or a socket's.
///
/// # Errors
/// [`OutOfMemory`] if nothing can be freed.
pub fn alloc_frame(contents: Contents) -> Result<Frame, OutOfMemory> {
    retry_for_memory(|| Frame::alloc(contents))
}

/// Returns whether programs get frames. The threshold lies above the one for refusing them, so that
/// waiters do not return at once.
fn is_enough() -> bool {
    let targets = frame::targets();
    frame::available() > targets.min + (targets.low - targets.min) / 4 + extra()
}

/// Frames that are to be free beyond the targets.
pub(crate) fn extra() -> usize {
    EXTRA.load(SeqCst)
}

/// Resets the extra frames once they are old. There are no waiters; a caller may still be about to
/// check whether the frames sufficed.
pub(crate) fn forget_old_extra() {
    if is_extra_old() {
        EXTRA.store(0, SeqCst);
    }
}

fn is_extra_old() -> bool {
    now_ms().saturating_sub(GREW.load(SeqCst)) > STAYS.as_millis() as u64
}

fn now_ms() -> u64 {
    time::since_boot().as_millis() as u64
}

/// Returns whether a waiter needs frames that are not free yet.
pub(crate) fn is_awaited() -> bool {
    WAITING.load(SeqCst) != 0 && !is_enough()
}

/// Wakes the waiters if there are enough free frames.
pub(crate) fn replenished() {
    if WAITING.load(SeqCst) != 0 && is_enough() {
        WAITERS.wake_all();
    }
}

/// Tells the waiters that nothing can be freed.
pub(crate) fn exhausted() {
    if EXTRA.swap(0, SeqCst) != 0 {
        IN_VAIN.store(true, SeqCst);
    }
    EXHAUSTED.fetch_add(1, SeqCst);
    WAITERS.wake_all();
}

/// Notes whether the pagedaemon runs.
pub(crate) fn set_running(running: bool) {
    RUNNING.store(running, SeqCst);
    ONLY_OUTSIDE.store(frame::only_outside(), SeqCst);
    GREW.store(0, SeqCst);
    EXTRA.store(0, SeqCst);
    IN_VAIN.store(false, SeqCst);
    if !running {
        WAITERS.wake_all();
    }
}
