//! Sending and receiving.

use core::mem;

use abi::{Errno, Result};
use fbuf::{
    Sink, Slice, Source, View,
    queue::{Added, Chain, Drain, Fill, Queue, Space},
};

use nucleus::PAGE_SIZE;

use super::{
    Attached, Channel, ChannelState, Mark, Received, free_slots, has_made_room, urgent::skip_urgent,
};
use crate::socket::unix::rights::{self, Rights};

/// One call that sends.
struct Sending<'a, L> {
    attached: &'a mut Attached,
    limit: usize,
    linked: L,
}

impl Attached {
    /// Returns whether the next bytes begin with a mark.
    fn marks(&self, state: &ChannelState) -> bool {
        self.rights.is_some() || self.sender != state.last_sender
    }
}

impl<L: Fn()> Fill<ChannelState> for Sending<'_, L> {
    fn puts(&self) -> bool {
        true
    }

    fn may_put(&mut self, chain: &mut Chain<ChannelState>) -> Result<bool> {
        let is_marked = self.attached.is_urgent || chain.urgent.is_some();
        let is_marked =
            is_marked || self.attached.marks(&chain.state) || !chain.state.marks.is_empty();
        Ok(self.may_link(chain)? && !is_marked)
    }

    #[inline(always)]
    fn space(&mut self, chain: &mut Chain<ChannelState>) -> Result<Space> {
        if chain.state.closed {
            return Err(Errno::EPIPE);
        }
        if self.attached.marks(&chain.state) {
            let marks = &mut chain.state.marks;
            marks.try_reserve(1)?;
        }
        let bytes = self.limit.saturating_sub(chain.data.len());
        let slots = free_slots(chain, self.limit);
        chain.state.writer_waits |= bytes == 0 || slots == 0;
        Ok(Space {
            slots,
            bytes,
            least: 0,
            continues: slots > 0,
        })
    }

    #[inline]
    fn may_link(&mut self, chain: &mut Chain<ChannelState>) -> Result<bool> {
        match chain.state.closed {
            true => Err(Errno::EPIPE),
            false => Ok(true),
        }
    }

    #[inline]
    fn linked(&mut self, chain: &mut Chain<ChannelState>, added: Added) {
        let Added { at, len, is_end } = added;
        let end = at + len as u64;
        if self.attached.is_urgent && is_end {
            chain.urgent = Some(end - 1);
        }
        let state = &mut chain.state;
        if self.attached.marks(state) {
            state.last_sender = self.attached.sender;
            // The bytes of the last mark may be gone by now: it would part those around it.
            if state.marks.back().is_some_and(|last| last.at == at) {
                state.marks.pop_back();
            }
            state.marks.push_back(Mark {
                at,
                end,
                sender: self.attached.sender,
                rights: self.attached.rights.take(),
            });
        }
    }

    #[inline]
    fn more(&self) {
        (self.linked)();
    }
}

/// Work that a call to receive does without the chain's lock.
enum Pending {
    None,
    /// Files come with the next bytes, up to this position.
    Rights(u64),
    /// An urgent byte was passed over.
    Skipped(Option<Slice>),
}

/// One call that receives.
struct Receiving<'a, F> {
    received: &'a mut Received,
    limit: usize,
    freed: F,
    /// Where the bytes that came with rights end.
    stop: Option<u64>,
    pending: Pending,
    /// The last bytes taken made the room that the writer waits for.
    has_made_room: bool,
}

impl<F: Fn()> Drain<ChannelState> for Receiving<'_, F> {
    /// Passes the marks at the position of the first byte, up to one with rights or with a sender
    /// whose bytes are for another call.
    #[inline(always)]
    fn front(&mut self, chain: &mut Chain<ChannelState>) -> Option<View> {
        let (received, at) = (&mut *self.received, chain.start());
        if received.is_over {
            return None;
        }
        let Some(passed) = chain.pass_urgent(received.taken > 0) else {
            received.is_over = true;
            return None;
        };
        if passed && !received.inline_urgent {
            let (byte, rights) = skip_urgent(chain);
            received.lost = rights;
            self.pending = Pending::Skipped(byte);
            return None;
        }
        let state = &mut chain.state;
        while let Some(mark) = state.marks.front()
            && mark.at <= at
        {
            if received.minds_sender && received.sender.is_some_and(|sender| sender != mark.sender)
            {
                received.is_over = true;
                return None;
            }
            if mark.rights.is_some() {
                self.pending = Pending::Rights(mark.end);
                return None;
            }
            state.first_sender = mark.sender;
            state.marks.pop_front();
        }
        let mut slice = chain.first()?;
        let state = &chain.state;
        received.sender.get_or_insert(state.first_sender);
        // Up to the next mark, the end of the bytes that came with rights, or an urgent byte.
        let mark = state.marks.front().map_or(u64::MAX, |mark| mark.at);
        let end = mark
            .min(self.stop.unwrap_or(u64::MAX))
            .min(chain.urgent_after(at));
        slice.len = slice.len.min((end - at) as usize);
        Some(slice)
    }

    #[inline(never)]
    fn pages(&mut self, chain: &mut Chain<ChannelState>, most: usize) -> usize {
        let at = chain.start();
        let marks = chain.state.marks.iter().take_while(|mark| mark.at <= at);
        let has_rights = marks.into_iter().any(|mark| mark.rights.is_some());
        if chain.urgent.is_some() || self.stop.is_some() || has_rights {
            return 0;
        }
        if self.front(chain).is_none() {
            return 0;
        }
        let next = chain.state.marks.front().map_or(u64::MAX, |mark| mark.at);
        let most = most.min(((next - at) / PAGE_SIZE as u64) as usize);
        chain.lent_pages(most)
    }

    #[inline]
    fn take(&mut self, chain: &mut Chain<ChannelState>, n: usize) -> Option<Slice> {
        let slice = chain.pass(n);
        self.received.taken += n;
        self.received.is_over = self.stop.is_some_and(|end| chain.start() >= end);
        self.has_made_room |= has_made_room(chain, self.limit);
        slice
    }

    #[inline]
    fn took(&mut self) {
        if mem::take(&mut self.has_made_room) {
            self.received.made_room = true;
            (self.freed)();
        }
    }

    fn may_pull(&mut self, chain: &mut Chain<ChannelState>, beside: bool) -> bool {
        let received = &self.received;
        let is_parted = received.minds_sender || received.is_over || self.stop.is_some();
        let goes_on = beside && received.made_room;
        // What is not in a channel when it is closed comes too late.
        let is_over = goes_on || chain.state.closed;
        !is_parted && !is_over && chain.urgent.is_none() && chain.state.marks.is_empty()
    }

    fn pulled(&mut self, chain: &mut Chain<ChannelState>, n: usize) {
        let sender = chain.state.first_sender;
        self.received.sender.get_or_insert(sender);
        self.received.taken += n;
        self.received.made_room = true;
    }

    fn resume(&mut self, queue: &Queue<ChannelState>) -> bool {
        match mem::replace(&mut self.pending, Pending::None) {
            Pending::None => return false,
            Pending::Rights(end) => {
                receive_rights(queue, self.received);
                self.stop = Some(end);
            }
            Pending::Skipped(slice) => {
                self.received.made_room |= has_made_room(&mut queue.lock(), self.limit);
                drop(slice);
            }
        }
        true
    }
}

/// Takes the rights at the first byte, which have arrived.
fn receive_rights(queue: &Queue<ChannelState>, received: &mut Received) {
    let is_guarded = {
        let chain = queue.lock();
        let mark = chain.state.marks.front();
        mark.and_then(|mark| mark.rights.as_ref())
            .is_some_and(Rights::has_sockets)
    };
    let mut sockets = is_guarded.then(rights::sockets);
    let rights = {
        let mut chain = queue.lock();
        let mark = chain.state.marks.front_mut();
        mark.and_then(|mark| mark.rights.take())
    };
    // Only a reader takes them, and the code that empties the channel for good.
    if let Some(rights) = rights {
        let files = rights.arrive(sockets.as_deref_mut());
        received.rights = Some(files);
    }
}

impl Channel {
    /// Adds bytes that fit within `limit`; returns how many. If none does, the writer is told when
    /// some do. `linked` is called, with no spin lock held, each time when some can be read and
    /// more is to come.
    ///
    /// # Errors
    /// `EPIPE` if the receiver is gone; `ENOMEM`; those of the source; each only if nothing was
    /// added.
    pub fn fill(
        &self,
        from: &mut dyn Source,
        limit: usize,
        attached: &mut Attached,
        linked: impl Fn(),
    ) -> Result<usize> {
        let mut call = Sending {
            attached,
            limit,
            linked,
        };
        self.queue.fill(from, &mut call)
    }

    /// Offers a sender the buffer that a sink fills next: see [`Queue::offer`]. The caller does not
    /// mind who sends.
    pub fn offer(&self, to: &mut dyn Sink) -> bool {
        self.queue.offer(to)
    }

    /// Offers a receiver the bytes that a source gives next, without a mark: see
    /// [`Queue::offer_bytes`].
    pub fn offer_bytes(&self, from: &mut dyn Source, attached: &Attached) -> bool {
        let is_marked = attached.is_urgent || attached.marks(&self.queue.lock().state);
        !is_marked && self.queue.offer_bytes(from)
    }

    /// Whether a receiver took bytes that are on offer.
    pub fn has_pulled(&self) -> bool {
        self.queue.has_pulled()
    }

    /// Takes back what is on offer to a receiver: see [`Queue::withdraw_bytes`].
    pub fn withdraw_bytes(&self, from: &mut dyn Source) -> usize {
        self.queue.withdraw_bytes(from)
    }

    /// Whether bytes were put into the buffer that is on offer.
    pub fn has_put(&self) -> bool {
        self.queue.has_put()
    }

    /// Takes the offer back: see [`Queue::withdraw`].
    pub fn withdraw(&self, to: &mut dyn Sink, received: &mut Received) -> usize {
        let n = self.queue.withdraw(to);
        if n > 0 {
            received.taken += n;
            let sender = self.queue.lock().state.first_sender;
            received.sender.get_or_insert(sender);
        }
        n
    }

    /// Moves bytes that are there to a sink, `max` at most, as far as one call may take them.
    /// `freed` is called, with no spin lock held, when a writer that waits would find room
    /// ([`Received::made_room`] says so, too).
    ///
    /// # Errors
    /// Those of the sink, if it took nothing.
    pub fn drain(
        &self,
        to: &mut dyn Sink,
        max: usize,
        limit: usize,
        received: &mut Received,
        freed: impl Fn(),
    ) -> Result<usize> {
        let mut call = Receiving {
            received,
            limit,
            freed,
            stop: None,
            pending: Pending::None,
            has_made_room: false,
        };
        let result = {
            let reading = self.queue.lock_reading();
            self.queue.drain(&reading, to, max, &mut call)
        };
        // Bytes that came with rights belong to one call, even where it had no room for them all.
        call.received.is_over |= call.stop.is_some();
        result
    }
}
