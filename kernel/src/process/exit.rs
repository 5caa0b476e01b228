//! The end of threads and processes.

use alloc::sync::Arc;

use abi::raw::general::{SIGCONT, SIGHUP};
use nucleus::task;

use super::{
    Own, Process, Thread, futex, pid_table,
    signal::{self, Info},
    space::Leaving,
    undo,
};
use crate::shutdown;

/// Ends the current task's thread: drops its resources, and ends its process if it was the last.
pub fn end_thread(thread: Arc<Thread>, mut own: Own, status: i32) {
    let process = thread.process().clone();
    futex::leave(&thread, &mut own, true);
    undo::leave(&mut own.undo, process.pid());
    if let Some(release) = own.vfork.take() {
        release.give(());
    }
    let usage = thread.usage();
    process.spent.lock().threads.add(&usage);
    thread.signals.set_task(None);
    let credentials = Some(own.credentials.clone());
    let before = core::mem::replace(&mut *process.last_credentials.lock(), credentials);
    drop(before);
    // A close may sleep for as long as a server pleases: the choice of a process to be ended for
    // memory must not wait for that.
    thread.leave_files();
    let leaving = Leaving::begin();
    thread.publish(None);
    // The last user tears the address space down, and must not run in it any more.
    task::set_pmap(None);
    drop(own);

    let ended = process.signals.remove_thread(&thread, status);
    drop(leaving);
    if ended.is_some() {
        *process.last_name.lock() = thread.name();
    }
    pid_table::remove_thread(&thread);
    if let Some(status) = ended {
        end_process(&process, status);
    }
}

fn end_process(process: &Arc<Process>, status: i32) {
    process.timers.clear();
    if process.session_id() == process.pid() {
        let session = process.session();
        match (session.set_terminal(None), session.take_bereft()) {
            (Some(terminal), _) => terminal.session_ended(process.pid()),
            (None, 0) => {}
            (None, group) => {
                // The group may have no members any more.
                let _ = signal::send_to_group(group, Info::kernel(SIGHUP));
                let _ = signal::send_to_group(group, Info::kernel(SIGCONT));
            }
        }
    }
    if process.pid() == pid_table::INIT {
        shutdown::finish(status);
    }
    pid_table::end_process(process, status);
}
