//! Writing to a stream that may block for as long as its reader likes: a terminal that is another
//! user's, which can't be opened again. A thread of its own writes, so that only this stream waits.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{OFlags, fcntl_setfl};

/// Bytes that the thread writes at a time.
const CHUNK: usize = 4096;

/// The way to such a stream. Dropped, what is under way is still written.
#[derive(Debug)]
pub struct Relay {
    /// To the thread; without blocking.
    way: OwnedFd,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// Bytes that were taken, and not written yet.
    waiting: AtomicUsize,
    /// Ready to be read once there are none.
    is_idle: OwnedFd,
}

impl Relay {
    /// Begins to write to `to`.
    ///
    /// # Errors
    /// When the host refuses a pipe or a thread.
    pub fn new(to: OwnedFd) -> io::Result<Self> {
        let (from, way) = io::pipe()?;
        let way = OwnedFd::from(way);
        fcntl_setfl(&way, OFlags::NONBLOCK)?;
        let state = Arc::new(State {
            waiting: AtomicUsize::new(0),
            is_idle: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let ours = state.clone();
        let body = move || ours.bring(from, File::from(to));
        thread::Builder::new().name("relay".into()).spawn(body)?;
        Ok(Self { way, state })
    }

    /// Takes a part of the bytes.
    ///
    /// # Errors
    /// `EAGAIN` when nothing fits now, `EPIPE` when the stream is closed.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        // The thread may be faster than this one.
        self.state.waiting.fetch_add(bytes.len(), SeqCst);
        let written = rustix::io::write(&self.way, bytes);
        let refused = bytes.len() - written.unwrap_or(0);
        self.state.done(refused);
        Ok(written?)
    }

    /// Whether all bytes have been written. If not, [`idle`](Relay::idle) is ready when they are.
    pub fn is_idle(&self) -> bool {
        // It is ready again if the last bytes leave after this.
        let _ = rustix::io::read(&self.state.is_idle, &mut [0; 8]);
        self.state.waiting.load(SeqCst) == 0
    }

    /// What is ready to be read when all bytes have been written.
    pub fn idle(&self) -> BorrowedFd<'_> {
        self.state.is_idle.as_fd()
    }
}

impl AsFd for Relay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.way.as_fd()
    }
}

impl State {
    /// Writes until the way ends or the stream is closed.
    fn bring(&self, mut from: io::PipeReader, mut to: File) {
        let mut chunk = [0; CHUNK];
        loop {
            let count = match from.read(&mut chunk) {
                Ok(0) => return,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if to.write_all(&chunk[..count]).is_err() {
                break;
            }
            self.done(count);
        }
        // Writers get EPIPE from now on, and nothing is waited for.
        drop(from);
        self.done(usize::MAX);
    }

    /// So many bytes do not wait any more.
    fn done(&self, count: usize) {
        let less = |waiting: usize| Some(waiting.saturating_sub(count));
        let before = self.waiting.fetch_update(SeqCst, SeqCst, less);
        if count > 0 && before.is_ok_and(|before| before <= count) {
            // It fails when it is ready already.
            let _ = rustix::io::write(&self.is_idle, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn await_idle(relay: &Relay) {
        while !relay.is_idle() {
            let mut ready = [rustix::event::PollFd::from_borrowed_fd(
                relay.idle(),
                rustix::event::PollFlags::IN,
            )];
            rustix::event::poll(&mut ready, None).unwrap();
        }
    }

    #[test]
    fn a_reader_that_waits_holds_nothing_up_and_gets_all() {
        let (mut reader, writer) = io::pipe().unwrap();
        let relay = Relay::new(writer.into()).unwrap();
        let start = Instant::now();
        let mut sent = Vec::new();
        loop {
            let part: Vec<u8> = (0..5000).map(|at| (sent.len() + at) as u8).collect();
            match relay.write(&part) {
                Ok(count) => sent.extend_from_slice(&part[..count]),
                // The thread may take a little more.
                Err(_) if start.elapsed() > Duration::from_millis(300) => break,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert!(!relay.is_idle());
        let mut all = vec![0; sent.len()];
        reader.read_exact(&mut all).unwrap();
        assert!(all == sent);
        await_idle(&relay);
        drop(relay);
        assert_eq!(reader.read(&mut all).unwrap(), 0);
    }

    #[test]
    fn a_reader_that_is_gone_is_seen() {
        let (reader, writer) = io::pipe().unwrap();
        let relay = Relay::new(writer.into()).unwrap();
        drop(reader);
        let error = loop {
            if let Err(error) = relay.write(b"x") {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        // The thread may have to count still what it has dropped.
        await_idle(&relay);
    }
}
