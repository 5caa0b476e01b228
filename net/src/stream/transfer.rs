//! Reading and writing.

use core::mem;

use crate::counters::Counter;
use abi::Result;
use fbuf::{
    DiscardSink, Sink, Slice, Source, View,
    queue::{Added, Chain, Drain, Fill, Space},
};
use nucleus::{frame::Owned, task::WaitQueue};

use super::{Stream, StreamState, is_writable, room};

/// Slices that are searched for a whole page under the chain's lock: as many as a limit of 512 KiB
/// allows in small pieces.
const LOOKED_AT: usize = 1024;

/// How bytes are read.
#[derive(Clone, Copy, Default, Debug)]
pub struct Read {
    /// They stay in the stream (`MSG_PEEK`).
    pub peek: bool,
    /// They are dropped instead of copied (`MSG_TRUNC`).
    pub discard: bool,
}

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// So many bytes were added, perhaps fewer than there were, perhaps none.
    Bytes(usize),
    /// The receiver has closed its socket and will answer with a reset.
    Abandoned,
    /// The stream has ended or was reset.
    Ended,
}

impl StreamState {
    /// Returns why the stream takes no bytes, if so.
    pub(super) fn refusal(&self) -> Option<Written> {
        match self.abandoned {
            true => Some(Written::Abandoned),
            false => (self.broken || self.finished).then_some(Written::Ended),
        }
    }
}

/// One write.
struct Writing<'a> {
    /// Why the stream takes no bytes.
    refusal: Option<Written>,
    /// Readers are to be told.
    wake: bool,
    /// The bytes are urgent data in line.
    is_urgent: bool,
    /// They are stable ([`Fill::is_stable`]).
    is_stable: bool,
    /// Bytes that were lent.
    lent: usize,
    readable: &'a WaitQueue,
}

impl Fill<StreamState> for Writing<'_> {
    fn puts(&self) -> bool {
        true
    }

    /// An urgent place parts the bytes before and behind it, which are for different calls.
    fn may_put(&mut self, chain: &mut Chain<StreamState>) -> Result<bool> {
        let is_parted = self.is_urgent || chain.urgent.is_some();
        Ok(!is_parted && chain.state.refusal().is_none())
    }

    fn put(&mut self, _: &mut Chain<StreamState>, _: Added) {
        self.wake = true;
    }

    #[inline]
    fn space(&mut self, chain: &mut Chain<StreamState>) -> Result<Space> {
        self.refusal = chain.state.refusal();
        Ok(Space {
            slots: chain.free_slots_within(chain.state.limit()),
            bytes: match self.refusal {
                None => room(chain),
                Some(_) => 0,
            },
            least: 0,
            continues: true,
        })
    }

    /// Bytes of a stream that ended during the copy are lost like those in flight; the next step
    /// reports the end.
    #[inline]
    fn may_link(&mut self, chain: &mut Chain<StreamState>) -> Result<bool> {
        Ok(chain.state.refusal().is_none())
    }

    #[inline]
    fn linked(&mut self, chain: &mut Chain<StreamState>, added: Added) {
        // Below the mark a reader may wait for any number of bytes.
        self.wake |= chain.data.len() - added.len < chain.state.low_water as usize;
        if self.is_urgent {
            chain.urgent = Some(added.at);
            chain.state.urgent = None;
        }
    }

    #[inline]
    fn is_stable(&self) -> bool {
        self.is_stable
    }

    fn awaits_more(&self, chain: &mut Chain<StreamState>) -> bool {
        self.refusal.is_none() && !is_writable(chain)
    }

    fn lent(&mut self, bytes: usize) {
        self.lent += bytes;
    }

    #[inline]
    fn more(&self) {
        if self.wake {
            self.readable.wake_beside();
        }
    }
}

/// One read.
struct Reading<'a> {
    /// Bytes were taken off.
    has_taken: bool,
    /// The last bytes taken made the room that writers wait for.
    has_made_room: bool,
    /// So did some bytes of this call.
    wake: bool,
    /// The stream's bytes come in packets: it has no frames of its own.
    by_packets: bool,
    writable: &'a WaitQueue,
}

impl Drain<StreamState> for Reading<'_> {
    #[inline]
    fn front(&mut self, chain: &mut Chain<StreamState>) -> Option<View> {
        let mut slice = chain.first()?;
        if chain.urgent.is_some() {
            chain.pass_urgent(self.has_taken)?;
            let start = chain.start();
            slice.len = slice.len.min((chain.urgent_after(start) - start) as usize);
        }
        Some(slice)
    }

    #[inline]
    fn pages(&mut self, chain: &mut Chain<StreamState>, most: usize) -> usize {
        match chain.urgent {
            None if self.by_packets => chain.whole_pages(most),
            None => chain.lent_pages(most),
            Some(_) => 0,
        }
    }

    #[inline]
    fn take(&mut self, chain: &mut Chain<StreamState>, n: usize) -> Option<Slice> {
        self.has_taken = true;
        // The connection tells its peer of room itself.
        if self.by_packets {
            return chain.pass(n);
        }
        let was_writable = is_writable(chain);
        let slice = chain.pass(n);
        self.has_made_room |= !was_writable && is_writable(chain);
        slice
    }

    fn may_pull(&mut self, chain: &mut Chain<StreamState>, beside: bool) -> bool {
        // What is not in a stream when it ends comes too late.
        let has_ended = chain.state.refusal().is_some();
        chain.urgent.is_none() && !has_ended && !(beside && self.wake)
    }

    fn pulled(&mut self, _: &mut Chain<StreamState>, _: usize) {
        self.has_taken = true;
        self.wake = true;
    }

    #[inline]
    fn took(&mut self) {
        if mem::take(&mut self.has_made_room) {
            self.wake = true;
            self.writable.wake_beside();
        }
    }
}

impl Stream {
    /// Whether it has ended or was reset: nothing more can be added.
    pub fn takes_nothing(&self) -> bool {
        self.queue.lock().state.refusal() == Some(Written::Ended)
    }

    /// Adds what fits of the source's bytes. Wakes the reader.
    ///
    /// # Errors
    /// Those of the source, or `ENOMEM`, if nothing was added.
    pub fn write(&self, from: &mut dyn Source) -> Result<Written> {
        self.fill(from, self.writing(false))
    }

    /// As [`write`](Stream::write) for bytes that stay stable until their
    /// [completion](Stream::await_completion), if they `are_enough`; adds to `lent` how many were
    /// lent.
    ///
    /// # Errors
    /// As there.
    pub fn write_stable(
        &self,
        from: &mut dyn Source,
        are_enough: bool,
        lent: &mut usize,
    ) -> Result<Written> {
        let call = Writing {
            is_stable: are_enough,
            ..self.writing(false)
        };
        self.fill_counting(from, call, lent)
    }

    fn writing(&self, is_urgent: bool) -> Writing<'_> {
        Writing {
            refusal: None,
            wake: false,
            is_urgent,
            is_stable: false,
            lent: 0,
            readable: &self.receiver.readable,
        }
    }

    /// Adds one byte as urgent data in line.
    ///
    /// # Errors
    /// As [`write`](Stream::write).
    pub(super) fn fill_urgent(&self, from: &mut dyn Source) -> Result<Written> {
        self.fill(from, self.writing(true))
    }

    #[inline]
    fn fill(&self, from: &mut dyn Source, call: Writing<'_>) -> Result<Written> {
        self.fill_counting(from, call, &mut 0)
    }

    #[inline]
    fn fill_counting(
        &self,
        from: &mut dyn Source,
        mut call: Writing<'_>,
        lent: &mut usize,
    ) -> Result<Written> {
        let n = self.queue.fill(from, &mut call)?;
        *lent += call.lent;
        if n == 0 {
            return Ok(call.refusal.unwrap_or(Written::Bytes(0)));
        }
        // The segments of a connection over a card are counted where they are sent, and have no
        // reader on this side.
        if !self.uses_packets() {
            Counter::loopback_packets.add(1);
            Counter::loopback_packets_v6.add(self.is_v6.into());
            Counter::tcp_segments.add(1);
            Counter::loopback_bytes.add(n as u64);
            if call.wake {
                self.receiver.readable.wake_shared(false);
            }
        }
        Ok(Written::Bytes(n))
    }

    /// Moves bytes that are there to a sink: `max` at most. Stops before an urgent byte's place.
    /// Wakes the writer when a third of the room is free.
    ///
    /// # Errors
    /// Those of the sink, if it took nothing.
    pub fn read(&self, to: &mut dyn Sink, max: usize, how: Read) -> Result<usize> {
        let reading = self.queue.lock_reading();
        if how.peek {
            return self.queue.peek(&reading, to, 0, |chain| {
                let start = chain.start();
                ((chain.urgent_after(start) - start) as usize).min(max)
            });
        }
        let mut call = self.reading();
        let to = match how.discard {
            true => &mut DiscardSink,
            false => to,
        };
        let result = self.queue.drain(&reading, to, max, &mut call);
        drop(reading);
        if call.wake {
            self.sender.writable.wake_shared(false);
        }
        result
    }

    fn reading(&self) -> Reading<'_> {
        Reading {
            has_taken: false,
            has_made_room: false,
            wake: false,
            by_packets: self.uses_packets(),
            writable: &self.sender.writable,
        }
    }

    /// Gives whole pages that are next to read to `give`, which takes as many of them as it
    /// returns; `most` at most. Wakes the writer. Returns how many.
    pub fn give_pages(
        &self,
        most: usize,
        give: impl FnMut(&mut [Option<Owned>]) -> usize,
    ) -> usize {
        let reading = self.queue.lock_reading();
        let mut call = self.reading();
        let given = self.queue.give_pages(&reading, most, &mut call, give);
        drop(reading);
        if call.wake {
            self.sender.writable.wake_shared(false);
        }
        given
    }

    /// Returns how many bytes come before the next whole page. Without one among the next
    /// [`LOOKED_AT`] slices, these are all that count.
    pub fn before_page(&self) -> usize {
        let chain = self.queue.lock();
        match chain.urgent {
            None => chain.before_page(LOOKED_AT),
            Some(_) => chain.data.len(),
        }
    }

    /// Offers a writer the buffer that a sink fills next: see [`Queue::offer`].
    pub fn offer(&self, to: &mut dyn Sink) -> bool {
        self.queue.offer(to)
    }

    /// Offers a reader the bytes that a source gives next: see [`Queue::offer_bytes`].
    pub fn offer_bytes(&self, from: &mut dyn Source) -> bool {
        self.queue.offer_bytes(from)
    }

    /// Whether a reader took bytes that are on offer.
    pub fn has_pulled(&self) -> bool {
        self.queue.has_pulled()
    }

    /// Takes back what is on offer to a reader: see [`Queue::withdraw_bytes`].
    pub fn withdraw_bytes(&self, from: &mut dyn Source) -> usize {
        self.queue.withdraw_bytes(from)
    }

    /// Whether bytes were put into the buffer that is on offer.
    pub fn has_put(&self) -> bool {
        self.queue.has_put()
    }

    /// Takes the offer back: see [`Queue::withdraw`].
    pub fn withdraw(&self, to: &mut dyn Sink) -> usize {
        self.queue.withdraw(to)
    }
}
