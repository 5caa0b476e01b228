//! A command's side of a guest's socket.

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;

use super::place;
use super::wire::{self, Answer, Note, Request};
use crate::outcome;
use crate::sessions::{Event, Program};
use crate::terminal;

/// A connection to a guest's supervisor.
pub struct Client {
    name: String,
    connection: Arc<UnixStream>,
}

impl Client {
    /// Connects to a guest.
    ///
    /// # Errors
    /// When none with this name runs.
    pub fn connect(name: &str) -> Result<Self> {
        Ok(Self {
            name: name.into(),
            connection: Arc::new(place::connect(name)?),
        })
    }

    /// Starts a further program on these streams.
    ///
    /// # Errors
    /// When the guest is gone, or the arguments are too long.
    pub fn exec(&self, program: &Program, streams: [BorrowedFd<'_>; 3]) -> Result<()> {
        wire::write(&self.connection, &Request::Exec(program.clone()), &streams)
    }

    /// Connects these streams to the first program.
    ///
    /// # Errors
    /// When the guest is gone.
    pub fn attach(&self, streams: [BorrowedFd<'_>; 3]) -> Result<()> {
        let request = Request::Attach(terminal::of_streams().map(|terminal| terminal.window));
        wire::write(&self.connection, &request, &streams)
    }

    /// Sends the first program a signal.
    ///
    /// # Errors
    /// When the guest is gone.
    pub fn signal(&self, signal: u8) -> Result<()> {
        self.ask(&Request::Signal(signal))
    }

    /// Ends the machine.
    ///
    /// # Errors
    /// When the guest is gone.
    pub fn end(&self) -> Result<()> {
        self.ask(&Request::End)
    }

    /// Asks for nothing, so that the connection may last as long as the guest.
    ///
    /// # Errors
    /// When the guest is gone.
    pub fn watch(&self) -> Result<()> {
        self.ask(&Request::Watch)
    }

    fn ask(&self, request: &Request) -> Result<()> {
        wire::write(&self.connection, request, &[])?;
        match wire::read(&self.connection)? {
            Some((Answer::Done, _)) => Ok(()),
            // It has ended meanwhile.
            None => Ok(()),
            Some((Answer::Event(event), _)) => bail!("the guest {}: {event:?}", self.name),
        }
    }

    /// Passes on, from now on, the sizes of this terminal and, with `signals`, the signals that ask
    /// this program to end; the second one of a kind ends it.
    ///
    /// # Errors
    /// When signals can't be watched.
    pub fn pass_signals(&self, signals: bool) -> Result<()> {
        let mut all = vec![SIGWINCH];
        if signals {
            all.extend([SIGINT, SIGQUIT, SIGTERM]);
            for signal in [SIGINT, SIGQUIT, SIGTERM] {
                let asked = Arc::new(std::sync::atomic::AtomicBool::new(false));
                let status = i32::from(outcome::SIGNAL) + signal;
                signal_hook::flag::register_conditional_shutdown(
                    signal,
                    status,
                    Arc::clone(&asked),
                )?;
                signal_hook::flag::register(signal, asked)?;
            }
        }
        let mut signals = Signals::new(all).context("cannot watch for signals")?;
        let connection = Arc::clone(&self.connection);
        thread::spawn(move || {
            for signal in signals.forever() {
                let note = match signal {
                    SIGWINCH => terminal::window().map(Note::Window),
                    signal => Some(Note::Signal(signal as u8)),
                };
                // A guest that has ended needs none.
                let _ = note.map(|note| wire::write(&connection, &note, &[]));
            }
        });
        Ok(())
    }

    /// Waits for the next event of the session.
    ///
    /// # Errors
    /// When the supervisor says something else.
    pub fn event(&self) -> Result<Event> {
        match wire::read(&self.connection)? {
            Some((Answer::Event(event), _)) => Ok(event),
            Some((Answer::Done, _)) => bail!("the guest {} answers something else", self.name),
            None => Ok(Event::Gone),
        }
    }

    /// Waits for the end of the session.
    ///
    /// # Errors
    /// As [`Client::event`].
    pub fn last(&self) -> Result<Event> {
        loop {
            match self.event()? {
                Event::Started | Event::Kill => {}
                last => return Ok(last),
            }
        }
    }

    /// Returns the exit status for the end of the session, and the sentence that explains it.
    ///
    /// # Errors
    /// When there was no session.
    pub fn status(&self, last: Event, program: &Program) -> Result<(u8, Option<String>)> {
        let name = &self.name;
        Ok(match last {
            Event::Ended(status) => (outcome::of_program(status), None),
            Event::Failed { part, error } => {
                let (why, status) = program.failure(part, error);
                (status, Some(why))
            }
            Event::Gone => {
                let why = format!("the guest {name} ended before the command did");
                (outcome::LEFT, Some(why))
            }
            Event::Detached => (outcome::KILLED, Some("the command was left".into())),
            Event::Refused(why) => bail!("the guest {name}: {why}"),
            Event::Started | Event::Kill => bail!("no end of the session"),
        })
    }

    /// Waits until the supervisor has ended, no longer than `patience`; returns whether it has.
    ///
    /// # Errors
    /// When the system can't wait.
    pub fn wait_for_end(&self, patience: Duration) -> Result<bool> {
        // The connection ends with the supervisor. After the last answer nothing comes before that.
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).context("too long")?;
            let mut waited = [PollFd::new(&*self.connection, PollFlags::IN)];
            match poll(&mut waited, Some(&left)) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
