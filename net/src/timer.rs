//! The alarm of a protocol: when its timers run next.

use core::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use nucleus::{
    task::{Sleep, WaitQueue},
    time,
};

const NEVER: u64 = u64::MAX;

/// An alarm with one sleeper, the thread that runs the timers.
pub struct Alarm {
    /// When the sleeper will run the timers, in nanoseconds since boot.
    armed: AtomicU64,
    sleeper: WaitQueue,
}

impl Alarm {
    /// An alarm that is not set.
    pub const fn new() -> Alarm {
        Alarm {
            armed: AtomicU64::new(NEVER),
            sleeper: WaitQueue::new(),
        }
    }

    /// Sets the alarm to `due` (nanoseconds since boot) unless it is set to an earlier time.
    pub fn set(&self, due: Option<u64>) {
        let Some(due) = due else { return };
        if self.armed.fetch_min(due, Ordering::SeqCst) > due {
            self.sleeper.wake_all();
        }
    }

    /// Runs the timers, which return when they are due next, then sleeps until that time or an
    /// earlier one that [`set`](Alarm::set) asks for.
    pub fn serve(&self, run: impl FnOnce() -> Option<u64>) {
        self.armed.store(NEVER, Ordering::SeqCst);
        let due = run().unwrap_or(NEVER);
        let until = self.armed.fetch_min(due, Ordering::SeqCst).min(due);
        let how = Sleep {
            interruptible: false,
            deadline: (until != NEVER).then(|| Duration::from_nanos(until)),
        };
        let earlier = || (self.armed.load(Ordering::SeqCst) < until).then_some(());
        // The reason of the wake-up does not matter: the next round runs all timers.
        let _ = self.sleeper.wait(how, earlier);
    }
}

/// Returns the time in nanoseconds since boot.
pub fn now() -> u64 {
    time::since_boot().as_nanos() as u64
}

/// Returns the time as [`now`], which is read once for each place to keep it.
pub fn once(kept: &Cell<u64>) -> u64 {
    if kept.get() == 0 {
        kept.set(now());
    }
    kept.get()
}
