//! The kernel's tasks that look after the pages of files.

use alloc::boxed::Box;

use nucleus::{
    OutOfMemory,
    task::{self, Spawn},
};

/// Starts a task.
///
/// # Errors
/// No memory for it.
pub(super) fn start(name: &'static str, run: fn()) -> Result<(), OutOfMemory> {
    let spawn = Spawn::kernel(name);
    let body = move || {
        run();
        #[cfg(not(target_os = "none"))]
        end::note();
    };
    #[cfg(not(target_os = "none"))]
    end::begin();
    task::spawn(spawn, Box::new(body)).map(drop)
}

/// Whether the machine ends: only a simulated one does while its tasks run.
#[cfg(target_os = "none")]
pub(super) fn are_to_end() -> bool {
    false
}

#[cfg(not(target_os = "none"))]
pub(super) use end::are_to_end;
#[cfg(not(target_os = "none"))]
pub(super) use end::reset;
#[cfg(not(target_os = "none"))]
pub(super) use end::stop;

/// A simulated machine reports tasks that sleep for ever, and the next machine must not find them.
#[cfg(not(target_os = "none"))]
mod end {
    use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    use nucleus::task::WaitQueue;

    static ENDS: AtomicBool = AtomicBool::new(false);
    static RUNNING: AtomicUsize = AtomicUsize::new(0);
    static ENDED: WaitQueue = WaitQueue::new();

    /// For a new machine: an earlier one may have failed before its tasks had ended.
    pub fn reset() {
        RUNNING.store(0, SeqCst);
        ENDED.restart();
    }

    pub(super) fn begin() {
        ENDS.store(false, SeqCst);
        RUNNING.fetch_add(1, SeqCst);
    }

    pub(super) fn note() {
        RUNNING.fetch_sub(1, SeqCst);
        ENDED.wake_all();
    }

    pub fn are_to_end() -> bool {
        ENDS.load(SeqCst)
    }

    /// Ends the tasks, which `wake` wakes, and waits for that.
    pub fn stop(wake: impl FnOnce()) {
        ENDS.store(true, SeqCst);
        wake();
        let none = || (RUNNING.load(SeqCst) == 0).then_some(());
        ENDED.wait_soundly(none);
    }
}
