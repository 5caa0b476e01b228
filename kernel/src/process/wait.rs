//! Waiting for children.

use alloc::sync::Arc;

use abi::Result;
use nucleus::task::Sleep;

use super::{
    Process, Thread,
    pid_table::{self, Change, WaitRequest},
};
use crate::process::signal;

/// Waits until a child changes its state as wanted. `Ok(None)`: none has, and `block` is false.
///
/// # Errors
/// `ECHILD` if there is no such child; a restart number if a signal came.
pub fn wait(
    process: &Arc<Process>,
    wanted: &WaitRequest,
    block: bool,
) -> Result<Option<(Arc<Process>, Change)>> {
    let parent = process.pid();
    let take = || pid_table::take_change(parent, wanted).transpose();
    let found = match block {
        true => process
            .child_events
            .wait(Sleep::INTERRUPTIBLE, take)
            .map_err(signal::woken)?,
        false => match take() {
            Some(found) => found,
            None => return Ok(None),
        },
    }?;
    if matches!(found.1, Change::Ended(_)) && !wanted.keep {
        process.add_child(&found.0);
    }
    Ok(Some(found))
}

impl Thread {
    /// Sleeps until `ready` gives a value; only the end of the process interrupts it. `None` then.
    pub fn wait_unless_killed<T>(
        &self,
        queue: &nucleus::task::WaitQueue,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        loop {
            match queue.wait(Sleep::INTERRUPTIBLE, &mut ready) {
                Ok(value) => return Some(value),
                Err(_) if self.is_dying() => return None,
                // Another signal: the thread looks at it when it returns to its program.
                Err(_) => {
                    if let Some(task) = self.task() {
                        task.clear_interrupt();
                    }
                    if self.is_dying() {
                        return None;
                    }
                }
            }
        }
    }
}
