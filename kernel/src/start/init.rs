//! The first process: a program (`init=PATH`), or the kernel itself, which then runs the command as
//! process 2, waits for orphans and obeys the signals by which busybox's `poweroff`, `halt` and
//! `reboot` speak to it.

use alloc::{format, string::String, sync::Arc, vec, vec::Vec};

use abi::{Errno, Result, raw::general as raw};
use fs::{Namespace, OpenFlags, Walk};
use nucleus::task::{self, Sleep};

use super::{
    Options,
    program::{self, Program},
    sessions,
    users::User,
};
use crate::{
    process::{
        Thread,
        files::OpenFile,
        fork,
        pid_table::{self, Change, Clones, WaitRequest, Which},
        signal::{Action, SignalSet},
        wait,
    },
    shutdown::{power_off, restart},
    tty,
};

/// The signals that the kernel as first process obeys.
const OBEYED: SignalSet = SignalSet::of(&[raw::SIGUSR1, raw::SIGUSR2, raw::SIGTERM]);

/// Runs the first processes; returns the wait status of the command when it has ended.
///
/// # Errors
/// A sentence that says why the command can't be run.
pub fn run(
    options: &Options,
    namespace: &Arc<Namespace>,
    walk: &Walk<'_>,
) -> core::result::Result<i32, String> {
    if let Some(count) = options.sessions {
        return sessions::run(count, namespace);
    }
    if let Some(path) = &options.init {
        let mut arguments = vec![path.clone()];
        arguments.extend(options.command.iter().cloned());
        begin(namespace, walk, arguments, None).map_err(|e| refusal(path, e))?;
        rest();
    }
    let init = be_first().map_err(|e| refusal(b"the first process", e))?;
    let first = begin(
        namespace,
        walk,
        options.command.clone(),
        Some(pid_table::INIT),
    );
    let what = options.command.first().map_or(&b"a shell"[..], |name| name);
    let first = first.map_err(|e| refusal(what, e))?;
    let pid = first.process().pid();
    drop(first);
    Ok(look_after(&init, pid))
}

/// Sleeps until the end of the first process, a program, stops the machine.
pub(super) fn rest() -> ! {
    loop {
        task::sleep(Sleep::SOUND);
    }
}

fn refusal(what: &[u8], error: Errno) -> String {
    let what = String::from_utf8_lossy(what);
    format!("can't run {what}: {}", error.name())
}

/// Makes the current task the first process.
pub(super) fn be_first() -> Result<Arc<Thread>> {
    let id = pid_table::new_id(true)?;
    let pid = id.get();
    let thread = fork::make_process(pid, None, true, None)?;
    thread.set_name(b"init");
    thread.signals.set_task(Some(task::current()));
    for signal in 1..=64 {
        if OBEYED.has(signal) {
            // Any address but those of "default" and "ignore": the signal is to be queued, not to
            // be delivered.
            let caught = Action {
                handler: u64::MAX,
                ..Action::default()
            };
            thread.process().signals.set_action(signal, Some(caught));
        }
    }
    Ok(thread)
}

/// Waits for children until the one with id `pid` has ended; returns its wait status.
pub(super) fn look_after(init: &Arc<Thread>, pid: u32) -> i32 {
    let wanted = WaitRequest {
        which: Which::Any,
        ended: true,
        stopped: false,
        continued: false,
        clones: Clones::All,
        keep: false,
    };
    loop {
        if let Ok(Some((child, Change::Ended(status)))) = wait::wait(init.process(), &wanted, true)
        {
            if child.pid() == pid {
                return status;
            }
            continue;
        }
        if let Some(task) = init.task() {
            task.clear_interrupt();
        }
        while let Some(info) = init.take_pending(SignalSet(!0)) {
            match info.signal {
                raw::SIGUSR1 | raw::SIGUSR2 => power_off(),
                raw::SIGTERM => restart(),
                _ => {}
            }
        }
    }
}

/// Starts a program on the serial console.
fn begin(
    namespace: &Arc<Namespace>,
    walk: &Walk<'_>,
    arguments: Vec<Vec<u8>>,
    parent: Option<u32>,
) -> Result<Arc<Thread>> {
    let console = tty::console::get();
    let flags = OpenFlags::from_bits_retain(raw::O_RDWR);
    let file = match walk.open(b"/dev/console", flags, 0) {
        Ok(file) => file,
        Err(_) => tty::open(console.clone(), flags, None)?,
    };
    let open = OpenFile::new(file, flags);
    let program = Program {
        arguments,
        environment: vec![b"TERM=linux".to_vec()],
        directory: b"",
        user: User::root(walk),
        parent,
        files: [open.clone(), open.clone(), open],
        terminal: Some(console),
    };
    program::start(namespace, program).map_err(|refused| refused.error)
}
