//! The thread that moves the bytes and messages of all sessions of a guest.
//!
//! It waits in `poll` for everything at once, and every call that it makes returns at once.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use session::{ToHost, VERSION};

use super::control::{Control, Lost};
use super::flow::CHUNK;
use super::handle::{Command, Event, FIRST, Handle, Observer, Shared, Streams};
use super::ports::Ports;
use super::program::Program;
use super::slot::{Kept, Session, Slot};

/// How many requests other threads may have under way.
const REQUESTS: usize = 64;

/// How long a further program waits until the first one runs.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long output waits, after the machine has ended, for a client that is not the guest's own.
const GRACE: Duration = Duration::from_secs(5);

/// A program that waits for its session.
struct Opening {
    id: u64,
    program: Box<Program>,
    streams: Streams,
    observer: Observer,
    signals: Kept,
    since: Instant,
}

/// What `poll` waits for.
#[derive(Clone, Copy)]
enum Token {
    Wake,
    Control,
    /// The source of a session's input.
    Source(usize),
    /// A port of a session's.
    Port(usize, usize),
    /// The sink of an output.
    Sink(usize, usize),
    /// A sink that has written all: its session may be over.
    Idle,
}

/// The sessions of a guest.
pub struct Switch {
    control: Control,
    slots: Vec<Slot>,
    commands: Receiver<Command>,
    shared: Arc<Shared>,
    openings: VecDeque<Opening>,
    /// Whether the guest takes messages.
    is_ready: bool,
    /// When the machine ended.
    gone: Option<Instant>,
    scratch: Vec<u8>,
}

impl Switch {
    /// Makes the switch of a guest, and the handle by which other threads use it.
    ///
    /// # Errors
    /// When the system gives no means to wake it.
    pub fn new(ports: Ports) -> Result<(Self, Handle)> {
        let (sender, commands) = mpsc::sync_channel(REQUESTS);
        let shared = Shared::new()?;
        let handle = Handle {
            shared: Arc::clone(&shared),
            commands: sender,
        };
        let slots = ports.streams.into_iter();
        let switch = Self {
            control: Control::new(ports.control),
            slots: slots
                .map(|ports| Slot {
                    ports,
                    session: None,
                })
                .collect(),
            commands,
            shared,
            openings: VecDeque::new(),
            is_ready: false,
            gone: None,
            scratch: vec![0; CHUNK],
        };
        Ok((switch, handle))
    }

    /// Moves bytes until the machine has ended and its output has gone. `fault` is called with a
    /// sentence when the guest does not keep to the protocol: it must end the machine.
    pub fn run(mut self, mut fault: impl FnMut(&str)) {
        while !self.shared.is_stopped.load(Ordering::SeqCst) {
            // In this order: the work that one leaves to the next wakes no `poll`.
            self.obey();
            self.expire();
            self.settle();
            self.open();
            if self.is_over() {
                break;
            }
            if let Err(why) = self.turn() {
                self.gone.get_or_insert_with(Instant::now);
                fault(&why);
            }
        }
    }

    /// Carries out what other threads ask for.
    fn obey(&mut self) {
        while !self.control.is_full()
            && let Ok(command) = self.commands.try_recv()
        {
            match command {
                Command::Open(id, program, streams, observer) => self.openings.push_back(Opening {
                    id,
                    program,
                    streams,
                    observer,
                    signals: Kept::default(),
                    since: Instant::now(),
                }),
                Command::Attach(id, streams, window, mut observer) => {
                    match self.slots[0].session.as_mut() {
                        None => observer(Event::Refused("its program does not run".into())),
                        Some(session) => {
                            let is_attached = session.attach(id, streams, observer);
                            if let Some(window) = window.filter(|_| is_attached) {
                                session.window(window, &mut self.control);
                            }
                        }
                    }
                }
                Command::Window(id, window) => {
                    let opening = self.openings.iter_mut().find(|opening| opening.id == id);
                    if let Some(opening) = opening {
                        opening.program.set_window(window);
                    } else if let Some(session) = named(&mut self.slots, id) {
                        session.window(window, &mut self.control);
                    }
                }
                Command::Signal(id, signal) => {
                    let opening = self.openings.iter_mut().find(|opening| opening.id == id);
                    if let Some(opening) = opening {
                        opening.signals.add(signal);
                    } else if let Some(session) = named(&mut self.slots, id) {
                        session.signal(signal, &mut self.control);
                    }
                }
                Command::HangUp(id) => {
                    self.openings.retain(|opening| opening.id != id);
                    match named(&mut self.slots, id) {
                        Some(session) if session.is_attached(id) => session.detach(),
                        Some(session) => session.hang_up(&mut self.control),
                        None => {}
                    }
                }
            }
        }
    }

    /// Starts the programs that can be started.
    fn open(&mut self) {
        if self.gone.is_some() {
            for mut opening in self.openings.drain(..) {
                (opening.observer)(Event::Gone);
            }
        }
        if !self.is_ready {
            return;
        }
        for _ in 0..self.openings.len() {
            let Some(opening) = self.openings.pop_front() else {
                return;
            };
            let is_first = opening.id == FIRST;
            let first = self.slots[0].session.as_ref();
            let first_runs = first.is_some_and(Session::has_started);
            if !is_first && !first_runs {
                self.openings.push_back(opening);
                continue;
            }
            let mut numbers = if is_first { 0..1 } else { 1..self.slots.len() };
            match numbers.find(|&number| self.slots[number].session.is_none()) {
                Some(number) => {
                    self.slots[number].session = Session::start(
                        (opening.id, number as u8),
                        &opening.program,
                        opening.streams,
                        opening.observer,
                        opening.signals,
                        &mut self.control,
                    );
                }
                None if self.slots[1..].iter().any(Slot::is_ending) => {
                    self.openings.push_back(opening);
                }
                None => {
                    let mut observer = opening.observer;
                    let why = format!("all {} sessions of the guest are in use", self.slots.len());
                    observer(Event::Refused(why));
                }
            }
        }
    }

    /// Gives up what has waited too long.
    fn expire(&mut self) {
        let late = |since: Instant, patience| since.elapsed() >= patience;
        for opening in &mut self.openings {
            if opening.id != FIRST && late(opening.since, PATIENCE) {
                let why = "the guest starts no further program";
                (opening.observer)(Event::Refused(why.into()));
            }
        }
        self.openings
            .retain(|opening| opening.id == FIRST || !late(opening.since, PATIENCE));
        if self.gone.is_some_and(|since| late(since, GRACE)) {
            for session in self
                .slots
                .iter_mut()
                .filter_map(|slot| slot.session.as_mut())
            {
                if !session.is_named(FIRST) || session.outputs[0].is_recorded() {
                    session.forget_sinks();
                }
            }
        }
    }

    /// Brings each session up to date.
    fn settle(&mut self) {
        let is_gone = self.gone.is_some();
        for slot in &mut self.slots {
            if let Some(session) = &mut slot.session {
                session.settle(&mut self.control, is_gone);
                if session.is_over(is_gone) {
                    slot.session = None;
                }
            }
        }
    }

    /// Whether the machine has ended and nothing is left to do for its sessions.
    fn is_over(&self) -> bool {
        let is_idle = self.slots.iter().all(|slot| slot.session.is_none());
        self.gone.is_some() && is_idle && self.openings.is_empty()
    }

    /// The next time at which something is to be given up.
    fn deadline(&self) -> Option<Instant> {
        let openings = self.openings.iter().map(|opening| opening.since + PATIENCE);
        let gone = self.gone.map(|since| since + GRACE);
        openings.chain(gone).filter(|&at| at > Instant::now()).min()
    }

    /// Waits until something can be done, and does it once.
    ///
    /// # Errors
    /// When the guest does not keep to the protocol.
    fn turn(&mut self) -> Result<(), String> {
        for (token, ready) in self.wait() {
            match token {
                Token::Wake => {
                    // It only says that there is something to do.
                    let _ = rustix::io::read(&self.shared.wake, &mut [0; 8]);
                }
                Token::Control => {
                    if ready.contains(PollFlags::OUT) {
                        self.control.flush();
                    }
                    if ready != PollFlags::OUT {
                        self.listen()?;
                    }
                }
                Token::Source(number) => {
                    let slot = &mut self.slots[number];
                    if let Some(session) = &mut slot.session {
                        session.fill(&slot.ports[0], &mut self.scratch, &mut self.control);
                    }
                }
                Token::Port(number, stream) => self.port(number, stream, ready)?,
                Token::Idle => {}
                Token::Sink(number, stream) => {
                    let Some(session) = &mut self.slots[number].session else {
                        continue;
                    };
                    let output = &mut session.outputs[stream];
                    if ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
                        output.refuse();
                    } else if output.has_pending() {
                        output.flush();
                    }
                }
            }
        }
        Ok(())
    }

    /// Moves bytes through a port that is ready.
    fn port(&mut self, number: usize, stream: usize, ready: PollFlags) -> Result<(), String> {
        let slot = &mut self.slots[number];
        let Some(session) = &mut slot.session else {
            return Ok(());
        };
        let port = &slot.ports[stream];
        let lost = PollFlags::ERR | PollFlags::HUP;
        if stream == 0 && ready.intersects(PollFlags::OUT | lost) {
            session.input.flush(port);
        }
        if ready.intersects(PollFlags::IN | lost) {
            let drained = session.outputs[stream].drain(port, &mut self.scratch);
            drained.map_err(|_| format!("the guest sent more than it said in session {number}"))?;
        }
        Ok(())
    }

    /// Takes the guest's messages.
    fn listen(&mut self) -> Result<(), String> {
        let messages = match self.control.receive() {
            Ok(messages) => messages,
            Err(Lost::Closed) => {
                self.gone = Some(Instant::now());
                return Ok(());
            }
            Err(Lost::Wrong) => return Err("the guest sent something that is no message".into()),
        };
        for message in messages {
            self.receive(&message)
                .ok_or_else(|| format!("the guest sent {message:?}, which makes no sense"))??;
        }
        Ok(())
    }

    /// Takes a message; `None` if it makes no sense.
    fn receive(&mut self, message: &ToHost) -> Option<Result<(), String>> {
        let &(ToHost::Started { session, .. }
        | ToHost::Failed { session, .. }
        | ToHost::EndOfOutput { session, .. }
        | ToHost::InputClosed { session }
        | ToHost::Ended { session, .. }
        | ToHost::Free { session }) = message
        else {
            return self.ready(message);
        };
        let slot = self.slots.get_mut(usize::from(session))?;
        let receiver = slot.session.as_mut()?;
        receiver.receive(message, &mut self.control).ok().map(Ok)
    }

    /// Takes the guest's first message.
    fn ready(&mut self, message: &ToHost) -> Option<Result<(), String>> {
        let &ToHost::Ready { version, sessions } = message else {
            return None;
        };
        if self.is_ready {
            return None;
        }
        let count = self.slots.len();
        if version != VERSION || usize::from(sessions) != count {
            return Some(Err(format!(
                "the kernel speaks version {version} of the protocol with {sessions} sessions, \
                 this program version {VERSION} with {count}: they are not of one build"
            )));
        }
        self.is_ready = true;
        Some(Ok(()))
    }

    /// Waits, and returns what is ready.
    fn wait(&self) -> Vec<(Token, PollFlags)> {
        let mut waited = Waited::default();
        waited.add(Token::Wake, self.shared.wake.as_fd(), PollFlags::IN);
        if self.gone.is_none() {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, self.control.has_outgoing());
            waited.add(Token::Control, self.control.socket().as_fd(), events);
        }
        for (number, slot) in self.slots.iter().enumerate() {
            let Some(session) = &slot.session else {
                continue;
            };
            if session.has_started()
                && let Some(source) = session.input.wanted_source()
            {
                waited.add(Token::Source(number), source.as_fd(), PollFlags::IN);
            }
            for (stream, output) in session.outputs.iter().enumerate() {
                let mut events = PollFlags::empty();
                events.set(PollFlags::IN, output.wants_port());
                events.set(PollFlags::OUT, stream == 0 && session.input.has_pending());
                if !events.is_empty() {
                    let port = slot.ports[stream].as_fd();
                    waited.add(Token::Port(number, stream), port, events);
                }
                if let Some(sink) = output.sink() {
                    let mut events = PollFlags::empty();
                    events.set(PollFlags::OUT, output.has_pending());
                    waited.add(Token::Sink(number, stream), sink.as_fd(), events);
                }
                if let Some(idle) = output.under_way() {
                    waited.add(Token::Idle, idle, PollFlags::IN);
                }
            }
        }
        let left = self
            .deadline()
            .map(|at| at.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        // Interrupted, it is asked again.
        let _ = poll(&mut waited.descriptors, left.as_ref());
        waited.ready()
    }
}

/// A list for `poll`.
#[derive(Default)]
struct Waited<'a> {
    tokens: Vec<Token>,
    descriptors: Vec<PollFd<'a>>,
}

impl<'a> Waited<'a> {
    fn add(&mut self, token: Token, descriptor: BorrowedFd<'a>, events: PollFlags) {
        self.tokens.push(token);
        let waited = PollFd::from_borrowed_fd(descriptor, events);
        self.descriptors.push(waited);
    }

    /// Returns what is ready, and how.
    fn ready(self) -> Vec<(Token, PollFlags)> {
        let ready = self.descriptors.iter().map(PollFd::revents);
        let ready = self.tokens.into_iter().zip(ready);
        ready.filter(|(_, events)| !events.is_empty()).collect()
    }
}

/// The session that this name means.
fn named(slots: &mut [Slot], id: u64) -> Option<&mut Session> {
    slots
        .iter_mut()
        .filter_map(|slot| slot.session.as_mut())
        .find(|session| session.is_named(id))
}
