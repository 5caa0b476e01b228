//! The pagedaemon's sleep: until an allocation finds fewer free frames than the low target.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::queue::{Sleep, WaitQueue, Woken};
use crate::cpu::percpu::Restart;

/// Whether an allocation found fewer than the low target since the pagedaemon last looked.
static SHORT: AtomicBool = AtomicBool::new(false);
static DAEMON: Restart<WaitQueue> = Restart::new(WaitQueue::new());

/// Wakes the pagedaemon: frames are needed that are not free. Any context but one that holds a wait
/// queue's or a run queue's lock.
#[cold]
pub fn report_shortage() {
    if !SHORT.swap(true, Relaxed) {
        DAEMON.wake_all();
    }
}

/// Wakes the pagedaemon, which sees by itself that page tables are kept that nothing may need.
/// Contexts as for [`report_shortage`].
#[cold]
pub(crate) fn report_kept_tables() {
    DAEMON.wake_all();
}

/// Sleeps until a shortage is [reported](report_shortage), or `or_else` says that there is
/// something else to do: its report comes with [`report_shortage`], too. For the pagedaemon.
///
/// # Errors
/// The deadline of `how`.
pub fn await_shortage(how: Sleep, mut or_else: impl FnMut() -> bool) -> Result<(), Woken> {
    DAEMON.wait(how, || {
        (SHORT.swap(false, Relaxed) || or_else()).then_some(())
    })
}

/// Forgets the waiters, for a new simulated machine.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    SHORT.store(false, Relaxed);
    // SAFETY: the machine that used it is gone and the next has not started.
    unsafe { DAEMON.set(WaitQueue::new()) };
}
