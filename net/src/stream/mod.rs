//! One direction of a TCP connection: a byte queue ([`fbuf::queue`]) from the sending to the
//! receiving socket, limited by bytes, and by slices in proportion.
//!
//! - this file: [`Stream`], its ends and limits;
//! - `transfer`: reading and writing;
//! - `line`: the bytes of connections whose segments are packets;
//! - `growth`: the memory by which buffers grow by themselves;
//! - `completions`: news for writers that leave their bytes alone meanwhile;
//! - `urgent`: the urgent byte.

use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::AtomicBool;

use fbuf::queue::{Chain, Queue, SpareFrames, State};
use nucleus::{PAGE_SIZE, try_box};
use vm::{TransferCall, account::Stock};

use crate::Waits;

mod completions;
mod growth;
mod line;
mod transfer;
mod urgent;

use completions::Completions;
use growth::Share;

pub use completions::Completion;
pub use growth::{Growth, most as most_growth};
pub use transfer::{Read, Written};

/// Bytes on their way in one direction.
pub struct Stream {
    queue: Queue<StreamState>,
    /// The waits of the socket that reads.
    receiver: Arc<Waits>,
    /// The waits of the socket that writes.
    sender: Arc<Waits>,
    /// The connection is one of IPv6.
    is_v6: bool,
    /// By how much its buffers have grown, if the connection's segments are packets: see `line`.
    growth: Option<Share>,
    /// There is news for a writer about its bytes. Changes with the chain locked.
    has_news: AtomicBool,
}

/// What a stream keeps with its chain.
#[derive(Default)]
struct StreamState {
    /// Bytes that may be in the chain: the sender's and the receiver's buffer sizes together.
    /// Below zero if a program has made the buffer smaller than what is in flight.
    limit: isize,
    /// Readers are not told of fewer bytes than this (`SO_RCVLOWAT`); at least 1.
    low_water: u32,
    /// The urgent byte, until it is read; `None` too when it is in line. Counts only while the
    /// chain has an urgent place.
    urgent: Option<u8>,
    /// The sender has ended the stream: no bytes follow those in the chain.
    finished: bool,
    /// The connection was reset: the stream takes no bytes any more.
    broken: bool,
    /// The receiver has closed its socket: further bytes are answered by a reset.
    abandoned: bool,
    /// Bytes that were sent in packets and have arrived.
    arrived: u64,
    /// Those that have not, less than a window: the limit is so much less meanwhile.
    in_flight: u32,
    /// Made for the first call that asks for news.
    completions: Option<Box<Completions>>,
}

impl StreamState {
    /// Returns how many bytes may be in the chain.
    #[inline]
    fn limit(&self) -> usize {
        self.limit.max(0) as usize
    }

    /// Changes the limit by `more` less `less`.
    fn shift_limit(&mut self, more: usize, less: usize) {
        self.limit = self
            .limit
            .saturating_add_unsigned(more)
            .saturating_sub_unsigned(less);
    }
}

impl State for StreamState {
    const CALLS: [TransferCall; 2] = [TransferCall::TcpSend, TransferCall::TcpReceive];

    /// A stream by packets has none: its writer's frames go to the connection, and its reader's
    /// come from there.
    type Spare = Option<Box<SpareFrames>>;

    /// Frames are kept only while more than a frame's worth of data shows that the stream is busy.
    #[inline]
    fn keeps_frames(chain: &Chain<StreamState>) -> bool {
        chain.data.len() > PAGE_SIZE
    }
}

/// A stream's state at one time.
#[derive(Clone, Copy, Debug)]
pub struct StreamStatus {
    /// Bytes that can be read.
    pub bytes: usize,
    /// Bytes that still fit.
    pub room: usize,
    /// The most bytes that fit.
    pub limit: usize,
    /// Whether the bytes are enough to wake a reader.
    pub is_readable: bool,
    /// Whether the room is enough to wake a writer.
    pub is_writable: bool,
    /// No bytes follow these.
    pub finished: bool,
    /// Bytes that were ever added.
    pub added: u64,
    /// An urgent byte waits to be read apart from the others.
    pub urgent: bool,
    /// The next byte to read follows the urgent one's place.
    pub at_mark: bool,
}

/// Returns how many bytes still fit.
fn room(chain: &Chain<StreamState>) -> usize {
    let limit = chain.state.limit();
    match chain.free_slots_within(limit) {
        0 => 0,
        _ => limit.saturating_sub(chain.data.len()),
    }
}

/// Returns whether the room is enough to wake a writer: a third of all, as on Linux, so that the
/// two sides do not take turns byte by byte.
fn is_writable(chain: &Chain<StreamState>) -> bool {
    let state = &chain.state;
    let all = state.limit() + state.in_flight as usize;
    state.broken || state.abandoned || room(chain) >= (all / 3).max(1)
}

impl Stream {
    /// Makes an empty stream for `limit` bytes, whose frames `stock` charges.
    pub fn new(
        sender: Arc<Waits>,
        receiver: Arc<Waits>,
        limit: usize,
        is_v6: bool,
        stock: Stock,
    ) -> Stream {
        let state = StreamState {
            limit: limit as isize,
            low_water: 1,
            ..StreamState::default()
        };
        Stream {
            queue: Queue::new(state, stock),
            receiver,
            sender,
            is_v6,
            growth: None,
            has_news: AtomicBool::new(false),
        }
    }

    /// Keeps emptied frames for the next writes, if there is memory for their places.
    pub fn with_spare_frames(mut self) -> Stream {
        self.queue.set_spare(try_box(SpareFrames::new()).ok());
        self
    }

    /// Frees what an empty stream keeps for its next bytes. Never waits.
    pub fn trim(&self) {
        self.queue.trim();
    }

    /// Returns the state now.
    pub fn status(&self) -> StreamStatus {
        let chain = self.queue.lock();
        let (state, bytes) = (&chain.state, chain.data.len());
        StreamStatus {
            bytes,
            room: room(&chain),
            limit: state.limit(),
            is_readable: bytes > 0
                && (bytes >= (state.low_water as usize).min(state.limit())
                    || state.finished
                    || state.broken),
            is_writable: is_writable(&chain),
            finished: state.finished,
            added: chain.end(),
            urgent: chain.urgent.and(state.urgent).is_some(),
            at_mark: chain.is_at_urgent(),
        }
    }

    /// Tells whether there are bytes to read, however few, or no more will come.
    pub fn has_input(&self) -> bool {
        let chain = self.queue.lock();
        !chain.data.is_empty() || chain.state.finished
    }

    /// Returns how many bytes are in flight beyond what the limit would allow.
    pub fn deficit(&self) -> usize {
        self.queue.lock().state.limit.min(0).unsigned_abs()
    }

    /// Returns how many bytes there are to read.
    pub fn unread(&self) -> usize {
        self.queue.lock().data.len()
    }

    /// Ends the stream behind the bytes that are in it.
    pub fn finish(&self) {
        self.queue.lock().state.finished = true;
        self.receiver.readable.wake_all();
    }

    /// Ends the stream by a reset. Bytes that are in it can still be read.
    pub fn break_off(&self) {
        {
            let mut chain = self.queue.lock();
            chain.state.broken = true;
            // No packet shows the bytes any more.
            let left = chain.end() - chain.state.arrived;
            self.note_arrived(&mut chain, left as usize);
        }
        self.receiver.wake_all();
        self.sender.wake_all();
    }

    /// Notes that the receiver is gone. Drops the unread bytes; returns whether there were any.
    pub fn abandon(&self) -> bool {
        self.queue.lock().state.abandoned = true;
        let any = self.queue.discard(|_| true);
        self.sender.wake_all();
        any
    }

    /// Changes one side's part of the limit. The bytes in the stream stay.
    pub fn change_limit(&self, old: usize, new: usize) {
        if old != new {
            {
                let mut chain = self.queue.lock();
                chain.state.shift_limit(new, old);
            }
            self.sender.writable.wake_all();
        }
    }

    /// Changes how many bytes must be there before a reader is woken.
    pub fn set_low_water(&self, bytes: usize) {
        self.queue.lock().state.low_water = bytes.clamp(1, i32::MAX as usize) as u32;
        self.receiver.readable.wake_all();
    }
}
