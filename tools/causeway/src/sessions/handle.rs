//! The way from other threads to the [`Switch`](super::Switch), and back.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use anyhow::Result;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};
use session::{Part, Window};

use super::descriptor::Descriptor;
use super::flow::Recorder;
use super::program::Program;
use crate::input::Keys;

/// The name of the first program's session.
pub const FIRST: u64 = 0;

/// Streams of the host that a session, or a client attached to one, has.
#[derive(Default)]
pub struct Streams {
    /// Where input comes from.
    pub input: Option<Descriptor>,
    /// Finds commands to this program among the input, which is a terminal's keys.
    pub keys: Option<Keys>,
    /// Where standard output, or what the terminal shows, and standard error go.
    pub outputs: [Option<Descriptor>; 2],
    /// The record of both outputs.
    pub recorder: Option<Recorder>,
}

/// What happens to a session. Nothing follows an event that is an end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Event {
    /// The program runs.
    Started,
    /// An end: the program could not be started.
    Failed {
        /// What of it.
        part: Part,
        /// Linux's error number.
        error: i32,
    },
    /// An end: the program ended so, as `wait` says it, and all its output has been passed on.
    Ended(i32),
    /// An end: the guest ended before the program did.
    Gone,
    /// An end: there is no such session, for this reason.
    Refused(String),
    /// A stream of the host's can't be read or written any more, by this error: bytes are lost.
    Broken {
        /// 0 to 2: standard input, output, error.
        stream: u8,
        /// Linux's error number.
        error: i32,
    },
    /// The user asks by keys for the end of the machine, or of the session.
    Kill,
    /// An end: the terminal's user leaves, or the terminal has gone away.
    Detached,
}

/// Returns the sentence that says what [`Event::Broken`] does.
pub fn broken(stream: u8, error: i32) -> String {
    let name = ["input", "output", "error"].get(usize::from(stream));
    let error = io::Error::from_raw_os_error(error);
    format!("standard {}: {error}", name.unwrap_or(&"stream"))
}

impl Event {
    /// The end of a program whose arguments are too long for a message: Linux's `E2BIG`.
    pub const TOO_LONG: Self = Self::Failed {
        part: Part::Program,
        error: 7,
    };
}

/// Told of each event of a session, by the switch's thread; it must not block. It is dropped with
/// the session.
pub type Observer = Box<dyn FnMut(Event) + Send>;

/// A request to the switch.
pub(super) enum Command {
    Open(u64, Box<Program>, Streams, Observer),
    Attach(u64, Streams, Option<Window>, Observer),
    Window(u64, Window),
    Signal(u64, u8),
    HangUp(u64),
}

/// State that the switch and all handles share.
pub(super) struct Shared {
    /// Written to when there is something to do.
    pub wake: OwnedFd,
    /// Whether the switch is to end at once.
    pub is_stopped: AtomicBool,
    next: AtomicU64,
}

impl Shared {
    pub fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_stopped: AtomicBool::new(false),
            next: AtomicU64::new(FIRST + 1),
        }))
    }

    fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// Speaks to a guest's switch.
#[derive(Clone)]
pub struct Handle {
    pub(super) shared: Arc<Shared>,
    pub(super) commands: SyncSender<Command>,
}

impl Handle {
    /// Starts the guest's first program, once the guest takes messages.
    pub fn open_first(&self, program: Program, streams: Streams, observer: Observer) {
        let program = Box::new(program);
        self.send(Command::Open(FIRST, program, streams, observer));
    }

    /// Starts a further program, once the first one runs; returns its session's name.
    pub fn open(&self, program: Program, streams: Streams, observer: Observer) -> u64 {
        let id = self.new_id();
        self.send(Command::Open(id, Box::new(program), streams, observer));
        id
    }

    /// Connects streams to the first program's session; returns a name for that.
    pub fn attach(&self, streams: Streams, window: Option<Window>, observer: Observer) -> u64 {
        let id = self.new_id();
        self.send(Command::Attach(id, streams, window, observer));
        id
    }

    /// Tells a session its terminal's size.
    pub fn window(&self, id: u64, window: Window) {
        self.send(Command::Window(id, window));
    }

    /// Sends a signal to a session's program.
    pub fn signal(&self, id: u64, signal: u8) {
        self.send(Command::Signal(id, signal));
    }

    /// Sends a signal to a session's program, unless so much waits for the guest that this would
    /// have to wait, too.
    pub fn signal_now(&self, id: u64, signal: u8) {
        let _ = self.commands.try_send(Command::Signal(id, signal));
        self.shared.wake();
    }

    /// Takes a session's streams away: its user has gone.
    pub fn hang_up(&self, id: u64) {
        self.send(Command::HangUp(id));
    }

    /// Ends the switch at once; output on its way is lost.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        self.shared.wake();
    }

    fn new_id(&self) -> u64 {
        self.shared.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits while the guest takes no messages. A switch that has ended drops the command, and
    /// with it the observer.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
        self.shared.wake();
    }
}
