//! The bytes on their way to one end of a stream socket: a byte queue ([`fbuf::queue`]) limited by
//! bytes, with marks.
//!
//! A mark stands at a position in the stream from which on the bytes have another sender or bring
//! files with them.
//!
//! - this file: [`Channel`], its marks and limits;
//! - `transfer`: sending and receiving; `peek`: looking at bytes that stay;
//! - `urgent`: the byte sent with `MSG_OOB`.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};

use fbuf::queue::{Chain, Queue, SpareFrames, State};
use nucleus::PAGE_SIZE;
use vm::{
    TransferCall,
    account::{Kind, Stock},
};

mod peek;
#[cfg(test)]
mod tests;
mod transfer;
mod urgent;

use super::{credentials::Sender, end::DataQueue, rights::Rights};
use crate::process::files::OpenFile;

/// Marks that a channel takes for each page of its limit: more than the messages of one byte that
/// fit on Linux, which counts 768 bytes for each.
const MARKS_PER_PAGE: usize = 8;

/// Bytes for one end.
pub struct Channel {
    queue: Queue<ChannelState>,
}

/// What a channel keeps with its chain.
#[derive(Default)]
struct ChannelState {
    /// By rising position.
    marks: VecDeque<Mark>,
    /// The sender of the first byte.
    first_sender: Option<Sender>,
    /// The sender of the last byte.
    last_sender: Option<Sender>,
    /// The receiver is gone.
    closed: bool,
    /// The writer found no room, and waits for a wake-up.
    writer_waits: bool,
}

/// There are bytes, one of them urgent: what is ready.
const HAS_BYTES: u32 = 1;
const IS_URGENT: u32 = 2;

impl State for ChannelState {
    const STORES_READY: bool = true;
    const CALLS: [TransferCall; 2] = [TransferCall::UnixSend, TransferCall::UnixReceive];

    #[inline]
    fn ready(chain: &Chain<ChannelState>) -> u32 {
        let has_bytes = u32::from(!chain.data.is_empty()) * HAS_BYTES;
        has_bytes | (u32::from(chain.urgent.is_some()) * IS_URGENT)
    }

    type Spare = SpareFrames;

    #[inline]
    fn keeps_frames(chain: &Chain<ChannelState>) -> bool {
        !chain.state.closed
    }
}

/// What is special about the bytes from a position on.
struct Mark {
    at: u64,
    /// The byte after those that came with `rights`.
    end: u64,
    sender: Option<Sender>,
    rights: Option<Rights>,
}

/// What goes with the bytes of one message.
#[derive(Default)]
pub struct Attached {
    /// The sender, if one of the ends asks for it.
    pub sender: Option<Sender>,
    /// Taken with the first bytes.
    pub rights: Option<Rights>,
    /// The last byte is urgent.
    pub is_urgent: bool,
}

/// The state of one call to receive.
#[derive(Default)]
pub struct Received {
    /// The call takes no bytes of two senders.
    pub minds_sender: bool,
    /// An urgent byte is received with the others (`SO_OOBINLINE`).
    pub inline_urgent: bool,
    /// Bytes that the call took off.
    pub taken: usize,
    /// The sender of the bytes, as soon as there are any.
    pub sender: Option<Option<Sender>>,
    /// Files that came with them.
    pub rights: Option<Vec<Arc<OpenFile>>>,
    /// The next bytes are for another call.
    pub is_over: bool,
    /// Rights of an urgent byte that was passed over, to be dropped without locks.
    pub lost: Option<Rights>,
    /// Room was made that the writer waits for.
    pub made_room: bool,
}

/// A channel's state at one time.
#[derive(Clone, Copy, Debug)]
pub struct ChannelStatus {
    /// Bytes in it.
    pub bytes: usize,
    /// An urgent byte has not been received.
    pub urgent: bool,
}

/// Returns the slices that fit within `limit` bytes' worth; none when another mark doesn't.
fn free_slots(chain: &Chain<ChannelState>, limit: usize) -> usize {
    let pages = limit.div_ceil(PAGE_SIZE).max(1);
    match chain.state.marks.len() < pages * MARKS_PER_PAGE {
        true => chain.free_slots_within(limit),
        false => 0,
    }
}

/// Returns whether at most a quarter is left, so that a writer can go on with a large piece.
fn is_low(chain: &Chain<ChannelState>, limit: usize) -> bool {
    chain.data.len() <= limit / 4 && free_slots(chain, limit) > 0
}

/// Returns whether the writer waits for room and there is some now; says so once.
fn has_made_room(chain: &mut Chain<ChannelState>, limit: usize) -> bool {
    let made = chain.state.writer_waits && is_low(chain, limit);
    chain.state.writer_waits &= !made;
    made
}

impl Channel {
    /// Makes an empty channel, charged to the current process.
    pub fn new() -> Channel {
        Channel {
            queue: Queue::new(ChannelState::default(), Stock::of_current(Kind::Sockets)),
        }
    }

    /// Returns the state now.
    pub fn status(&self) -> ChannelStatus {
        let chain = self.queue.lock();
        ChannelStatus {
            bytes: chain.data.len(),
            urgent: chain.urgent.is_some(),
        }
    }

    /// Returns whether there are bytes, and whether one is urgent, without the lock.
    #[inline]
    pub fn ready_now(&self) -> (bool, bool) {
        let ready = self.queue.ready();
        (ready & HAS_BYTES != 0, ready & IS_URGENT != 0)
    }

    /// Returns whether there is room for another write within `limit` bytes. If not, the next
    /// reader that makes some says so ([`Received::made_room`]).
    pub fn has_room(&self, limit: usize) -> bool {
        let mut chain = self.queue.lock();
        let has_room = chain.state.closed || is_low(&chain, limit);
        chain.state.writer_waits |= !has_room;
        has_room
    }
}

impl DataQueue for Channel {
    fn close(&self) {
        self.queue.lock().state.closed = true;
    }

    fn discard(&self) -> bool {
        let mut rights = Vec::new();
        self.take_rights(&mut rights);
        drop(rights);
        let any = self.queue.discard(|_| true);
        let marks = core::mem::take(&mut self.queue.lock().state.marks);
        drop(marks);
        any
    }

    fn visit_rights(&self, visit: &mut dyn FnMut(&Rights)) {
        let chain = self.queue.lock();
        let marks = chain.state.marks.iter();
        marks
            .filter_map(|mark| mark.rights.as_ref())
            .for_each(visit);
    }

    fn take_rights(&self, to: &mut Vec<Rights>) {
        let mut chain = self.queue.lock();
        let marks = chain.state.marks.iter_mut();
        to.extend(marks.filter_map(|mark| mark.rights.take()));
    }
}
