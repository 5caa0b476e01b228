//! Programs that the kernel starts by itself: the first one, and those of sessions.

use alloc::{sync::Arc, vec::Vec};

use abi::{Errno, Result, raw::general as raw};
use fs::{Kind, Location, Namespace, Walk, credentials::EXECUTE, vnode::Make};
use nucleus::trap::UserContext;

use super::users::User;
use crate::{
    linux,
    process::{
        FsContext, Limits, Own, Pid, Shared, Thread,
        exec::{
            self,
            load::{self, Loaded, Request},
            words::Words,
        },
        files::{FileTable, OpenFile},
        fork, pid_table,
    },
    tty::Tty,
};

/// Where a command without a slash is looked for, if the environment does not say.
const PATH: &[u8] = b"/bin:/sbin:/usr/bin:/usr/sbin:/usr/local/bin";

/// A program to start.
pub struct Program<'a> {
    /// Its name or path, and its arguments; none for the user's login shell.
    pub arguments: Vec<Vec<u8>>,
    /// `NAME=VALUE`, beside and instead of the usual variables.
    pub environment: Vec<Vec<u8>>,
    /// The working directory, made if it is missing; empty for the user's home.
    pub directory: &'a [u8],
    pub user: User,
    /// The parent; none for process 1 and for programs that the kernel itself waits for.
    pub parent: Option<Pid>,
    /// Standard input, output and error.
    pub files: [Arc<OpenFile>; 3],
    /// The terminal that its session gets.
    pub terminal: Option<Arc<Tty>>,
}

/// Why a program was not started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused {
    /// What of it.
    pub part: session::Part,
    /// Linux's error.
    pub error: Errno,
}

impl Refused {
    /// Returns a conversion of errors of `part`.
    pub fn of(part: session::Part) -> impl Fn(Errno) -> Refused {
        move |error| Refused { part, error }
    }
}

/// Starts a program in a session of its own.
///
/// # Errors
/// [`Refused`]; nothing is left of it then.
pub fn start(
    namespace: &Arc<Namespace>,
    program: Program<'_>,
) -> core::result::Result<Arc<Thread>, Refused> {
    use session::Part;
    let Program {
        mut arguments,
        environment,
        directory,
        user,
        parent,
        files: streams,
        terminal,
    } = program;
    let root = namespace.root();
    let credentials = Arc::new(user.credentials());
    let fs = FsContext::new(root.clone());
    let walk = Walk {
        root: &root,
        start: &root,
        who: &credentials.fs,
    };
    let home = enter(&walk, directory, &user.home).map_err(Refused::of(Part::Directory))?;
    fs.set_cwd(home.clone());
    let (of_program, of_session) = (Refused::of(Part::Program), Refused::of(Part::Session));
    let environment = variables(&user, environment).map_err(&of_session)?;

    let from_here = Walk {
        start: &home,
        ..walk
    };
    let (file, path) = match arguments.first() {
        Some(name) => find(&from_here, name, &environment).map_err(&of_program)?,
        None => {
            let shell = &user.shell;
            let name = shell.rsplit(|&byte| byte == b'/').next().unwrap_or(shell);
            // The dash tells a shell that it serves a login.
            arguments.push([b"-", name].concat());
            let place = walk.resolve(shell, true).map_err(&of_program)?;
            (place, shell.clone())
        }
    };
    let limits = Limits::initial();
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
        arguments: Words::of(arguments).map_err(&of_session)?,
        environment: Words::of(environment).map_err(&of_session)?,
        credentials: &credentials,
        fs: &fs,
        limits: &limits,
        personality: 0,
        withheld: exec::rights::Withheld::default(),
        beside: None,
        held: exec::held::Held::new(),
    })
    .map_err(&of_program)?;

    let files = FileTable::new();
    let limit = limits.soft(raw::RLIMIT_NOFILE);
    for stream in streams {
        files.install(stream, false, limit).map_err(&of_session)?;
    }
    let shared = Shared {
        space,
        files,
        fs,
        credentials,
    };
    let mut context = UserContext::new().map_err(|_| of_session(Errno::ENOMEM))?;
    exec::begin(&mut context, class, entry, stack);
    let id = pid_table::new_id(true).map_err(&of_session)?;
    let pid = id.get();
    let is_init = pid == pid_table::INIT;
    let thread = fork::make_process(pid, parent, is_init, Some(shared.clone()));
    let thread = thread.map_err(&of_session)?;
    thread.set_name(&name);
    if parent.is_some() {
        pid_table::set_session(pid).map_err(&of_session)?;
    }
    if let Some(terminal) = terminal {
        terminal.take_control_if_free(thread.process());
    }
    if let Err(error) = fork::start(&thread, Own::new(shared, linux::run), context, None) {
        thread.publish(None);
        thread.process().signals.remove_thread(&thread, 0);
        pid_table::remove_thread(&thread);
        pid_table::remove_unborn(pid);
        return Err(of_session(error));
    }
    Ok(thread)
}

/// Returns the directory in which a program starts: one that is missing is made, as root.
fn enter(walk: &Walk<'_>, directory: &[u8], home: &[u8]) -> Result<Location> {
    let path = match directory {
        b"" => home,
        directory => directory,
    };
    let place = match walk.resolve(path, true) {
        Err(Errno::ENOENT) if !directory.is_empty() => make_all(walk, path)?,
        place => place?,
    };
    if place.vnode().kind() != Kind::Directory {
        return Err(Errno::ENOTDIR);
    }
    walk.access(&place, EXECUTE)?;
    Ok(place)
}

/// Makes a directory and those above it that are missing.
fn make_all(walk: &Walk<'_>, path: &[u8]) -> Result<Location> {
    let root = fs::Credentials::default();
    let walk = Walk {
        who: &root,
        ..*walk
    };
    let mut made = Err(Errno::ENOENT);
    // Each prefix that ends before a slash, and the whole.
    for end in 1..=path.len() {
        if end < path.len() && path[end] != b'/' {
            continue;
        }
        made = match walk.make(&path[..end], Make::Directory, 0o755) {
            Err(Errno::EEXIST) => walk.resolve(&path[..end], true),
            made => made,
        };
    }
    made
}

/// Returns the value of a variable.
fn value<'a>(environment: &'a [Vec<u8>], name: &[u8]) -> Option<&'a [u8]> {
    let mut all = environment.iter();
    all.find_map(|word| word.strip_prefix(name)?.strip_prefix(b"="))
}

/// Returns the usual variables, of which those of `wanted` replace some.
fn variables(user: &User, wanted: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
    let usual: [(&[u8], &[u8]); 5] = [
        (b"PATH", PATH),
        (b"HOME", &user.home),
        (b"USER", &user.name),
        (b"LOGNAME", &user.name),
        (b"SHELL", &user.shell),
    ];
    let mut all = nucleus::try_vec(usual.len() + wanted.len())?;
    for (name, usual) in usual {
        if !usual.is_empty() && value(&wanted, name).is_none() {
            all.push([name, b"=", usual].concat());
        }
    }
    all.extend(wanted);
    Ok(all)
}

/// Returns the program's file and path: a name without a slash is looked for along `PATH`.
///
/// # Errors
/// As `execvp`: `EACCES` if what was found can't be executed, else `ENOENT`.
fn find(walk: &Walk<'_>, name: &[u8], environment: &[Vec<u8>]) -> Result<(Location, Vec<u8>)> {
    if name.contains(&b'/') {
        return Ok((walk.resolve(name, true)?, name.to_vec()));
    }
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    let mut error = Errno::ENOENT;
    for folder in value(environment, b"PATH")
        .unwrap_or(PATH)
        .split(|&byte| byte == b':')
    {
        let path = match folder {
            b"" => name.to_vec(),
            folder => [folder, b"/", name].concat(),
        };
        let Ok(place) = walk.resolve(&path, true) else {
            continue;
        };
        match place.vnode().kind() {
            Kind::Regular if walk.access(&place, EXECUTE).is_ok() => return Ok((place, path)),
            _ => error = Errno::EACCES,
        }
    }
    Err(error)
}
