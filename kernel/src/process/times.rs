//! Processor time and faults of a process.

use core::time::Duration;

use super::{Process, Thread, Transfers};

/// Clock ticks per second in the figures that programs see (`AT_CLKTCK`, `times`).
pub const CLOCK_TICKS: u32 = 100;

/// Returns a time in clock ticks.
pub fn ticks(time: Duration) -> u64 {
    (time.as_nanos() * u128::from(CLOCK_TICKS) / 1_000_000_000) as u64
}

/// Processor time in programs and in the kernel.
#[derive(Clone, Copy, Default, Debug)]
pub struct Times {
    pub user: Duration,
    pub system: Duration,
}

/// The resources used by a thread or process.
#[derive(Clone, Copy, Default, Debug)]
pub struct Usage {
    pub times: Times,
    /// Faults for which no page had to be read in, and those for which one had.
    pub faults: [u64; 2],
    /// The largest number of resident pages.
    pub peak_pages: u64,
    /// How often a processor was given up to wait, and how often it was taken away.
    pub switches: [u64; 2],
    /// The bytes read and written.
    pub io: Transfers,
}

/// The use of ended threads and of waited-for children.
#[derive(Clone, Copy, Default, Debug)]
pub struct Spent {
    pub threads: Usage,
    pub children: Usage,
}

impl Times {
    pub fn total(&self) -> Duration {
        self.user + self.system
    }
}

impl Usage {
    /// Adds up; the peak is the higher one.
    pub fn add(&mut self, other: &Usage) {
        self.times.user += other.times.user;
        self.times.system += other.times.system;
        self.peak_pages = self.peak_pages.max(other.peak_pages);
        for (own, other) in [
            (&mut self.faults, other.faults),
            (&mut self.switches, other.switches),
            (&mut self.io.bytes, other.io.bytes),
            (&mut self.io.calls, other.io.calls),
        ] {
            own[0] += other[0];
            own[1] += other[1];
        }
    }
}

impl Thread {
    /// Returns the use of the thread.
    pub fn usage(&self) -> Usage {
        let task = self.task();
        let task = task.as_ref();
        let (user, system) = task.map(|task| task.cpu_time()).unwrap_or_default();
        let peak = self.shared().map_or(0, |s| s.space.map().peak());
        Usage {
            times: Times { user, system },
            faults: self.faults(),
            peak_pages: peak as u64,
            io: self.io.get(),
            switches: task.map_or([0; 2], |task| task.switches()),
        }
    }

    /// Processor time of the thread.
    pub fn times(&self) -> Times {
        let (user, system) = self.task().map(|task| task.cpu_time()).unwrap_or_default();
        Times { user, system }
    }
}

impl Process {
    /// Returns the use of all its threads, ended ones included.
    pub fn usage(&self) -> Usage {
        let mut usage = self.spent.lock().threads;
        for thread in self.threads() {
            usage.add(&thread.usage());
        }
        usage
    }

    /// Returns the use of the children that were waited for.
    pub fn children_usage(&self) -> Usage {
        self.spent.lock().children
    }

    /// Processor time of all its threads, ended ones included.
    pub fn times(&self) -> Times {
        let mut times = self.spent.lock().threads.times;
        for thread in self.threads() {
            let Times { user, system } = thread.times();
            times.user += user;
            times.system += system;
        }
        times
    }

    pub(super) fn add_child(&self, child: &Process) {
        let spent = *child.spent.lock();
        let mut own = self.spent.lock();
        own.children.add(&spent.threads);
        own.children.add(&spent.children);
    }
}
