//! Faults, and what happens when no memory is left.

use alloc::{
    string::String,
    sync::{Arc, Weak},
};
use core::{
    sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release},
    time::Duration,
};

use crate::counters::Counter;
use nucleus::{
    Access, VirtAddr, frame,
    sync::{Rank, SpinLock},
    task::{self, Sleep},
    time,
};
use vm::{Fault, Map, MemoryWait};

use abi::raw::general as raw;

use super::{Process, Thread, space::Leaving, thread};
use crate::process::signal::Ending;

/// How long to wait for the memory of a process that was told to end.
const REST: Duration = Duration::from_millis(2);

/// Resolves a fault of the thread's in `map`, and counts it. When memory runs short, it waits for
/// the pagedaemon; when that has nothing left to free, the largest process is ended and the fault
/// is tried again, as long as that is not the thread's own process.
///
/// # Errors
/// Those of [`Map::fault`]; `OutOfMemory` only if nothing can be freed or the thread is to end.
pub fn resolve_fault(
    thread: &Thread,
    map: &Map,
    addr: VirtAddr,
    access: Access,
) -> Result<(), Fault> {
    let mut was_read = false;
    loop {
        match map.fault_noting(addr, access, &mut was_read) {
            Err(Fault::OutOfMemory) => {}
            other => {
                thread.count_fault(was_read);
                return other;
            }
        }
        // Pages that can be read again, or written out, are reclaimed before any process ends.
        if !thread.is_dying() && vm::wait_for_memory() == MemoryWait::Retry {
            continue;
        }
        if thread.is_dying() || !kill_largest() || thread.is_dying() {
            return Err(Fault::OutOfMemory);
        }
        task::sleep(Sleep::within(REST));
    }
}

/// Whether memory is scarce even after the pagedaemon had a chance to free some: what would make
/// objects of the kernel's is refused then. With no lock held.
pub fn is_scarce() -> bool {
    // Most calls pay two loads.
    frame::is_scarce() && {
        vm::wait_for_memory();
        frame::is_scarce()
    }
}

/// The nucleus's hook for faults of kernel code on a program's address.
pub(crate) fn resolve_for_kernel(addr: VirtAddr, access: Access) -> bool {
    thread::with_current(|thread| {
        thread
            .space()
            .is_some_and(|space| resolve_fault(thread, space.map(), addr, access).is_ok())
    })
    .unwrap_or(false)
}

/// The address space of the process that was ended last, until all of its memory is back.
static VICTIM: SpinLock<Option<(Weak<Map>, Duration)>> = SpinLock::new(Rank::Leaf, None);

/// Another thread is choosing the next one.
static CHOOSING: AtomicBool = AtomicBool::new(false);

/// How long to wait for a victim's memory before another one is chosen: the first may sleep on
/// something that only the others can give it.
const GRACE: Duration = Duration::from_secs(5);

/// Ends the process with the most resident pages, unless the memory of one that was ended before,
/// or of one that ended by itself, is still on its way back. Returns whether waiting makes sense.
pub fn kill_largest() -> bool {
    if CHOOSING.swap(true, Acquire) {
        return true;
    }
    let answer = victim_is_leaving() || choose();
    CHOOSING.store(false, Release);
    answer
}

fn victim_is_leaving() -> bool {
    let mut victim = VICTIM.lock();
    let is_leaving = |(map, until): &(Weak<Map>, Duration)| {
        map.strong_count() > 0 && time::since_boot() < *until
    };
    *victim = victim.take().filter(is_leaving);
    victim.is_some()
}

/// The adjustment of a process that is never to be ended.
pub const OOM_NEVER: i32 = -1000;

/// Returns the pages won by ending a process: its pages in memory and in swap, and its adjustment
/// as a share of the machine's memory. `None` if it is never to be ended.
fn weight(process: &Process, space: &super::Space) -> Option<i64> {
    let adjustment = process.oom_adjustment.load(Relaxed);
    let sizes = space.map().sizes();
    let share = frame::usage().total as i64 / 1000;
    // A page that leaves the swap space makes room for another one.
    let pages = (sizes.resident + sizes.page_tables + space.map().swapped()) as i64;
    (adjustment > OOM_NEVER).then(|| pages + i64::from(adjustment) * share)
}

/// The number of `/proc/PID/oom_score`, 0 to 2000, as Linux works it out.
pub fn oom_score(process: &Process) -> i64 {
    let space = process.leader().and_then(|leader| leader.space());
    let total = (frame::usage().total as i64).max(1);
    let weight = space.and_then(|space| weight(process, &space));
    weight.map_or(0, |weight| ((1000 + weight * 1000 / total) * 2 / 3).max(0))
}

fn choose() -> bool {
    let Some(left) = Leaving::none() else {
        return true;
    };
    let mut largest = None;
    let mut most = i64::MIN;
    for process in Process::all() {
        // A zombie, or a process whose last user is leaving the space just now: checked below.
        let Some(space) = process.leader().and_then(|leader| leader.space()) else {
            continue;
        };
        let Some(weight) = weight(&process, &space) else {
            continue;
        };
        if weight > most && process.pid() != super::pid_table::INIT {
            most = weight;
            largest = Some((process, space));
        }
    }
    let Some((victim, space)) = largest else {
        return false;
    };
    // A process that has begun to leave meanwhile may be the largest, and was not found.
    if Leaving::none() != Some(left) {
        return true;
    }
    let until = time::since_boot() + GRACE;
    *VICTIM.lock() = Some((Arc::downgrade(space.map()), until));
    if !matches!(victim.signals.ending(), Some(Ending::Exit(_))) {
        nucleus::log!(
            "out of memory: killed process {} ({}), {} resident pages",
            victim.pid(),
            String::from_utf8_lossy(&victim.name()),
            space.map().sizes().resident,
        );
        nucleus::log!("memory in pages: {:?}", frame::usage());
        Counter::out_of_memory_kills.add(1);
        victim.signals.end(raw::SIGKILL as i32);
    }
    true
}
