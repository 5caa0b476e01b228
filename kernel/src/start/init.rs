//! The first process: a program (`init=PATH`), or the kernel itself, which then runs the command as
//! process 2, waits for orphans and obeys the signals by which busybox's `poweroff`, `halt` and
//! `reboot` speak to it.

use alloc::{format, string::String, sync::Arc, vec, vec::Vec};

use abi::{Errno, Result, raw::general as raw};
use fs::{Location, Namespace, OpenFlags, Walk};
use nucleus::{
    task::{self, Sleep},
    trap::UserContext,
};

use super::{Options, shell};
use crate::{
    linux,
    process::{
        Credentials, FsContext, Limits, Own, Shared, Thread,
        exec::{
            self,
            load::{self, Loaded, Request},
            stack::Word,
        },
        files::{FileTable, OpenFile},
        fork,
        pid_table::{self, Change, Clones, WaitRequest, Which},
        signal::{Action, SignalSet},
        wait,
    },
    shutdown::{power_off, restart},
    tty,
};

/// Where a command without a slash is looked for.
const PATH: &str = "/bin:/sbin:/usr/bin:/usr/sbin:/usr/local/bin";
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
    if let Some(path) = &options.init {
        let mut arguments = vec![path.clone()];
        arguments.extend(options.command.iter().cloned());
        begin(namespace, path.clone(), arguments, None).map_err(|e| refusal(path, e))?;
        loop {
            // The end of that process stops the machine.
            task::sleep(Sleep::SOUND);
        }
    }
    let init = be_first().map_err(|e| refusal(b"the first process", e))?;
    let (path, arguments) = match options.command.first() {
        None => {
            let shell = shell::of_root(walk);
            let name = shell.rsplit(|&byte| byte == b'/').next().unwrap_or(&shell);
            // The dash tells a shell that it serves a login.
            let arguments = vec![[b"-", name].concat()];
            (shell, arguments)
        }
        Some(name) => (name.clone(), options.command.clone()),
    };
    let first = begin(namespace, path.clone(), arguments, Some(pid_table::INIT))
        .map_err(|e| refusal(&path, e))?;
    let pid = first.process().pid();
    drop(first);
    Ok(look_after(&init, pid))
}

fn refusal(what: &[u8], error: Errno) -> String {
    let what = String::from_utf8_lossy(what);
    format!("can't run {what}: {}", error.name())
}

/// Makes the current task the first process.
fn be_first() -> Result<Arc<Thread>> {
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
fn look_after(init: &Arc<Thread>, pid: u32) -> i32 {
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

/// Starts a program in a session of its own on the console.
fn begin(
    namespace: &Arc<Namespace>,
    path: Vec<u8>,
    arguments: Vec<Vec<u8>>,
    parent: Option<u32>,
) -> Result<Arc<Thread>> {
    let root = namespace.root();
    let credentials = Arc::new(Credentials::default());
    let fs = FsContext::new(root.clone());
    let walk = Walk {
        root: &root,
        start: &root,
        who: &credentials.fs,
    };
    let home: &[u8] = match walk.resolve(b"/root", true) {
        Ok(place) if place.vnode().kind() == fs::Kind::Directory => {
            fs.set_cwd(place);
            b"/root"
        }
        _ => b"/",
    };
    let limits = Limits::initial();
    let (file, path) = find(&walk, path)?;
    let environment = [
        format!("PATH={PATH}").into_bytes(),
        [b"HOME=", home].concat(),
        b"TERM=linux".to_vec(),
        b"USER=root".to_vec(),
        b"LOGNAME=root".to_vec(),
        [b"SHELL=", &*shell::of_root(&walk)].concat(),
    ];
    let Loaded {
        class,
        space,
        entry,
        stack,
        credentials,
        name,
        ..
    } = load::load(Request {
        file,
        path,
        arguments: arguments.into_iter().map(Word::Bytes).collect(),
        environment: environment.into_iter().map(Word::Bytes).collect(),
        credentials: &credentials,
        fs: &fs,
        limits: &limits,
        personality: 0,
        withheld: exec::rights::Withheld::default(),
    })?;

    let files = FileTable::new();
    let shared = Shared {
        space,
        files: files.clone(),
        fs: fs.clone(),
        credentials,
    };
    let id = pid_table::new_id(true)?;
    let pid = id.get();
    let thread = fork::make_process(pid, parent, parent.is_none(), Some(shared.clone()))?;
    thread.set_name(&name);
    if parent.is_some() {
        pid_table::set_session(pid)?;
    }
    let console = tty::console::get();
    console.take_control_if_free(thread.process());
    let flags = OpenFlags::from_bits_retain(raw::O_RDWR);
    let walk = Walk {
        root: &root,
        start: &root,
        who: &shared.credentials.fs,
    };
    let file = match walk.open(b"/dev/console", flags, 0) {
        Ok(file) => file,
        Err(_) => tty::open(console, flags, None)?,
    };
    let open = OpenFile::new(file, flags);
    let limit = limits.soft(raw::RLIMIT_NOFILE);
    for _ in 0..3 {
        files.install(open.clone(), false, limit)?;
    }

    let mut context = UserContext::new()?;
    exec::begin(&mut context, class, entry, stack);
    fork::start(&thread, Own::new(shared, linux::run), context, None)?;
    Ok(thread)
}

/// The program's file and path: a name without a slash is looked for along [`PATH`].
fn find(walk: &Walk<'_>, name: Vec<u8>) -> Result<(Location, Vec<u8>)> {
    if name.contains(&b'/') {
        return Ok((walk.resolve(&name, true)?, name));
    }
    for folder in PATH.split(':') {
        let path = [folder.as_bytes(), b"/", &name].concat();
        if let Ok(place) = walk.resolve(&path, true) {
            return Ok((place, path));
        }
    }
    Err(Errno::ENOENT)
}
