//! Stops and ends of threads that the parent process has to hear of.

use super::{Ending, ProcessSignals};
use crate::process::{Thread, pid_table};

impl ProcessSignals {
    /// Removes a thread; returns the process's wait status if it was the last one. `status` is the
    /// thread's own.
    pub fn remove_thread(&self, thread: &Thread, status: i32) -> Option<i32> {
        let mut state = self.lock();
        let mut gone = None;
        let at = state.threads.partition_point(|it| it.tid() < thread.tid());
        if state
            .threads
            .get(at)
            .is_some_and(|it| core::ptr::eq(&**it, thread))
        {
            gone = Some(state.threads.remove(at));
            thread.process().release_thread(thread.tid());
        }
        if thread.tid() == thread.process().pid() {
            state.leader_status = status;
        }
        let last = state.threads.is_empty();
        let answer = last.then(|| match state.ending {
            Some(Ending::Exit(status)) => status,
            _ => state.leader_status,
        });
        let stopped = state
            .stop
            .filter(|_| !last && state.parked == state.threads.len());
        // Signals for the process that this thread was to take go to another one.
        let pending = state.pending.set();
        if !pending.is_empty() && !matches!(state.ending, Some(Ending::Exit(_))) {
            let wants = |it: &Thread| !pending.without(it.signals.mask()).is_empty();
            self.notify_others(state, None, wants);
        } else {
            drop(state);
        }
        drop(gone);
        self.gone.wake_all();
        if let Some(signal) = stopped {
            pid_table::report_stopped(thread.process(), signal);
        }
        answer
    }

    /// Sleeps while the process is stopped. The last thread to stop tells the parent.
    pub(super) fn park(&self, thread: &Thread) {
        let complete = {
            let mut state = self.lock();
            let Some(signal) = state.stop else { return };
            state.parked += 1;
            (state.parked == state.threads.len()).then_some(signal)
        };
        if let Some(signal) = complete {
            pid_table::report_stopped(thread.process(), signal);
        }
        self.resume.wait_soundly(|| {
            let state = self.lock();
            (state.stop.is_none() || state.ending.is_some()).then_some(())
        });
        let tell = {
            let mut state = self.lock();
            state.parked -= 1;
            core::mem::take(&mut state.tell_continued)
        };
        if tell {
            pid_table::report_continued(thread.process());
        }
    }
}
