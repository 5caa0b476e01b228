//! Resource limits of a process.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::raw::general as raw;
use nucleus::{PAGE_SIZE, frame};

pub const INFINITY: u64 = u64::MAX;
pub const RESOURCES: usize = 16;

/// Bytes of a thread's stack in the kernel, as Linux counts them.
const THREAD_SIZE: usize = 16 << 10;
/// The least of [`threads_by_memory`].
const FEWEST_THREADS: u32 = 128;

/// Returns how many threads have stacks that are an eighth of memory.
pub(super) fn threads_by_memory() -> u32 {
    let threads = frame::total() * PAGE_SIZE / (8 * THREAD_SIZE);
    u32::try_from(threads).map_or(u32::MAX, |it| it.max(FEWEST_THREADS))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub soft: u64,
    pub hard: u64,
}

/// The limits of a process, by `RLIMIT_*`. A soft limit is read with one load.
pub struct Limits {
    soft: [AtomicU64; RESOURCES],
    hard: [AtomicU64; RESOURCES],
}

impl Limits {
    /// Returns the limits of the first process, as on Linux.
    pub fn initial() -> Limits {
        let limits = Limits {
            soft: [const { AtomicU64::new(INFINITY) }; RESOURCES],
            hard: [const { AtomicU64::new(INFINITY) }; RESOURCES],
        };
        // As on Linux, half of all that there may be.
        let threads = u64::from(threads_by_memory() / 2);
        for (resource, soft, hard) in [
            (raw::RLIMIT_STACK, raw::_STK_LIM as u64, INFINITY),
            (raw::RLIMIT_CORE, 0, INFINITY),
            (raw::RLIMIT_NPROC, threads, threads),
            (
                raw::RLIMIT_NOFILE,
                raw::INR_OPEN_CUR as u64,
                raw::INR_OPEN_MAX as u64,
            ),
            (
                raw::RLIMIT_MEMLOCK,
                raw::MLOCK_LIMIT as u64,
                raw::MLOCK_LIMIT as u64,
            ),
            (raw::RLIMIT_SIGPENDING, threads, threads),
            (raw::RLIMIT_MSGQUEUE, 819_200, 819_200),
            (raw::RLIMIT_NICE, 0, 0),
            (raw::RLIMIT_RTPRIO, 0, 0),
        ] {
            limits.set(resource, Limit { soft, hard });
        }
        limits
    }

    /// A copy for a child.
    pub fn duplicate(&self) -> Limits {
        let copy = Limits::initial();
        for resource in 0..RESOURCES as u32 {
            copy.set(resource, self.get(resource));
        }
        copy
    }

    /// The soft limit of `resource` (`RLIMIT_*`, below [`RESOURCES`]).
    pub fn soft(&self, resource: u32) -> u64 {
        self.soft[resource as usize].load(Relaxed)
    }

    pub fn get(&self, resource: u32) -> Limit {
        Limit {
            soft: self.soft[resource as usize].load(Relaxed),
            hard: self.hard[resource as usize].load(Relaxed),
        }
    }

    /// Sets both limits; checks were made by the caller.
    pub fn set(&self, resource: u32, limit: Limit) {
        self.soft[resource as usize].store(limit.soft, Relaxed);
        self.hard[resource as usize].store(limit.hard, Relaxed);
    }

    /// Lowers a soft limit to `most`; a lower one stays.
    pub fn lower_soft(&self, resource: u32, most: u64) {
        self.soft[resource as usize].fetch_min(most, Relaxed);
    }

    /// Those that an address space enforces.
    pub fn of_map(&self) -> vm::Limits {
        vm::Limits {
            address_space: self.soft(raw::RLIMIT_AS),
            data: self.soft(raw::RLIMIT_DATA),
            stack: self.soft(raw::RLIMIT_STACK),
            locked: self.soft(raw::RLIMIT_MEMLOCK),
        }
    }
}
