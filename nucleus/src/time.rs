//! Clocks and timers. Nanoseconds everywhere.

use alloc::sync::Arc;
use core::time::Duration;

/// Time since boot, monotonic, the same on all CPUs.
pub fn since_boot() -> Duration {
    todo!()
}

/// Time since the Unix epoch, from the real-time clock at boot plus [`since_boot`] plus what was set.
pub fn since_epoch() -> Duration {
    todo!()
}

/// Sets the time since the Unix epoch (`clock_settime`).
pub fn set_since_epoch(now: Duration) {
    todo!()
}

/// Timer interrupts per second on a busy CPU.
pub const TICKS_PER_SECOND: u32 = 100;

/// Calls a function once, at or soon after a time; dropping it cancels.
pub struct Timer {
    _private: (),
}

impl Timer {
    /// Calls `expire` in interrupt context (no sleeping, no blocking, no user memory) at `deadline` since boot.
    pub fn at(deadline: Duration, expire: Arc<dyn Fn() + Send + Sync>) -> Timer {
        todo!()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        todo!()
    }
}
