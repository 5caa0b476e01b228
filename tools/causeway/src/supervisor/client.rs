//! A command's side of a guest's socket.

use std::cell::OnceCell;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM, SIGWINCH};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use super::place;
use super::wire::{self, Answer, Greeting, Note, Request};
use crate::outcome;
use crate::sessions::{self, Event, Program};
use crate::terminal;

/// Whether the other side has closed the connection.
fn is_gone(error: &anyhow::Error) -> bool {
    let by_send = error.downcast_ref::<Errno>();
    let by_write = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(by_send, Some(&(Errno::PIPE | Errno::CONNRESET)))
        || matches!(
            by_write,
            Some(ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
        )
}

/// Whether a program is short enough for a message; if not, that is its end
/// ([`Event::TOO_LONG`]).
pub fn fits(program: &Program) -> bool {
    wire::fits(&Request::Exec(program.clone()))
}

/// How long a supervisor may take for its first answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps, from now on, changes of this terminal's size and, with `ends`, the signals that ask this
/// program to end, for the session; the second one of a kind ends this program.
///
/// # Errors
/// When signals can't be watched.
pub fn signals(ends: bool) -> Result<Signals> {
    let ending = [SIGINT, SIGQUIT, SIGTERM];
    let all = [SIGWINCH]
        .into_iter()
        .chain(ending.into_iter().filter(|_| ends));
    // From here on none is lost. One that comes before its flag is there is passed on only.
    let signals = Signals::new(all).context("cannot watch for signals")?;
    for signal in ending.into_iter().filter(|_| ends) {
        let asked = Arc::new(AtomicBool::new(false));
        let status = i32::from(outcome::SIGNAL) + signal;
        flag::register_conditional_shutdown(signal, status, Arc::clone(&asked))?;
        flag::register(signal, asked)?;
    }
    Ok(signals)
}

/// Whether the supervisor speaks this version; `false` if it closes the connection at once, as one
/// does that knows of no versions.
fn is_understood(name: &str, connection: &UnixStream) -> Result<bool> {
    wire::greet(connection);
    connection.set_read_timeout(Some(PATIENCE))?;
    let greeting = wire::greeting(connection);
    let greeting = greeting.with_context(|| format!("the guest {name} does not answer"))?;
    connection.set_read_timeout(None)?;
    match greeting {
        Greeting::Version(wire::VERSION) => Ok(true),
        Greeting::Version(version) => bail!("{}", misunderstood(name, &version.to_string())),
        Greeting::None => bail!("{}", misunderstood(name, "none")),
        Greeting::Gone => Ok(false),
    }
}

fn misunderstood(name: &str, version: &str) -> String {
    format!(
        "the guest {name} was started by another causeway: version {} of the protocol here, \
         {version} there; use that one, or end its process",
        wire::VERSION
    )
}

/// A connection to a guest's supervisor.
pub struct Client {
    name: String,
    /// Why bytes of the session's streams were lost.
    broken: OnceCell<String>,
    connection: Arc<UnixStream>,
}

impl Client {
    /// Connects to a guest.
    ///
    /// # Errors
    /// When none with this name runs, or its supervisor is of another version.
    pub fn connect(name: &str) -> Result<Self> {
        let connection = place::connect(name)?;
        if !is_understood(name, &connection)? {
            // It has ended, unless it is still there.
            place::connect(name)?;
            bail!("{}", misunderstood(name, "none"));
        }
        Ok(Self {
            name: name.into(),
            broken: OnceCell::new(),
            connection: Arc::new(connection),
        })
    }

    /// Starts a further program on these streams, which gets these signals.
    ///
    /// # Errors
    /// When the guest is gone, or the program does not fit ([`fits`]).
    pub fn exec(
        &self,
        program: &Program,
        streams: [BorrowedFd<'_>; 3],
        signals: Option<Signals>,
    ) -> Result<()> {
        self.send(&Request::Exec(program.clone()), &streams)?;
        self.pass(signals);
        Ok(())
    }

    /// Connects these streams to the first program.
    ///
    /// # Errors
    /// When the guest is gone.
    pub fn attach(&self, streams: [BorrowedFd<'_>; 3], signals: Signals) -> Result<()> {
        let request = Request::Attach {
            window: terminal::of_streams().map(|terminal| terminal.window),
            has_keys: streams[0].is_terminal(),
        };
        self.send(&request, &streams)?;
        self.pass(Some(signals));
        Ok(())
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

    /// Sends a request. What the supervisor said before it went away, or that it went, is read
    /// next.
    fn send(&self, request: &Request, streams: &[BorrowedFd<'_>]) -> Result<()> {
        match wire::write(&self.connection, request, streams) {
            Err(error) if is_gone(&error) => Ok(()),
            written => written,
        }
    }

    fn ask(&self, request: &Request) -> Result<()> {
        self.send(request, &[])?;
        match wire::read(&self.connection)? {
            Some((Answer::Done, _)) => Ok(()),
            // It has ended meanwhile.
            None => Ok(()),
            Some((Answer::Event(Event::Refused(why)), _)) => {
                bail!("the guest {}: {why}", self.name)
            }
            Some((Answer::Event(event), _)) => bail!("the guest {}: {event:?}", self.name),
        }
    }

    /// Passes on signals, those that have come already too, on a thread that from now on is the
    /// only one to write to the connection.
    fn pass(&self, signals: Option<Signals>) {
        let Some(mut signals) = signals else { return };
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
                Event::Broken { stream, error } => {
                    self.broken.get_or_init(|| sessions::broken(stream, error));
                }
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
            Event::Ended(status) => {
                let broken = self.broken.get().cloned();
                let status = outcome::of_streams(outcome::of_program(status), broken.is_some());
                (status, broken)
            }
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
            Event::Started | Event::Broken { .. } | Event::Kill => {
                bail!("no end of the session")
            }
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn another_version_is_told_with_both() {
        let answer = |bytes: &[u8]| {
            let (here, there) = UnixStream::pair().unwrap();
            (&there).write_all(bytes).unwrap();
            drop(there);
            is_understood("web", &here).map_err(|error| error.to_string())
        };
        let version = |version: u32| [*b"cway", version.to_le_bytes()].concat();
        assert_eq!(answer(&version(wire::VERSION)), Ok(true));
        let why = answer(&version(77)).unwrap_err();
        let is_told = why.contains(&format!("version {} of", wire::VERSION)) && why.contains("77");
        assert!(is_told && why.contains("web"), "{why}");
        assert!(answer(b"12345678").unwrap_err().contains("none there"));
        // One that knows of no versions takes this one's for a message that is too long.
        assert_eq!(answer(b""), Ok(false));
        let (here, there) = UnixStream::pair().unwrap();
        wire::greet(&here);
        assert!(wire::read::<Request>(&there).is_err());
    }

    #[test]
    fn the_last_word_of_a_closed_connection_counts() {
        let client = |last: Option<&str>| {
            let (here, there) = UnixStream::pair().unwrap();
            // What it has not read breaks the connection.
            wire::greet(&here);
            if let Some(why) = last {
                wire::write_now(&there, &Answer::Event(Event::Refused(why.into())));
            }
            drop(there);
            Client {
                name: "web".into(),
                broken: OnceCell::new(),
                connection: Arc::new(here),
            }
        };
        let refused = client(Some("too many")).signal(15).unwrap_err();
        assert!(refused.to_string().contains("too many"), "{refused}");
        assert!(client(None).end().is_ok());
        assert!(client(None).wait_for_end(Duration::ZERO).unwrap());
        let null = crate::sessions::null().unwrap();
        for (last, event) in [
            (Some("too many"), Event::Refused("too many".into())),
            (None, Event::Gone),
        ] {
            let client = client(last);
            let program = Program::new(&[]);
            let streams = [null.as_fd(), null.as_fd(), null.as_fd()];
            client.exec(&program, streams, None).unwrap();
            assert_eq!(client.last().unwrap(), event);
        }
    }

    #[test]
    fn signals_that_come_before_the_request_are_sent_behind_it() {
        let (here, there) = UnixStream::pair().unwrap();
        let client = Client {
            name: "x".into(),
            broken: OnceCell::new(),
            connection: Arc::new(here),
        };
        let signals = signals(true).unwrap();
        signal_hook::low_level::raise(SIGQUIT).unwrap();
        thread::sleep(Duration::from_millis(50));
        let null = crate::sessions::null().unwrap();
        let program = Program::new(&vec![OsString::from("x".repeat(1000)); 100]);
        let sent = program.clone();
        let sender = thread::spawn(move || {
            let streams = [null.as_fd(), null.as_fd(), null.as_fd()];
            client.exec(&sent, streams, Some(signals)).unwrap();
        });
        let (request, streams) = wire::read::<Request>(&there).unwrap().unwrap();
        assert_eq!((request, streams.len()), (Request::Exec(program), 3));
        let (note, _) = wire::read::<Note>(&there).unwrap().unwrap();
        assert_eq!(note, Note::Signal(SIGQUIT as u8));
        sender.join().unwrap();
    }
}
