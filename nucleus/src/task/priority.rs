//! How urgent a task is: a share of the CPU by its nice value, or a real-time level above all shares.

use core::sync::atomic::Ordering;

use super::Task;

/// Who runs before whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// A share of what the levels leave, by nice value: -20 (most) to 19, and 20 for what runs when there is hardly
    /// anything else to run. What is beyond is taken as the nearest of them.
    Share(i8),
    /// Runs before all tasks of lower levels and all shares.
    Level {
        /// 1 to 99 for programs; [`Priority::KERNEL`] is above.
        level: u8,
        /// Tasks of its level take turns of [`TURN`]; without, it runs until it sleeps, yields or is displaced.
        turns: bool,
    },
}

impl Default for Priority {
    fn default() -> Priority {
        Priority::Share(0)
    }
}

impl Priority {
    /// For tasks of the kernel that act at once and for a short time.
    pub const KERNEL: Priority = Priority::Level {
        level: KERNEL_LEVEL,
        turns: false,
    };
}

/// The level of [`Priority::KERNEL`].
pub(super) const KERNEL_LEVEL: u8 = 100;

/// How long tasks of one level that take turns run, in nanoseconds: Linux's 100 ms.
pub const TURN: u64 = 100_000_000;

/// Of each period, in nanoseconds, programs with levels get this much while others wait on the same CPU: Linux's 95 %. A
/// program that spins at a level can be stopped from a shell without one.
const PERIOD: u64 = 1_000_000_000;
const OF_PERIOD: u64 = 950_000_000;

/// What programs with levels have used of the current period of a CPU [its run queue's lock].
pub(super) struct Budget {
    since: u64,
    used: u64,
}

impl Budget {
    pub(super) const fn new() -> Budget {
        Budget { since: 0, used: 0 }
    }

    /// A task of a level has run for `ran` nanoseconds.
    pub(super) fn charge(&mut self, level: u8, ran: u64) {
        if level < KERNEL_LEVEL {
            self.used += ran;
        }
    }

    /// Begins a new period when the old one is over.
    pub(super) fn renew(&mut self, now: u64) {
        if now.saturating_sub(self.since) >= PERIOD {
            self.since = now;
            self.used = 0;
        }
    }

    /// Whether a task of `level` must let those without one run first.
    pub(super) fn holds_back(&self, level: u8) -> bool {
        self.used >= OF_PERIOD && level < KERNEL_LEVEL
    }
}

impl Task {
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
        match priority {
            Priority::Share(nice) => {
                self.nice.store(nice.clamp(-20, 20), Ordering::Relaxed);
                self.level.store(0, Ordering::Relaxed);
            }
            Priority::Level { level, turns } => {
                let level = level.clamp(1, KERNEL_LEVEL);
                self.level.store(level, Ordering::Relaxed);
                self.turns.store(turns, Ordering::Relaxed);
                self.turn_used.store(0, Ordering::Relaxed);
            }
        }
    }
}
