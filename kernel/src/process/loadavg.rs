//! The load averages of `/proc/loadavg` and `sysinfo`: how many threads wanted to run, over 1, 5
//! and 15 minutes.

use alloc::boxed::Box;
use core::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use nucleus::{
    OutOfMemory,
    task::{self, Sleep, Spawn},
};

use crate::process::pid_table;

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// Bits behind the binary point.
const SHIFT: u32 = 11;
/// The remaining part of a load after an interval: e to the power of -5/60, -5/300 and -5/900, with
/// [`SHIFT`] bits.
const DECAY: [u64; 3] = [1884, 2014, 2037];

static LOADS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// The averages in hundredths.
pub fn averages() -> [u64; 3] {
    LOADS
        .each_ref()
        .map(|load| (load.load(Relaxed) * 100) >> SHIFT)
}

/// The averages as `sysinfo` gives them, with 16 bits behind the binary point.
pub fn fixed_point() -> [u64; 3] {
    LOADS
        .each_ref()
        .map(|load| load.load(Relaxed) << (16 - SHIFT))
}

/// Threads that run or want to.
pub fn running() -> usize {
    pid_table::threads_after(0)
        .filter(|thread| thread.task().is_some_and(|task| task.is_runnable()))
        .count()
}

/// Starts the task that looks.
///
/// # Errors
/// No memory for it.
pub fn start() -> Result<(), OutOfMemory> {
    task::spawn(Spawn::kernel("load"), Box::new(watch)).map(drop)
}

fn watch() {
    loop {
        task::sleep(Sleep::within(INTERVAL));
        let now = (running() as u64) << SHIFT;
        for (load, decay) in LOADS.iter().zip(DECAY) {
            let old = load.load(Relaxed);
            let new = (old * decay + now * ((1 << SHIFT) - decay)) >> SHIFT;
            load.store(new, Relaxed);
        }
    }
}
