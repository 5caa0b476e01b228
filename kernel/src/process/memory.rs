//! Faults, and what happens when no memory is left.

use core::time::Duration;

use nucleus::{
    Access, VirtAddr,
    counters::Counter,
    task::{self, Sleep},
    time,
};
use vm::{Fault, Map};

use abi::raw::general as raw;

use super::{Process, Thread, thread};

/// How long to wait for the memory of a process that was told to end.
const PATIENCE: Duration = Duration::from_millis(2);

/// Resolves a fault in `map`. When memory is exhausted the largest process is ended and the fault is
/// tried again, as long as that is not the thread's own process.
///
/// # Errors
/// As [`Map::fault`]; `OutOfMemory` only if nothing can be freed or the thread is to end.
pub fn resolve_fault(
    thread: &Thread,
    map: &Map,
    addr: VirtAddr,
    access: Access,
) -> Result<(), Fault> {
    loop {
        match map.fault(addr, access) {
            Err(Fault::OutOfMemory) => {}
            other => return other,
        }
        if thread.is_dying() || !kill_largest() || thread.is_dying() {
            return Err(Fault::OutOfMemory);
        }
        task::sleep(Sleep {
            interruptible: false,
            deadline: Some(time::since_boot() + PATIENCE),
        });
    }
}

/// The nucleus's hook for faults of kernel code on a program's address.
pub(crate) fn resolve_for_kernel(addr: VirtAddr, access: Access) -> bool {
    thread::with_current(|thread| {
        thread.count_fault();
        thread
            .space()
            .is_some_and(|space| resolve_fault(thread, space.map(), addr, access).is_ok())
    })
    .unwrap_or(false)
}

/// Ends the process with the most resident pages, or waits for one that is ending already. Returns whether
/// there is any.
pub fn kill_largest() -> bool {
    let mut largest = None;
    let mut most = 0;
    for process in Process::all() {
        // A space whose last thread is on its way out has no leader any more; its memory comes back by itself.
        let Some(space) = process.leader().and_then(|leader| leader.space()) else {
            continue;
        };
        let resident = space.map().sizes().resident;
        if resident > most && process.pid() != super::family::INIT {
            most = resident;
            largest = Some(process);
        }
    }
    let Some(victim) = largest else { return false };
    if victim.signals.ending().is_none() {
        let name = victim.leader().map(|l| l.name()).unwrap_or_default();
        nucleus::log!(
            "out of memory: killed process {} ({}), {} resident pages",
            victim.pid(),
            alloc::string::String::from_utf8_lossy(&name),
            most,
        );
        Counter::out_of_memory_kills.add(1);
        victim.signals.end(raw::SIGKILL as i32);
    }
    true
}
