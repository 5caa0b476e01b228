//! The bytes of one stream on their way between the host and a port of the guest.
//!
//! Each direction has at most one chunk under way: nothing is read before all that was read has
//! been written. The counts are of bytes that have passed a port.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::descriptor::Descriptor;
use crate::input::{Keys, Wish};

/// The most bytes that are read at once.
pub const CHUNK: usize = 128 * 1024;

/// Keeps the output of a session beside its reader, or without one.
pub trait Record: Send {
    /// Appends bytes of the session's output.
    fn record(&mut self, bytes: &[u8]);
}

/// A record that both output streams of a session go to.
pub type Recorder = Arc<Mutex<dyn Record>>;

/// What a source gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// Bytes, the end, or nothing.
    Bytes,
    /// A command to this program, among keys.
    Wish(Wish),
    /// The terminal has gone away.
    Gone,
}

/// The state of an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// More may come.
    Open,
    /// Nothing more comes; the guest is to be told when the last bytes are on their way.
    Ending,
    /// The guest knows its length.
    Ended,
}

/// Standard input of a session.
pub struct Input {
    source: Option<Descriptor>,
    keys: Option<Keys>,
    pending: Vec<u8>,
    sent: u64,
    phase: Phase,
    /// The source can't be read, which the user does not know yet.
    failure: Option<i32>,
}

impl Input {
    /// Takes a stream of bytes, which may be at its end already.
    pub fn bytes(source: Option<Descriptor>) -> Self {
        let phase = match source {
            Some(_) => Phase::Open,
            None => Phase::Ending,
        };
        Self {
            source,
            keys: None,
            pending: Vec::new(),
            sent: 0,
            phase,
            failure: None,
        }
    }

    /// Takes the keys of a terminal, or none until there is one.
    pub fn terminal(source: Option<(Descriptor, Keys)>) -> Self {
        let (source, keys) = source.unzip();
        Self {
            source,
            keys,
            pending: Vec::new(),
            sent: 0,
            phase: Phase::Open,
            failure: None,
        }
    }

    /// Replaces the source of a terminal's input, or takes it away.
    pub fn change_source(&mut self, source: Option<(Descriptor, Keys)>) {
        (self.source, self.keys) = source.unzip();
    }

    /// The source, if it is to be read next: keys also for a program that takes none.
    pub fn wanted_source(&self) -> Option<&Descriptor> {
        let is_wanted = match self.phase {
            Phase::Open => self.pending.is_empty(),
            Phase::Ending | Phase::Ended => self.may_detach(),
        };
        self.source.as_ref().filter(|_| is_wanted)
    }

    /// Whether the source is that of a user who can leave.
    fn may_detach(&self) -> bool {
        self.keys.as_ref().is_some_and(Keys::may_detach)
    }

    /// Whether bytes wait for the port.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Reads from the source, which is ready, and passes on what the port takes.
    pub fn fill(&mut self, port: &UnixStream, scratch: &mut [u8]) -> Came {
        let Some(source) = &self.source else {
            return Came::Bytes;
        };
        let count = match source.read(&mut scratch[..CHUNK]) {
            Ok(count) => count,
            Err(error) if is_passing(&error) => return Came::Bytes,
            Err(error) => {
                self.failure = failure(source, &error);
                0
            }
        };
        if count == 0 {
            if self.keys.is_some() {
                return Came::Gone;
            }
            self.close();
            return Came::Bytes;
        }
        match &mut self.keys {
            Some(keys) if self.phase != Phase::Open => {
                return Came::Wish(keys.find(&scratch[..count]));
            }
            Some(keys) => {
                let wish = keys.pass(&scratch[..count], &mut self.pending);
                self.flush(port);
                if wish != Wish::Nothing {
                    return Came::Wish(wish);
                }
            }
            None => {
                let passed = self.pass(port, &scratch[..count]);
                self.pending.extend_from_slice(&scratch[passed..count]);
            }
        }
        Came::Bytes
    }

    /// Passes on what the port takes of the bytes that wait.
    pub fn flush(&mut self, port: &UnixStream) {
        let pending = std::mem::take(&mut self.pending);
        let passed = self.pass(port, &pending);
        self.pending = pending;
        self.pending.drain(..passed);
    }

    /// Writes to the port; returns how many of the bytes are done with.
    fn pass(&mut self, port: &UnixStream, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            match send(
                port,
                &bytes[done..],
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(count) => {
                    done += count;
                    self.sent += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The machine has ended.
                Err(_) => {
                    self.close();
                    return bytes.len();
                }
            }
        }
        done
    }

    /// Returns the error by which the source, a file, failed: once.
    pub fn take_failure(&mut self) -> Option<i32> {
        self.failure.take()
    }

    /// Stops reading for the program; what is under way still goes to the guest.
    pub fn close(&mut self) {
        if !self.may_detach() {
            self.source = None;
        }
        if self.phase == Phase::Open {
            self.phase = Phase::Ending;
        }
    }

    /// Stops reading, and forgets what is under way.
    pub fn discard(&mut self) {
        self.close();
        self.pending.clear();
    }

    /// Returns the length of the input when the guest is to be told: once, at its end.
    pub fn end(&mut self) -> Option<u64> {
        let is_end = self.phase == Phase::Ending && self.pending.is_empty();
        is_end.then(|| {
            self.phase = Phase::Ended;
            self.sent
        })
    }

    /// Whether the guest knows the length.
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }
}

/// The guest has sent more than it said.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMuch;

/// Standard output or standard error of a session, or what its terminal shows.
pub struct Output {
    sink: Option<Descriptor>,
    recorder: Option<Recorder>,
    pending: Vec<u8>,
    received: u64,
    /// How many bytes come in all, once the guest has said so.
    length: Option<u64>,
    /// Whether the port has been closed.
    is_cut: bool,
    /// Whether the reader has closed the sink, which the guest does not know yet.
    is_refused: bool,
    /// The sink can't be written, which the user does not know yet.
    failure: Option<i32>,
}

impl Output {
    /// Takes the stream that bytes go to, and the record of them. Without both they are dropped.
    pub fn new(sink: Option<Descriptor>, recorder: Option<Recorder>) -> Self {
        Self {
            sink,
            recorder,
            pending: Vec::new(),
            received: 0,
            length: None,
            is_cut: false,
            is_refused: false,
            failure: None,
        }
    }

    /// The stream that bytes go to.
    pub fn sink(&self) -> Option<&Descriptor> {
        self.sink.as_ref()
    }

    /// Whether there is a record of the bytes.
    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    /// Gives the bytes to another stream from now on.
    pub fn change_sink(&mut self, sink: Option<Descriptor>) {
        self.sink = sink;
        self.flush();
    }

    /// Closes the sink if all bytes have gone, so that its reader sees the end.
    pub fn close_if_complete(&mut self) -> bool {
        let is_complete = self.is_complete();
        if is_complete {
            self.sink = None;
        }
        is_complete
    }

    /// Notes that the reader has closed the sink.
    pub fn refuse(&mut self) {
        self.is_refused = self.sink.take().is_some() && self.recorder.is_none();
        self.flush();
    }

    /// Returns whether the guest is to be told that nothing is read any more: once.
    pub fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.is_refused) && self.length.is_none()
    }

    /// Whether the port is to be read next.
    pub fn wants_port(&self) -> bool {
        self.pending.is_empty() && !self.is_cut && self.length != Some(self.received)
    }

    /// Whether bytes wait for the sink.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether all bytes have come and have gone.
    pub fn is_complete(&self) -> bool {
        self.has_passed_all() && self.under_way().is_none()
    }

    fn has_passed_all(&self) -> bool {
        self.pending.is_empty() && (self.is_cut || self.length == Some(self.received))
    }

    /// What to wait for when the sink has all bytes and has not written them.
    pub fn under_way(&self) -> Option<BorrowedFd<'_>> {
        let sink = self.sink.as_ref().filter(|_| self.has_passed_all());
        sink.and_then(Descriptor::under_way)
    }

    /// Notes how many bytes come in all.
    ///
    /// # Errors
    /// When more have come, or the guest has said it before.
    pub fn end(&mut self, length: u64) -> Result<(), TooMuch> {
        if self.received > length || self.length.is_some() {
            return Err(TooMuch);
        }
        self.length = Some(length);
        Ok(())
    }

    /// Reads from the port, which is ready, and passes on what the sink takes.
    ///
    /// # Errors
    /// When more comes than the guest has said.
    pub fn drain(&mut self, port: &UnixStream, scratch: &mut [u8]) -> Result<(), TooMuch> {
        if !self.wants_port() {
            return Ok(());
        }
        let count = match recv(port, &mut scratch[..CHUNK], RecvFlags::DONTWAIT) {
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => 0,
        };
        if count == 0 {
            self.is_cut = true;
            return Ok(());
        }
        self.received += count as u64;
        if self.length.is_some_and(|length| self.received > length) {
            self.is_cut = true;
            return Err(TooMuch);
        }
        let passed = self.pass(&scratch[..count]);
        self.pending.extend_from_slice(&scratch[passed..count]);
        Ok(())
    }

    /// Passes on what the sink takes of the bytes that wait.
    pub fn flush(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let passed = self.pass(&pending);
        self.pending = pending;
        self.pending.drain(..passed);
    }

    /// Writes to the sink and the record; returns how many of the bytes are done with.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while let Some(sink) = &self.sink
            && done < bytes.len()
        {
            match sink.write(&bytes[done..]) {
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.failure = failure(sink, &error);
                    self.refuse_now();
                }
            }
        }
        if self.sink.is_none() {
            done = bytes.len();
        }
        if let Some(recorder) = &self.recorder {
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            recorder.record(&bytes[..done]);
        }
        done
    }

    /// Returns the error by which the sink, a file, failed: once.
    pub fn take_failure(&mut self) -> Option<i32> {
        self.failure.take()
    }

    fn refuse_now(&mut self) {
        self.sink = None;
        self.is_refused = self.recorder.is_none();
    }
}

/// Returns the error of a file. A reader or a terminal that has gone away is its user's wish.
fn failure(stream: &Descriptor, error: &io::Error) -> Option<i32> {
    error.raw_os_error().filter(|_| stream.is_file())
}

/// Whether a call may succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
