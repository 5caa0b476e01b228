//! The time of day, and its waiters: their waits change when it is set.

use core::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};

use nucleus::{
    task::{Sleep, WaitQueue, Woken},
    time,
};

/// How often it was set.
static STEPS: AtomicU64 = AtomicU64::new(0);
/// Those that sleep for a time of day and nothing else.
static SLEEPERS: WaitQueue = WaitQueue::new();

/// When to stop waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deadline {
    /// At a time since boot.
    SinceBoot(Duration),
    /// At a time of day, whenever that comes.
    OfDay(Duration),
}

impl Deadline {
    /// Returns that time since boot, as long as the time of day is not set.
    pub fn since_boot(self) -> Duration {
        match self {
            Deadline::SinceBoot(time) => time,
            Deadline::OfDay(time) => {
                let left = time.saturating_sub(time::since_epoch());
                time::since_boot().saturating_add(left)
            }
        }
    }

    /// Whether it is another one after the time of day was set.
    pub fn moves(self) -> bool {
        matches!(self, Deadline::OfDay(_))
    }
}

/// Sets the time of day, as a time since the epoch. Then the caller has the timers and waiters of
/// the floors above compute their deadlines again, and calls [`wake_sleepers`].
pub fn set(now: Duration) {
    time::set_since_epoch(now);
    STEPS.fetch_add(1, SeqCst);
}

/// Wakes those that sleep until a time of day, after it was [set](set).
pub fn wake_sleepers() {
    SLEEPERS.wake_all();
}

/// How often it was set so far.
pub fn steps() -> u64 {
    STEPS.load(SeqCst)
}

/// Sleeps until a time of day, unless a signal comes.
pub fn sleep_until(time: Duration) -> Woken {
    loop {
        let steps = steps();
        let how = Sleep {
            deadline: Some(Deadline::OfDay(time).since_boot()),
            ..Sleep::INTERRUPTIBLE
        };
        let moved = || (self::steps() != steps).then_some(());
        if let Err(woken) = SLEEPERS.wait(how, moved) {
            return woken;
        }
    }
}
