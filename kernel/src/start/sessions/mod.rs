//! Sessions: programs that the host asks for by a console device (crate `session`), their streams
//! and their ends.
//!
//! - [`control`]: messages to the host, and those from it;
//! - [`pump`]: bytes between a port and a pipe or a terminal;
//! - [`state`]: a session's state, shared by its tasks;
//! - [`begin`]: its pipes, its terminal, its program.
//!
//! # Tasks
//!
//! | task | does | ends |
//! |---|---|---|
//! | `sessions` | takes messages from the host | with the machine |
//! | `session` | starts the program, brings its output to the host, waits for its end | `Free` |
//! | `session input` | brings input to the program, discards what comes too late | all input came |
//! | `session error` | brings standard error to the host, where it is not the terminal | end of output |
//!
//! The machine's end begins with [`before_stop`], which waits until the first program's session has
//! told the host of its end.

mod begin;
mod control;
mod pump;
mod state;

use alloc::{boxed::Box, format, string::String, sync::Arc, vec::Vec};

use abi::Errno;
use fs::Namespace;
use nucleus::{
    OutOfMemory, log,
    sync::{Mutex, Rank, SpinLock},
    task::{self, Spawn},
};
use session::{Start, ToGuest, ToHost};

use super::{init, program::Refused};
use crate::{
    device::ports::{self, Ports, Receiver, Sender},
    process::pid_table,
    shutdown,
};
use begin::Running;
use control::{Inbox, Line};
use state::Session;

/// All sessions of the machine, for its end.
static SESSIONS: SpinLock<Option<Arc<Sessions>>> = SpinLock::new(Rank::Leaf, None);

/// The sessions that there may be.
struct Sessions {
    /// Dropped, it would stop.
    _device: Arc<Ports>,
    line: Arc<Line>,
    namespace: Arc<Namespace>,
    slots: Vec<Slot>,
}

/// A session's number: what stays when one session ends and another begins.
struct Slot {
    session: Arc<Session>,
    streams: Arc<Streams>,
}

/// The ports of a session. Each half belongs to one task at a time.
struct Streams {
    input: Mutex<Receiver>,
    output: Mutex<Sender>,
    error: Mutex<Sender>,
}

/// Waits for the host's first program, runs it, and returns its wait status.
///
/// # Errors
/// A sentence that says why there can be no sessions.
pub fn run(count: u8, namespace: &Arc<Namespace>) -> Result<i32, String> {
    let device = ports::start(session::error_port(count - 1) + 1)
        .map_err(|error| format!("sessions: the console device can't be used: {error:?}"))?;
    let (sessions, mut inbox) =
        Sessions::new(&device, count, namespace).map_err(|_| "no memory for sessions")?;
    *SESSIONS.lock() = Some(sessions.clone());
    shutdown::add_before(before_stop);
    sessions.line.say(&ToHost::Ready {
        version: session::VERSION,
        sessions: count,
    });
    // Numbers of processes begin with it.
    let message = loop {
        let next = inbox.next().ok_or("sessions: the console device failed")?;
        let (message, _) = next;
        if let Ok(ToGuest::Start(start)) = session::parse(message)
            && start.is_first
            && usize::from(start.session) < sessions.slots.len()
        {
            break nucleus::try_copy(message).map_err(|_| "no memory for the first program")?;
        }
        log!("sessions: the host does not begin with a program");
    };
    let Ok(ToGuest::Start(start)) = session::parse(&message) else {
        return Err("sessions: a message changed".into());
    };
    let init = match start.is_init {
        true => None,
        false => {
            let init = init::be_first();
            Some(init.map_err(|error| format!("can't be the first process: {}", error.name()))?)
        }
    };
    let parent = init.as_ref().map(|_| pid_table::INIT);
    let first = match sessions.begin(&start, parent) {
        Ok(running) => running,
        Err(status) => return Ok(status),
    };
    drop(message);
    let pid = first.thread().process().pid();
    let following = task::spawn(Spawn::kernel("session"), Box::new(|| first.follow()));
    following.map_err(|_| "no memory for sessions")?;
    let taking = {
        let sessions = sessions.clone();
        let body = move || sessions.take_messages(&mut inbox);
        task::spawn(Spawn::kernel("sessions"), Box::new(body))
    };
    taking.map_err(|_| "no memory for sessions")?;
    let Some(init) = init else { init::rest() };
    Ok(init::look_after(&init, pid))
}

impl Sessions {
    fn new(
        device: &Arc<Ports>,
        count: u8,
        namespace: &Arc<Namespace>,
    ) -> Result<(Arc<Sessions>, Inbox), OutOfMemory> {
        let mut slots = nucleus::try_vec(count.into())?;
        for number in 0..count {
            let (data, error) = (session::data_port(number), session::error_port(number));
            slots.push(Slot {
                session: Arc::new(Session::new(number)),
                streams: Arc::new(Streams {
                    input: Mutex::new(crate::rank::SESSION, device.receiver(data)?),
                    output: Mutex::new(crate::rank::SESSION, device.sender(data)?),
                    error: Mutex::new(crate::rank::SESSION, device.sender(error)?),
                }),
            });
        }
        let line = Line::new(device.sender(session::CONTROL)?)?;
        let inbox = Inbox::new(device.receiver(session::CONTROL)?);
        let sessions = Sessions {
            _device: device.clone(),
            line: Arc::new(line),
            namespace: namespace.clone(),
            slots,
        };
        Ok((Arc::new(sessions), inbox))
    }

    /// Starts a session's program and tells the host.
    ///
    /// # Errors
    /// The wait status that a shell gives a command that it can't run, which the host was told of.
    fn begin(self: &Arc<Self>, start: &Start<'_>, parent: Option<u32>) -> Result<Running, i32> {
        let slot = &self.slots[usize::from(start.session)];
        let result = begin::begin(&self.line, slot, &self.namespace, start, parent);
        result.map_err(|Refused { part, error }| {
            self.line.say(&ToHost::Failed {
                session: start.session,
                part,
                error: error.number().into(),
            });
            // As the host says it.
            let is_missing = part == session::Part::Program && error == Errno::ENOENT;
            (if is_missing { 127 } else { 126 }) << 8
        })
    }

    /// Obeys the host.
    fn take_messages(self: &Arc<Self>, inbox: &mut Inbox) {
        while let Some((message, is_whole)) = inbox.next() {
            match session::parse(message) {
                Ok(ToGuest::Start(start)) => self.take_start(&start, message),
                Ok(message) => self.obey(&message),
                Err(_) => {
                    // The start of a program is answered even if its message is not understood.
                    if let &[0, number, ..] = message
                        && let Some(session) = self.claim(number)
                    {
                        session.give_back();
                        let error = is_whole.map_or(Errno::ENOMEM, |()| Errno::EINVAL);
                        self.refuse(number, error);
                    }
                }
            }
        }
        log!("sessions: the console device failed");
    }

    /// Takes a number for a program. `None`, which the host is told, if it is another program's,
    /// which goes on.
    fn claim(&self, number: u8) -> Option<&Arc<Session>> {
        let slot = self.slots.get(usize::from(number));
        let taken = slot.map(|slot| &slot.session).filter(|it| it.take());
        if taken.is_none() {
            self.say_failed(number, Errno::EBUSY);
        }
        taken
    }

    /// Says that a program did not start, and that the number may be used again.
    fn refuse(&self, session: u8, error: Errno) {
        self.say_failed(session, error);
        self.line.say(&ToHost::Free { session });
    }

    fn say_failed(&self, session: u8, error: Errno) {
        self.line.say(&ToHost::Failed {
            session,
            part: session::Part::Session,
            error: error.number().into(),
        });
    }

    /// Starts a program in a task of its own: its file may have to be read.
    fn take_start(self: &Arc<Self>, start: &Start<'_>, message: &[u8]) {
        let number = start.session;
        if start.is_first {
            // There is one already.
            self.say_failed(number, Errno::EBUSY);
            return;
        }
        let Some(session) = self.claim(number) else {
            return;
        };
        let started = nucleus::try_copy(message).and_then(|message| {
            let sessions = self.clone();
            let body = move || {
                let Ok(ToGuest::Start(start)) = session::parse(&message) else {
                    return;
                };
                let begun = sessions.begin(&start, None);
                drop(message);
                match begun {
                    Ok(running) => running.follow(),
                    Err(_) => {
                        sessions.slots[usize::from(number)].session.give_back();
                        sessions.line.say(&ToHost::Free { session: number });
                    }
                }
            };
            task::spawn(Spawn::kernel("session"), Box::new(body)).map(drop)
        });
        if started.is_err() {
            session.give_back();
            self.refuse(number, Errno::ENOMEM);
        }
    }

    fn obey(&self, message: &ToGuest<'_>) {
        let find = |number: u8| {
            self.slots
                .get(usize::from(number))
                .map(|slot| &slot.session)
        };
        match *message {
            ToGuest::Start(_) => {}
            ToGuest::EndOfInput { session, after } => {
                if let Some(session) = find(session) {
                    session.end_input(after);
                }
            }
            ToGuest::CloseOutput { session, stream } => {
                if let Some(session) = find(session) {
                    session.close_output(stream);
                }
            }
            ToGuest::Window { session, window } => {
                if let Some(session) = find(session) {
                    session.resize(window);
                }
            }
            ToGuest::Signal { session, signal } => {
                if let Some(session) = find(session) {
                    session.signal(signal);
                }
            }
            ToGuest::HangUp { session } => {
                if let Some(session) = find(session) {
                    session.hang_up();
                }
            }
        }
    }
}

/// Waits, before the machine stops, until the output of the first program has left it and the host
/// knows of the program's end with `status`, if that is why the machine stops.
fn before_stop(status: Option<i32>) {
    let Some(sessions) = SESSIONS.lock().clone() else {
        return;
    };
    for slot in &sessions.slots {
        slot.session.wait_for_end(status);
    }
    sessions.line.wait();
}
