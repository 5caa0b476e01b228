//! Lines of the log that programs cause are limited, so that none can fill it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use nucleus::time;

/// Lines of one kind per [`PERIOD`].
const LINES: u32 = 10;
/// Seconds.
const PERIOD: u64 = 5;

/// The lines of one kind.
pub struct LogLimit {
    period: AtomicU64,
    lines: AtomicU32,
}

impl LogLimit {
    /// For a static.
    pub const fn new() -> LogLimit {
        LogLimit {
            period: AtomicU64::new(0),
            lines: AtomicU32::new(0),
        }
    }

    /// Whether another line may be written.
    pub fn allows_line(&self) -> bool {
        let period = time::since_boot().as_secs() / PERIOD;
        if self.period.swap(period, Relaxed) != period {
            self.lines.store(0, Relaxed);
        }
        self.lines.fetch_add(1, Relaxed) < LINES
    }
}
