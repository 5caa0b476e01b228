//! The beginning of a session: its pipes and its terminal, its tasks, its program; and its end.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use abi::{
    Errno, Result,
    raw::general::{O_RDONLY, O_RDWR, O_WRONLY, ONLCR},
};
use fs::{File, Namespace, OpenFlags, Walk};
use nucleus::{
    frame,
    task::{self, Spawn, WaitSet, Watch},
};
use session::{Part, Start, Stream, Terminal, ToHost};

use super::{
    Slot, Streams,
    control::Line,
    pump::{self, End},
    state::{Session, window_size},
};
use crate::{
    ipc::pipe,
    process::{Process, Thread, files::OpenFile, pid_table},
    start::{
        program::{self, Program, Refused},
        users::User,
    },
    tty::{self, Tty, pty},
};

/// The streams of a new session: the program's side, and the kernel's.
struct Plumbing {
    files: [Arc<OpenFile>; 3],
    terminal: Option<Arc<Tty>>,
    /// The stream that has what the terminal shows.
    shown: Option<Stream>,
    input: End,
    output: End,
    /// None: standard error is the terminal of standard output.
    error: Option<End>,
}

/// A session whose program runs.
pub(super) struct Running {
    line: Arc<Line>,
    session: Arc<Session>,
    streams: Arc<Streams>,
    thread: Arc<Thread>,
    output: End,
    has_error: bool,
}

/// Makes the streams of a session and starts its tasks and its program. The caller sees to it that
/// the session is [followed](Running::follow).
///
/// # Errors
/// [`Refused`]; the session's tasks are over then.
pub(super) fn begin(
    line: &Arc<Line>,
    slot: &Slot,
    namespace: &Arc<Namespace>,
    start: &Start<'_>,
    parent: Option<u32>,
) -> core::result::Result<Running, Refused> {
    let of_session = Refused::of(Part::Session);
    // Small allocations from here on, which do not fail, have the reserve.
    frame::check_not_scarce().map_err(|_| of_session(Errno::ENOMEM))?;
    let root = namespace.root();
    let who = fs::Credentials::default();
    let walk = Walk {
        root: &root,
        start: &root,
        who: &who,
    };
    let user = match start.user {
        b"" => User::root(&walk),
        wanted => User::find(&walk, wanted).map_err(Refused::of(Part::User))?,
    };
    let arguments = words(start.arguments).map_err(&of_session)?;
    let environment = words(start.environment).map_err(&of_session)?;
    let plumbing = plumb(&walk, start.terminal, (user.uid, user.gid)).map_err(&of_session)?;
    let Plumbing {
        files,
        terminal,
        shown,
        input,
        output,
        error,
    } = plumbing;
    if start.is_first
        && let Some(terminal) = &terminal
    {
        tty::console::set_front(terminal.clone());
    }

    let program = Program {
        arguments,
        environment,
        directory: start.directory,
        user,
        parent,
        files,
        terminal: terminal.clone(),
    };
    // The tasks begin before the program, so that one that can't be had is missed in time.
    let session = &slot.session;
    let has_error = error.is_some();
    session.set(start.is_first, terminal, shown, has_error);
    let spawned = spawn_input(line, slot, input).and_then(|()| match error {
        Some(error) => spawn_error(line, slot, error),
        None => Ok(()),
    });
    let begun = spawned
        .map_err(|_| of_session(Errno::ENOMEM))
        .and_then(|()| program::start(namespace, program));
    let thread = begun.inspect_err(|_| abandon(session))?;
    session.set_process(thread.process().clone());
    line.say(&ToHost::Started {
        session: session.number,
        pid: thread.process().pid(),
    });
    session.set_begun(true);
    Ok(Running {
        line: line.clone(),
        session: session.clone(),
        streams: slot.streams.clone(),
        thread,
        output,
        has_error,
    })
}

/// Ends the tasks of a session whose program did not start. No input was sent.
fn abandon(session: &Session) {
    session.set_begun(false);
    session.end_input(0);
    session.end(0);
    let runs = || session.error_runs() || session.input_runs();
    session.changed.wait_soundly(|| (!runs()).then_some(()));
}

/// Returns copies of the words of a list.
fn words(list: &[u8]) -> Result<Vec<Vec<u8>>> {
    let found = session::words(list).map_err(|_| Errno::EINVAL)?;
    let mut words = Vec::new();
    for word in found {
        words.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        words.push(nucleus::try_copy(word)?);
    }
    Ok(words)
}

/// Makes pipes, and a terminal for the streams that are one; all belong to this user and group.
///
/// # Errors
/// `EINVAL` for a terminal whose output goes nowhere, `ENOMEM`, `ENODEV` without `/dev/ptmx`.
fn plumb(walk: &Walk<'_>, wanted: Option<Terminal>, owner: (u32, u32)) -> Result<Plumbing> {
    let flags = OpenFlags::from_bits_retain;
    let open = |file: Arc<dyn File>, mode: u32| OpenFile::new(file, flags(mode));
    let mut terminal = None;
    if let Some(wanted) = wanted {
        if !wanted.streams[1] && !wanted.streams[2] {
            return Err(Errno::EINVAL);
        }
        let master = pty::make(&walk.resolve(b"/dev/ptmx", true)?, flags(O_RDWR))?;
        master.unlock_for(owner.0);
        // It has no errors.
        let _ = master.tty().set_window(window_size(wanted.window));
        if !wanted.newlines {
            let tty = master.tty();
            tty.adjust_settings(|settings| settings.c_oflag &= !ONLCR);
        }
        let file = open(master.open_terminal(flags(O_RDWR))?, O_RDWR);
        terminal = Some((master, file, wanted));
    }
    let is_terminal = |stream: usize| {
        let terminal = terminal.as_ref();
        terminal.filter(|(_, _, wanted)| wanted.streams[stream])
    };
    // The program's side of a stream, and the kernel's.
    let sides = |stream: usize| -> Result<(Arc<OpenFile>, End)> {
        if let Some((master, file, _)) = is_terminal(stream) {
            return Ok((file.clone(), End::Terminal(master.clone())));
        }
        let (read, write) = pipe::pair(owner)?;
        Ok(match stream {
            0 => (open(read, O_RDONLY), End::Pipe(write)),
            _ => (open(write, O_WRONLY), End::Pipe(read)),
        })
    };
    let (input, from) = sides(0)?;
    let (output, to) = sides(1)?;
    let (error, beside) = sides(2)?;
    let [by_output, by_error] = [1, 2].map(|stream| is_terminal(stream).is_some());
    Ok(Plumbing {
        files: [input, output, error],
        terminal: terminal.as_ref().map(|(master, ..)| master.tty().clone()),
        shown: match (by_output, by_error) {
            (true, _) => Some(Stream::Output),
            (false, true) => Some(Stream::Error),
            (false, false) => None,
        },
        input: from,
        output: to,
        error: (!(by_output && by_error)).then_some(beside),
    })
}

fn spawn_input(
    line: &Arc<Line>,
    slot: &Slot,
    to: End,
) -> core::result::Result<(), nucleus::OutOfMemory> {
    let (line, session, streams) = (line.clone(), slot.session.clone(), slot.streams.clone());
    let body = move || {
        pump::input(&session, &line, &mut streams.input.lock(), to);
        session.set_input_over();
    };
    let spawned = task::spawn(Spawn::kernel("session input"), Box::new(body));
    spawned.map(drop).inspect_err(|_| {
        slot.session.set_input_over();
        slot.session.set_error_over();
    })
}

fn spawn_error(
    line: &Arc<Line>,
    slot: &Slot,
    from: End,
) -> core::result::Result<(), nucleus::OutOfMemory> {
    let (line, session, streams) = (line.clone(), slot.session.clone(), slot.streams.clone());
    let body = move || {
        let mut sender = streams.error.lock();
        let sent = pump::output(&session, Stream::Error, &mut sender, from, None);
        drop(sender);
        // The program may have ended before the host knows of it.
        if session.wait_until_begun() {
            end_of_output(&line, &session, Stream::Error, sent);
        }
        session.set_error_over();
    };
    let spawned = task::spawn(Spawn::kernel("session error"), Box::new(body));
    spawned
        .map(drop)
        .inspect_err(|_| slot.session.set_error_over())
}

impl Running {
    /// Returns the first thread of the program.
    pub(super) fn thread(&self) -> &Arc<Thread> {
        &self.thread
    }

    /// Brings output to the host, waits for the end of the program and of the session's tasks, and
    /// gives the session's number back. The end of the first program is told by
    /// [`before_stop`](super::before_stop), and its number stays taken.
    pub(super) fn follow(self) {
        let Running {
            line,
            session,
            streams,
            thread,
            output,
            has_error,
        } = self;
        let process = (!session.is_first()).then(|| thread.process().clone());
        drop(thread);
        let process = process.as_deref();
        let sent = {
            let mut sender = streams.output.lock();
            pump::output(&session, Stream::Output, &mut sender, output, process)
        };
        end_of_output(&line, &session, Stream::Output, sent);
        wait_for(&session, process, || {
            session.is_ending() || session.is_hung_up()
        });
        session
            .changed
            .wait_soundly(|| (!session.error_runs()).then_some(()));
        if !has_error {
            end_of_output(&line, &session, Stream::Error, 0);
        }
        if let Some(status) = session.ended() {
            line.say(&ToHost::Ended {
                session: session.number,
                status,
            });
        }
        session.set_told();
        let Some(process) = process else { return };
        if session.is_cut_off() {
            // The host learns of its end by the machine's.
            return;
        }
        session
            .changed
            .wait_soundly(|| (!session.input_runs()).then_some(()));
        session.give_back();
        line.say(&ToHost::Free {
            session: session.number,
        });
        // A program that outlives its session is waited for all the same.
        process.end_events.wait_soundly(|| process.end_status());
        pid_table::reap_parentless(process);
    }
}

fn end_of_output(line: &Line, session: &Session, stream: Stream, after: u64) {
    line.say(&ToHost::EndOfOutput {
        session: session.number,
        stream,
        after,
    });
}

/// Waits until `is_over`, which changes of the session may make true, and notes the end of the
/// process meanwhile.
fn wait_for(session: &Session, process: Option<&Process>, is_over: impl Fn() -> bool) {
    let note = || {
        if let Some(status) = process.and_then(Process::end_status) {
            session.end(status);
        }
    };
    let mut set = WaitSet::new();
    set.add(&session.changed);
    if let Some(process) = process {
        set.add(&process.end_events);
    }
    let how = match set.check() {
        Ok(()) => task::Sleep::SOUND,
        Err(_) => task::Sleep::within(core::time::Duration::from_millis(10)),
    };
    loop {
        note();
        if is_over() {
            return;
        }
        // A deadline is only a reason to look again.
        let _ = set.wait(how);
    }
}
