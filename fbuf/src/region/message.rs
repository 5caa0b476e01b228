//! Messages of a path: those that wait in the queues of members, and those that members hold.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::ops::Range;

use abi::{Errno, Result};
use vm::account::{self, Charge, Kind};

use super::{MOST_MEMBERS, MOST_QUEUED, domain::Domain, run::Run};
use crate::dag::MOST_RANGES;

/// The most messages of a path that its members have not freed.
pub const MOST_MESSAGES: usize = 256;

/// The most ranges of pages of all these messages. One message has fewer.
const MOST_EXTENTS: usize = 2 * MOST_RANGES;

/// Ranges of pages of a message whose memory its path's own charge covers. Most messages have
/// fewer: one or two for nodes, one for data.
pub(super) const UNCHARGED: usize = 4;

/// Contiguous pages of one run that a message reaches.
#[derive(Clone)]
pub(super) struct Extent {
    pub run: Arc<Run>,
    pub pages: Range<usize>,
}

/// A message, until the last of its receivers has freed it.
pub(super) struct Message {
    pub id: u64,
    /// The address of the root node.
    pub root: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Members whose queue it is in, one bit each.
    pub queued: u16,
    /// Members that have received it and not freed it.
    pub held: u16,
    pub extents: Vec<Extent>,
    /// The memory of many extents.
    _charge: Option<Charge>,
}

/// The messages of a path.
#[derive(Default)]
pub(super) struct Messages {
    slots: Vec<Option<Message>>,
    count: usize,
    extents: usize,
    sent: u64,
}

impl Messages {
    /// The most bytes of memory of the messages and queues of a path, without what messages are
    /// charged for themselves.
    pub const MOST_BYTES: usize = MOST_MESSAGES
        * (size_of::<Option<Message>>() + UNCHARGED * size_of::<Extent>())
        + MOST_MEMBERS * MOST_QUEUED * size_of::<u64>();

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether there is room for one more that is not large.
    pub fn has_room(&self) -> bool {
        self.count < MOST_MESSAGES && self.extents <= MOST_EXTENTS - MOST_RANGES
    }

    /// Adds a message, and returns its number.
    ///
    /// # Errors
    /// `EAGAIN` if there are too many, `ENOMEM`, with the extents given back.
    pub fn add(
        &mut self,
        root: u64,
        bytes: u64,
        queued: u16,
        extents: Vec<Extent>,
    ) -> core::result::Result<u64, (Errno, Vec<Extent>)> {
        let has_room = self.count == 0 || self.extents + extents.len() <= MOST_EXTENTS;
        if !self.has_room() || !has_room {
            return Err((Errno::EAGAIN, extents));
        }
        let slot = match self.slots.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                if let Err(error) = self.slots.try_reserve(1) {
                    return Err((error.into(), extents));
                }
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.sent += 1;
        let id = self.sent * MOST_MESSAGES as u64 + slot as u64;
        self.count += 1;
        self.extents += extents.len();
        let bytes_kept = extents.capacity() * size_of::<Extent>();
        let account = account::current().filter(|_| extents.capacity() > UNCHARGED);
        self.slots[slot] = Some(Message {
            id,
            root,
            bytes,
            queued,
            held: 0,
            extents,
            _charge: account.map(|account| account.charge(Kind::Fbufs, 0, bytes_kept)),
        });
        Ok(id)
    }

    /// Returns the message with this number.
    pub fn get(&mut self, id: u64) -> Option<&mut Message> {
        let slot = self.slots.get_mut(id as usize % MOST_MESSAGES)?;
        slot.as_mut().filter(|message| message.id == id)
    }

    /// Returns all messages.
    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        self.slots.iter().flatten()
    }

    /// Removes a message that no member has any more; returns its extents.
    pub fn take_if_free(&mut self, id: u64) -> Option<Vec<Extent>> {
        self.get(id)?;
        self.take_from(id as usize % MOST_MESSAGES)
    }

    /// Frees all messages of a member. Those that no other member has are taken by
    /// [`take_any_free`](Messages::take_any_free).
    pub fn forget_member(&mut self, bit: u16) {
        for message in self.slots.iter_mut().flatten() {
            message.queued &= !bit;
            message.held &= !bit;
        }
    }

    /// Removes the first message that no member has; returns its extents.
    pub fn take_any_free(&mut self) -> Option<Vec<Extent>> {
        (0..self.slots.len()).find_map(|at| self.take_from(at))
    }

    /// Removes the message in a slot if no member has it; returns its extents.
    fn take_from(&mut self, at: usize) -> Option<Vec<Extent>> {
        let slot = self.slots.get_mut(at)?;
        let message = slot.take_if(|it| it.queued | it.held == 0)?;
        self.count -= 1;
        self.extents -= message.extents.len();
        Some(message.extents)
    }
}

/// A receiver of a path.
pub(super) struct Member {
    /// No other receiver of the path has it, or has had it.
    pub number: u64,
    pub domain: Arc<Domain>,
    /// Numbers of messages that it has not received yet, the oldest first.
    pub queue: VecDeque<u64>,
}

impl Member {
    /// # Errors
    /// `ENOMEM`.
    pub fn new(number: u64, domain: Arc<Domain>) -> Result<Member> {
        let mut queue = VecDeque::new();
        queue.try_reserve_exact(MOST_QUEUED)?;
        Ok(Member {
            number,
            domain,
            queue,
        })
    }

    pub fn has_room(&self) -> bool {
        self.queue.len() < MOST_QUEUED
    }
}
