//! A session, and the ports that it has.

use std::os::unix::net::UnixStream;

use session::{Stream, ToGuest, ToHost, Window};

use super::control::Control;
use super::flow::{Came, Input, Output, TooMuch};
use super::handle::{Event, FIRST, Observer, Streams};
use super::program::Program;
use crate::input::Wish;

/// Both streams to the host, in the order of their ports.
pub const STREAMS: [Stream; 2] = [Stream::Output, Stream::Error];

/// The guest has sent a message that makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong;

impl From<TooMuch> for Wrong {
    fn from(_: TooMuch) -> Self {
        Self
    }
}

/// The ports of a session's number, and the session that uses them.
pub struct Slot {
    pub ports: [UnixStream; 2],
    pub session: Option<Session>,
}

impl Slot {
    /// Whether the number is about to be free.
    pub fn is_ending(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_ending)
    }
}

/// How far a session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The guest has the message that starts the program.
    Starting,
    Running,
    /// The program has ended with this status.
    Ended(i32),
    /// There is no program.
    Failed,
}

/// Signals for a program that does not run yet: one of a kind, as a process keeps them.
#[derive(Clone, Copy, Default)]
pub struct Kept(u64);

impl Kept {
    /// Adds a signal; numbers that are none are dropped.
    pub fn add(&mut self, signal: u8) {
        if (1..=64).contains(&signal) {
            self.0 |= 1 << (signal - 1);
        }
    }

    /// The signals.
    fn numbers(self) -> impl Iterator<Item = u8> {
        (1..=64).filter(move |signal| self.0 & (1 << (signal - 1)) != 0)
    }
}

/// A session from its first message on.
pub struct Session {
    id: u64,
    number: u8,
    phase: Phase,
    /// Told of the events; absent after the last one.
    observer: Option<Observer>,
    pub input: Input,
    pub outputs: [Output; 2],
    /// The client that is attached to a detached session.
    attached: Option<(u64, Observer)>,
    /// Whether the client has gone.
    is_hung_up: bool,
    /// A size that the terminal got while the program was being started.
    window: Option<Window>,
    /// Signals that came while the program was being started.
    signals: Kept,
    /// Whether the guest has forgotten the session.
    is_free: bool,
}

impl Session {
    /// Starts a program. A failure here is reported as the guest reports its own.
    pub fn start(
        (id, number): (u64, u8),
        program: &Program,
        streams: Streams,
        mut observer: Observer,
        signals: Kept,
        control: &mut Control,
    ) -> Option<Self> {
        let start = ToGuest::Start(program.start(number, id == FIRST));
        if !control.send(&start) {
            observer(Event::TOO_LONG);
            return None;
        }
        let terminal = program.terminal();
        let input = if terminal.is_some_and(|terminal| terminal.streams[0]) {
            Input::terminal(streams.input.zip(streams.keys))
        } else {
            Input::bytes(streams.input)
        };
        let outputs = streams.outputs;
        Some(Self {
            id,
            number,
            phase: Phase::Starting,
            observer: Some(observer),
            input,
            outputs: outputs.map(|sink| Output::new(sink, streams.recorder.clone())),
            attached: None,
            is_hung_up: false,
            window: None,
            signals,
            is_free: false,
        })
    }

    /// Whether the program runs, or has run.
    pub fn has_started(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Ended(_))
    }

    /// Whether only the guest's word that the number is free, or its last bytes, are to come.
    pub fn is_ending(&self) -> bool {
        let has_ended = matches!(self.phase, Phase::Ended(_) | Phase::Failed) || self.is_free;
        has_ended && self.observer.is_none()
    }

    /// Whether this name means the session, or the client that is attached to it.
    pub fn is_named(&self, id: u64) -> bool {
        self.id == id || self.is_attached(id)
    }

    /// Whether this client is attached.
    pub fn is_attached(&self, id: u64) -> bool {
        matches!(self.attached, Some((attached, _)) if attached == id)
    }

    /// Takes a message of the guest's about this session.
    ///
    /// # Errors
    /// When it makes no sense.
    pub fn receive(&mut self, message: &ToHost, control: &mut Control) -> Result<(), Wrong> {
        match (message, self.phase) {
            (ToHost::Started { .. }, Phase::Starting) => {
                self.phase = Phase::Running;
                self.tell(Event::Started);
                if let Some(window) = self.window.take() {
                    self.window(window, control);
                }
                for signal in std::mem::take(&mut self.signals).numbers() {
                    self.signal(signal, control);
                }
                if self.is_hung_up {
                    let session = self.number;
                    control.send(&ToGuest::HangUp { session });
                }
            }
            (&ToHost::Failed { part, error, .. }, Phase::Starting) => {
                self.phase = Phase::Failed;
                self.input.discard();
                self.last(Event::Failed { part, error });
            }
            (&ToHost::EndOfOutput { stream, after, .. }, Phase::Running | Phase::Ended(_)) => {
                self.outputs[stream as usize].end(after)?;
            }
            (&ToHost::Ended { status, .. }, Phase::Running) => {
                self.phase = Phase::Ended(status);
                self.input.discard();
            }
            (ToHost::InputClosed { .. }, _) => self.input.discard(),
            (ToHost::Free { .. }, Phase::Ended(_) | Phase::Failed) => self.is_free = true,
            // A program that was hung up may outlive its session.
            (ToHost::Free { .. }, Phase::Running) if self.is_hung_up => {
                self.is_free = true;
                self.last(Event::Detached);
            }
            _ => return Err(Wrong),
        }
        Ok(())
    }

    /// Reads input, which is ready.
    pub fn fill(&mut self, port: &UnixStream, scratch: &mut [u8], control: &mut Control) {
        match self.input.fill(port, scratch) {
            Came::Bytes | Came::Wish(Wish::Nothing) => {}
            // The user of the first program is the user of the machine.
            Came::Wish(Wish::Kill) if self.id == FIRST => self.tell(Event::Kill),
            Came::Gone if self.id == FIRST && self.attached.is_none() => self.tell(Event::Kill),
            Came::Wish(Wish::Kill | Wish::Detach) | Came::Gone => self.leave(control),
        }
    }

    /// Does what the states of the streams ask for; a port that is closed is that of a machine
    /// that has ended.
    pub fn settle(&mut self, control: &mut Control, is_gone: bool) {
        let session = self.number;
        if self.has_started() {
            if let Some(after) = self.input.end() {
                control.send(&ToGuest::EndOfInput { session, after });
            }
            for (output, stream) in self.outputs.iter_mut().zip(STREAMS) {
                if output.take_refusal() {
                    control.send(&ToGuest::CloseOutput { session, stream });
                }
            }
        }
        let [output, error] = self.outputs.each_mut().map(Output::take_failure);
        for (stream, error) in (0..).zip([self.input.take_failure(), output, error]) {
            if let Some(error) = error {
                self.tell(Event::Broken { stream, error });
            }
        }
        let complete = self.outputs.each_mut().map(Output::close_if_complete);
        if complete == [true; 2] {
            match self.phase {
                Phase::Ended(status) => self.last(Event::Ended(status)),
                _ if is_gone => self.last(Event::Gone),
                _ => {}
            }
        }
    }

    /// Whether nothing is left of the session.
    pub fn is_over(&self, is_gone: bool) -> bool {
        if is_gone {
            return self.observer.is_none();
        }
        match self.phase {
            Phase::Failed => self.is_free,
            // Bytes that are left in a port would be the next session's.
            _ => {
                let has_all = self.outputs.iter().all(Output::is_complete);
                self.is_free && self.observer.is_none() && self.input.is_ended() && has_all
            }
        }
    }

    /// Sends the program a signal.
    pub fn signal(&mut self, signal: u8, control: &mut Control) {
        match self.phase {
            Phase::Starting => self.signals.add(signal),
            Phase::Running => {
                let session = self.number;
                control.send(&ToGuest::Signal { session, signal });
            }
            Phase::Ended(_) | Phase::Failed => {}
        }
    }

    /// Tells the terminal its size.
    pub fn window(&mut self, window: Window, control: &mut Control) {
        match self.phase {
            Phase::Starting => self.window = Some(window),
            Phase::Running => {
                let session = self.number;
                control.send(&ToGuest::Window { session, window });
            }
            Phase::Ended(_) | Phase::Failed => {}
        }
    }

    /// Takes the session's streams away.
    pub fn hang_up(&mut self, control: &mut Control) {
        self.is_hung_up = true;
        self.input.discard();
        self.forget_sinks();
        if self.phase == Phase::Running {
            let session = self.number;
            control.send(&ToGuest::HangUp { session });
        }
    }

    /// Connects a client's streams, or tells it why not; returns whether it has.
    pub fn attach(&mut self, id: u64, streams: Streams, mut observer: Observer) -> bool {
        let is_recorded = self.outputs.iter().any(Output::is_recorded);
        let why = if !is_recorded {
            "it runs in the foreground, on a terminal or pipes of its own"
        } else if self.attached.is_some() {
            "another client is attached"
        } else if self.phase != Phase::Running {
            "its program does not run"
        } else {
            let keys = streams.input.zip(streams.keys);
            if keys.is_some() {
                self.input.change_source(keys);
            }
            for (output, sink) in self.outputs.iter_mut().zip(streams.outputs) {
                output.change_sink(sink);
            }
            observer(Event::Started);
            self.attached = Some((id, observer));
            return true;
        };
        observer(Event::Refused(why.into()));
        false
    }

    /// Takes the attached client's streams away.
    pub fn detach(&mut self) {
        if let Some((_, mut observer)) = self.attached.take() {
            self.input.change_source(None);
            self.forget_sinks();
            observer(Event::Detached);
        }
    }

    /// Takes the sinks away, so that the session waits for no reader.
    pub fn forget_sinks(&mut self) {
        for output in &mut self.outputs {
            output.change_sink(None);
        }
    }

    fn leave(&mut self, control: &mut Control) {
        if self.attached.is_some() {
            self.detach();
        } else {
            self.hang_up(control);
            self.last(Event::Detached);
        }
    }

    fn tell(&mut self, event: Event) {
        if let Some(observer) = &mut self.observer {
            observer(event);
        }
    }

    fn last(&mut self, event: Event) {
        if let Some((_, mut observer)) = self.attached.take() {
            observer(event.clone());
        }
        if let Some(mut observer) = self.observer.take() {
            observer(event);
        }
    }
}
