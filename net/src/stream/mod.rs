//! One direction of a connection: a chain of slices of pages from the sending to the receiving socket.
//!
//! - this file: the chain and what is known of its two ends; `writing`: how it is filled; `reading`: how it is drained.
//!
//! The reader and the writer each copy under a sleeping lock of their own and meet only at the spin lock of the chain, to link and
//! unlink slices. Bytes that a slice shows never change; the writer adds to the last frame only behind what
//! any slice shows.

use alloc::{sync::Arc, vec::Vec};

use fbuf::Aggregate;
use nucleus::{
    Frame, PAGE_SIZE,
    sync::{Mutex, Rank, SpinLock},
};

use crate::Waits;

mod reading;
mod writing;

pub use reading::Read;
pub use writing::Written;

/// Emptied frames that wait for the writer while a stream is busy, so that they need not travel through the allocator
/// from the reader's CPU to the writer's. As many as a pipe keeps.
const SPARE_FRAMES: usize = 8;

/// Bytes on their way in one direction.
pub struct Stream {
    pub(crate) chain: SpinLock<Chain>,
    /// Held by the one reader that takes bytes off. Never while waiting for bytes.
    reading: Mutex<()>,
    /// Held by the one writer that adds bytes. Never while waiting for room.
    writing: Mutex<Tail>,
    /// Who reads.
    receiver: Arc<Waits>,
    /// Who writes.
    sender: Arc<Waits>,
    /// Its segments would be IPv6's.
    is_v6: bool,
}

/// What the chain's lock guards.
pub(crate) struct Chain {
    data: Aggregate,
    /// Bytes that may be in the chain: the sender's and the receiver's buffer sizes together.
    limit: usize,
    /// Readers need not be told of fewer bytes than this (`SO_RCVLOWAT`), at least 1.
    low_water: usize,
    /// Bytes that were ever added.
    added: u64,
    /// The urgent byte and its place.
    urgent: Option<Urgent>,
    /// The sender has ended the stream: nothing comes behind what is there.
    pub finished: bool,
    /// The connection was reset: nothing goes in any more.
    pub broken: bool,
    /// The receiver has closed its socket: what comes is answered by a reset.
    pub abandoned: bool,
    spare: Vec<Frame>,
}

/// TCP's urgent data as programs see it: one byte, and where in the stream it was.
struct Urgent {
    /// Bytes of the stream before it, not counting itself unless it is in line.
    place: u64,
    /// The byte, until it is read; `None` too when it is in line.
    byte: Option<u8>,
    /// It stands in the stream (`SO_OOBINLINE`).
    in_line: bool,
}

/// The frame that the last small write went to.
struct Tail {
    frame: Option<Frame>,
    /// Bytes of it that slices show or have shown since it was last empty.
    used: usize,
}

/// A stream's state at one time.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// Bytes that can be read.
    pub bytes: usize,
    /// Bytes that still fit.
    pub room: usize,
    /// The most bytes that fit.
    pub limit: usize,
    /// Enough is there to wake a reader.
    pub is_readable: bool,
    /// Enough room is there to wake a writer: a third, as on Linux, so that the two sides don't take turns byte by byte.
    pub is_writable: bool,
    /// Nothing comes behind these bytes.
    pub finished: bool,
    /// The connection was reset.
    pub broken: bool,
    /// The receiver has closed its socket.
    pub abandoned: bool,
    /// Bytes that were ever added.
    pub added: u64,
    /// An urgent byte waits to be read apart from the others.
    pub urgent: bool,
    /// The next byte to read is the one behind the urgent one's place.
    pub at_mark: bool,
}

impl Chain {
    fn room(&self) -> usize {
        self.limit.saturating_sub(self.data.len())
    }

    fn is_writable(&self) -> bool {
        self.broken || self.abandoned || self.room() >= (self.limit / 3).max(1)
    }

    /// Bytes that were ever taken off.
    fn taken(&self) -> u64 {
        self.added - self.data.len() as u64
    }

    /// Whether the chain ends with bytes of `tail` that can be continued in place.
    fn continues(&self, tail: &Tail) -> bool {
        match (self.data.slices().next_back(), &tail.frame) {
            (Some(last), Some(frame)) => last.frame == *frame && last.end() == tail.used,
            _ => false,
        }
    }

    /// Keeps an emptied frame for the writer while more than a frame's worth of data shows that the stream is busy.
    fn keep(&mut self, emptied: &mut Option<Frame>) {
        if self.data.len() > PAGE_SIZE
            && self.spare.len() < SPARE_FRAMES
            && self.spare.try_reserve(1).is_ok()
        {
            self.spare.extend(emptied.take());
        }
    }
}

impl Stream {
    /// An empty stream for `limit` bytes.
    pub fn new(sender: Arc<Waits>, receiver: Arc<Waits>, limit: usize, is_v6: bool) -> Stream {
        Stream {
            chain: SpinLock::new(
                Rank::Leaf,
                Chain {
                    data: Aggregate::new(),
                    limit,
                    low_water: 1,
                    added: 0,
                    urgent: None,
                    finished: false,
                    broken: false,
                    abandoned: false,
                    spare: Vec::new(),
                },
            ),
            reading: Mutex::new(Rank::PipeReading, ()),
            writing: Mutex::new(
                Rank::Pipe,
                Tail {
                    frame: None,
                    used: 0,
                },
            ),
            receiver,
            sender,
            is_v6,
        }
    }

    /// The state now.
    pub fn status(&self) -> Status {
        let chain = self.chain.lock();
        let bytes = chain.data.len();
        let taken = chain.taken();
        Status {
            bytes,
            room: chain.room(),
            limit: chain.limit,
            is_readable: bytes > 0
                && (bytes >= chain.low_water.min(chain.limit) || chain.finished || chain.broken),
            is_writable: chain.is_writable(),
            finished: chain.finished,
            broken: chain.broken,
            abandoned: chain.abandoned,
            added: chain.added,
            urgent: chain.urgent.as_ref().is_some_and(|u| u.byte.is_some()),
            at_mark: chain.urgent.as_ref().is_some_and(|u| u.place == taken),
        }
    }

    /// The sender has ended it.
    pub fn finish(&self) {
        self.chain.lock().finished = true;
        self.receiver.readable.wake_all();
    }

    /// A reset ends it at once. What was received can still be read.
    pub fn break_off(&self) {
        self.chain.lock().broken = true;
        self.receiver.wake_all();
        self.sender.wake_all();
    }

    /// The receiver is gone. Drops what it did not read; returns whether that was anything.
    pub fn abandon(&self) -> bool {
        self.chain.lock().abandoned = true;
        let mut any = false;
        // Frame by frame, so that none is freed under the spin lock.
        loop {
            let (slice, frame) = {
                let mut chain = self.chain.lock();
                (chain.data.pop_front(), chain.spare.pop())
            };
            if slice.is_none() && frame.is_none() {
                break;
            }
            any |= slice.is_some();
        }
        self.sender.wake_all();
        any
    }

    /// One side's part of the room has changed. What is in the stream stays.
    pub fn change_limit(&self, old: usize, new: usize) {
        if old != new {
            let mut chain = self.chain.lock();
            chain.limit = chain.limit.saturating_sub(old) + new;
            drop(chain);
            self.sender.writable.wake_all();
        }
    }

    /// Changes how many bytes must be there before a reader is woken.
    pub fn set_low_water(&self, bytes: usize) {
        self.chain.lock().low_water = bytes.max(1);
        self.receiver.readable.wake_all();
    }
}
