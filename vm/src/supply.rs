//! Waiting for memory.
//!
//! Who gets no frame for a program gives back its locks, then waits here until the pagedaemon has freed some, and tries
//! again from the start. What the kernel needs to finish what it has begun comes from the reserve and does not wait.

use core::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    time::Duration,
};
use nucleus::{
    Frame, OutOfMemory,
    counters::Counter,
    frame::{self, Contents},
    task::{Sleep, WaitQueue},
    time,
};

/// Whether there is a pagedaemon.
static RUNNING: AtomicBool = AtomicBool::new(false);
/// Those who wait.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// How often the pagedaemon has found nothing that could be freed.
static EXHAUSTED: AtomicUsize = AtomicUsize::new(0);
static SUPPLY: WaitQueue = WaitQueue::new();
/// Frames that are to be free beyond the targets: an allocation of several in a row failed though there were enough. Page tables want two,
/// and those may not be found until more are free.
static EXTRA: AtomicUsize = AtomicUsize::new(0);
/// How much more each time.
const EXTRA_STEP: usize = 32;
/// The most, as a part of the memory: where so much is free and no two stand together, nothing that the pagedaemon does will help.
const EXTRA_SHARE: usize = 4;
/// How many such failures [`EXTRA`] stands for, and when it grew, in milliseconds.
static SCATTERED: AtomicUsize = AtomicUsize::new(0);
static GREW: AtomicU64 = AtomicU64::new(0);
/// How long it stays: whoever could not use what there was tries again in less.
const STAYS: Duration = Duration::from_secs(1);

/// The longest sleep: a waiter may have been told to end meanwhile.
const PATIENCE: Duration = Duration::from_millis(50);

/// What came of waiting for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Supply {
    /// It is worth to try again.
    Some,
    /// Nothing can be freed: no page is clean, and there is nowhere to write one to.
    None,
}

/// Waits until frames for programs are free again, [`PATIENCE`] at most. No lock is held that the pagedaemon or a file
/// system below it may want: none at all, in short.
pub fn wait_for_memory() -> Supply {
    if !RUNNING.load(SeqCst) {
        return Supply::None;
    }
    Counter::memory_waits.add(1);
    // That there is enough now says nothing by itself: the pagedaemon may have been faster than the caller.
    let scattered = frame::scattered();
    if is_enough() && SCATTERED.swap(scattered, SeqCst) != scattered {
        if EXTRA.load(SeqCst) >= frame::total() / EXTRA_SHARE {
            return Supply::None;
        }
        EXTRA.fetch_add(EXTRA_STEP, SeqCst);
        GREW.store(now_ms(), SeqCst);
    }
    wait(is_enough)
}

/// Waits until more than the `low` target is free, as long as `goes_on`, for one who brings much into memory and can leave it: nobody is to
/// be short of memory for that. No lock is held. Frames may be fewer again when this returns.
pub(crate) fn wait_for_room(goes_on: &dyn Fn() -> bool) -> Supply {
    let has_room = || frame::available() > frame::targets().low;
    while goes_on() {
        if has_room() {
            return Supply::Some;
        }
        if !RUNNING.load(SeqCst) || wait(has_room) == Supply::None {
            break;
        }
    }
    Supply::None
}

/// Waits until frames are `enough`, nothing can be freed, or [`PATIENCE`] is over.
fn wait(enough: impl Fn() -> bool) -> Supply {
    let failures = EXHAUSTED.load(SeqCst);
    WAITING.fetch_add(1, SeqCst);
    frame::report_shortage();
    let how = Sleep {
        interruptible: false,
        deadline: Some(time::since_boot() + PATIENCE),
    };
    let waited = SUPPLY.wait(how, || {
        if !RUNNING.load(SeqCst) || EXHAUSTED.load(SeqCst) != failures {
            return Some(Supply::None);
        }
        enough().then_some(Supply::Some)
    });
    WAITING.fetch_sub(1, SeqCst);
    // After a long time it is worth a try, too.
    waited.unwrap_or(Supply::Some)
}

/// A frame for what a program writes, reads or sends; waits for one as long as the pagedaemon finds some. A sleeping lock may be
/// held that neither the pagedaemon nor a file system takes to write pages back: a pipe's, a socket's.
///
/// # Errors
/// [`OutOfMemory`] if nothing can be freed.
pub fn alloc_frame(contents: Contents) -> Result<Frame, OutOfMemory> {
    loop {
        match Frame::alloc(contents) {
            Err(OutOfMemory) if wait_for_memory() == Supply::Some => {}
            frame => return frame,
        }
    }
}

/// Whether programs get frames: somewhat above the point where they don't, so that they do not come back at once.
fn is_enough() -> bool {
    let targets = frame::targets();
    frame::available() > targets.min + (targets.low - targets.min) / 4 + extra()
}

/// Frames that are to be free beyond the targets.
pub(crate) fn extra() -> usize {
    EXTRA.load(SeqCst)
}

/// Nobody waits: what was wanted beyond the targets is not wanted any more, unless somebody is about to look whether it was enough.
pub(crate) fn forget_old_extra() {
    if now_ms().saturating_sub(GREW.load(SeqCst)) > STAYS.as_millis() as u64 {
        forget_extra();
    }
}

fn forget_extra() {
    EXTRA.store(0, SeqCst);
}

fn now_ms() -> u64 {
    time::since_boot().as_millis() as u64
}

/// Whether somebody waits for what is not there yet.
pub(crate) fn is_awaited() -> bool {
    WAITING.load(SeqCst) != 0 && !is_enough()
}

/// There are more free frames: who waits looks again.
pub(crate) fn replenished() {
    if WAITING.load(SeqCst) != 0 && is_enough() {
        SUPPLY.wake_all();
    }
}

/// Nothing can be freed.
pub(crate) fn exhausted() {
    forget_extra();
    EXHAUSTED.fetch_add(1, SeqCst);
    SUPPLY.wake_all();
}

/// The pagedaemon runs from now on, or does not any more.
pub(crate) fn set_running(running: bool) {
    RUNNING.store(running, SeqCst);
    SCATTERED.store(frame::scattered(), SeqCst);
    GREW.store(0, SeqCst);
    forget_extra();
    if !running {
        SUPPLY.wake_all();
    }
}
