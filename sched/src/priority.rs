//! How urgent a task is: a share of the CPU by its nice value, or a real-time level above all
//! shares.

/// How urgent a task is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Priority {
    /// A share of what the levels leave, by nice value: -20 (most) to 19, and 20 for tasks that run
    /// when hardly anything else is runnable. Values beyond are clamped.
    Share(i8),
    /// Runs before all tasks of lower levels and all shares.
    Level {
        /// 1 to 99 for programs; [`Priority::KERNEL`] is above.
        level: u8,
        /// Tasks of its level take turns of [`TURN`]; without, it runs until it sleeps, yields or
        /// is preempted by a higher level.
        turns: bool,
    },
}

impl Default for Priority {
    fn default() -> Self {
        Self::Share(0)
    }
}

impl Priority {
    /// For tasks of the kernel that act at once and for a short time.
    pub const KERNEL: Self = Self::Level {
        level: KERNEL_LEVEL,
        turns: false,
    };

    /// Returns the priority with its nice value or level clamped to the valid range.
    pub fn clamped(self) -> Self {
        match self {
            Self::Share(nice) => Self::Share(nice.clamp(-20, 20)),
            Self::Level { level, turns } => Self::Level {
                level: level.clamp(1, KERNEL_LEVEL),
                turns,
            },
        }
    }
}

/// The level of [`Priority::KERNEL`].
pub const KERNEL_LEVEL: u8 = 100;

/// How long tasks of one level that take turns run, in nanoseconds: Linux's 100 ms.
pub const TURN: u64 = 100_000_000;

/// Of each period, in nanoseconds, programs with levels get this much while others wait on the same
/// CPU: Linux's 95 %. A program that spins at a level can be stopped from a shell without one.
const PERIOD: u64 = 1_000_000_000;
const OF_PERIOD: u64 = 950_000_000;

/// Time that programs with levels have used of the current period of a CPU.
#[derive(Default)]
pub struct Budget {
    since: u64,
    used: u64,
}

impl Budget {
    /// A budget of which nothing is used.
    pub const fn new() -> Self {
        Self { since: 0, used: 0 }
    }

    /// Charges `ran` nanoseconds of a task of `level`.
    #[inline]
    pub fn charge(&mut self, level: u8, ran: u64) {
        if level < KERNEL_LEVEL {
            self.used += ran;
        }
    }

    /// Begins a new period when the old one is over.
    #[inline]
    pub fn renew(&mut self, now: u64) {
        if now.saturating_sub(self.since) >= PERIOD {
            self.since = now;
            self.used = 0;
        }
    }

    /// Returns whether a task of `level` must let those without one run first.
    #[inline]
    pub fn holds_back(&self, level: u8) -> bool {
        self.used >= OF_PERIOD && level < KERNEL_LEVEL
    }
}
