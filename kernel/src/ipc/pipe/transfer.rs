//! Reading and writing.

use abi::{Errno, Result};
use fbuf::{
    Sink, Slice, Source, View,
    queue::{Added, Chain, Drain, Fill, Space},
};
use fs::Ready;
use nucleus::PAGE_SIZE;

use super::{packets::Front, queue::Pipe, state::PipeState};
use crate::process::signal;

/// Writes of up to this many bytes are not mixed with others.
pub const PIPE_BUF: usize = abi::raw::general::PIPE_BUF as usize;

#[derive(Default)]
pub(super) struct Write {
    /// Bytes that are linked together: all of a write ([`PIPE_BUF`]) until it was begun, or the
    /// rest of packets.
    whole: usize,
    /// Each step is a packet (`O_DIRECT`).
    packets: bool,
    /// Slices that are there already are linked even where the pipe has no slots for them.
    exceeds: bool,
    /// The pipe was empty: readers may sleep.
    pub was_empty: bool,
}

impl Write {
    /// A call that adds slices.
    pub fn of_slices(exceeds: bool) -> Write {
        Write {
            exceeds,
            ..Write::default()
        }
    }
}

impl Fill<PipeState> for Write {
    fn puts(&self) -> bool {
        !self.packets
    }

    #[inline]
    fn space(&mut self, chain: &mut Chain<PipeState>) -> Result<Space> {
        if chain.state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let mut space = Space {
            slots: match self.exceeds {
                false => chain.free_slots(),
                true => usize::MAX,
            },
            bytes: usize::MAX,
            least: self.whole,
            continues: true,
        };
        if self.packets {
            let start = chain.start();
            chain.state.packets.reserve(start)?;
            space.least = self.whole.min(PAGE_SIZE);
            (space.bytes, space.continues) = (PAGE_SIZE, false);
        }
        Ok(space)
    }

    fn may_put(&mut self, chain: &mut Chain<PipeState>) -> Result<bool> {
        match chain.state.readers {
            0 => Err(Errno::EPIPE),
            _ => Ok(true),
        }
    }

    fn put(&mut self, _: &mut Chain<PipeState>, _: Added) {
        self.was_empty = true;
        self.whole = 0;
    }

    #[inline]
    fn linked(&mut self, chain: &mut Chain<PipeState>, added: Added) {
        self.was_empty |= chain.data.len() == added.len;
        if self.packets {
            self.whole = self.whole.saturating_sub(added.len);
            let end = added.at + added.len as u64;
            chain.state.packets.push(added.at, end);
        } else {
            self.whole = 0;
        }
    }
}

#[derive(Default)]
struct Read {
    /// Where a packet, or the bytes before one, ends the call.
    end: Option<u64>,
    /// The call reads a packet.
    is_packet: bool,
    /// Bytes were taken off.
    has_taken: bool,
    /// A full pipe has a slot again.
    freed_slot: bool,
}

impl Read {
    /// Clips the front to a packet or the bytes before one; `None` where another call begins.
    #[cold]
    fn clip(&mut self, chain: &mut Chain<PipeState>, mut slice: View) -> Option<View> {
        let start = chain.start();
        if self.end.is_none() {
            match chain.state.packets.front(start) {
                None => return Some(slice),
                Some(Front::Packet(_)) if self.has_taken => return None,
                Some(Front::Packet(end)) => (self.end, self.is_packet) = (Some(end), true),
                Some(Front::Bytes(end)) => self.end = Some(end),
            }
        }
        slice.len = slice.len.min((self.end? - start) as usize);
        (slice.len > 0).then_some(slice)
    }
}

impl Drain<PipeState> for Read {
    #[inline]
    fn front(&mut self, chain: &mut Chain<PipeState>) -> Option<View> {
        let slice = chain.first()?;
        match chain.state.packets.is_empty() && self.end.is_none() {
            true => Some(slice),
            false => self.clip(chain, slice),
        }
    }

    #[inline]
    fn pages(&mut self, chain: &mut Chain<PipeState>, most: usize) -> usize {
        match chain.state.packets.is_empty() && self.end.is_none() {
            true => chain.lent_pages(most),
            false => 0,
        }
    }

    #[inline]
    fn take(&mut self, chain: &mut Chain<PipeState>, n: usize) -> Option<Slice> {
        let was_full = !chain.has_slot();
        let slice = chain.pass(n);
        self.has_taken = true;
        self.freed_slot |= was_full && chain.has_slot();
        slice
    }

    fn may_pull(&mut self, chain: &mut Chain<PipeState>, _: bool) -> bool {
        chain.state.packets.is_empty() && self.end.is_none()
    }

    fn pulled(&mut self, _: &mut Chain<PipeState>, _: usize) {
        self.has_taken = true;
        self.freed_slot = true;
    }
}

impl Pipe {
    /// Reads what is there, waiting for the first bytes unless `wait` is false.
    ///
    /// # Errors
    /// `EAGAIN`, a restart number, or those of the sink.
    pub fn read(&self, wait: bool, to: &mut dyn Sink) -> Result<usize> {
        let room = to.room();
        if room == 0 {
            return Ok(0);
        }
        loop {
            if self.ready().contains(Ready::IN) || self.queue.offers_bytes() {
                let n = self.drain(to)?;
                if n > 0 {
                    return Ok(n);
                }
            }
            let is_offered = wait && room >= vm::least_direct() && self.queue.offer(to);
            let awaited = self.await_bytes_or(wait, || is_offered && self.queue.has_put());
            if is_offered {
                let n = self.queue.withdraw(to);
                if n > 0 {
                    return Ok(n);
                }
            }
            if awaited?.is_none() {
                return Ok(0);
            }
        }
    }

    /// Reads what is there: bytes up to the next packet, or one packet, of which the bytes that
    /// do not fit are lost. Wakes writers once, at the end.
    fn drain(&self, to: &mut dyn Sink) -> Result<usize> {
        let mut call = Read::default();
        let n = {
            let reading = self.lock_reading()?;
            let n = self.queue.drain(&reading, to, usize::MAX, &mut call)?;
            if call.is_packet {
                self.drop_packet(&mut call);
            }
            n
        };
        if call.freed_slot {
            self.writers.wake_shared(false);
        }
        Ok(n)
    }

    /// Drops the rest of a packet. The reading side is locked.
    #[cold]
    fn drop_packet(&self, call: &mut Read) {
        loop {
            let slice = {
                let mut chain = self.queue.lock();
                let left = call.end.map_or(0, |end| end - chain.start());
                call.take(&mut chain, left as usize)
            };
            if slice.is_none() {
                return;
            }
        }
    }

    /// Writes all that the source has, waiting for room unless `wait` is false; with `packets`
    /// each page is a packet. Sends SIGPIPE without a reader, even after part of the bytes.
    ///
    /// # Errors
    /// `EPIPE` without a reader, `EAGAIN`, a restart number, or those of the source; each only if
    /// nothing was written.
    pub fn write(&self, wait: bool, packets: bool, from: &mut dyn Source) -> Result<usize> {
        let left = from.left();
        let is_whole = left <= PIPE_BUF || packets;
        let mut call = Write {
            whole: if is_whole { left } else { 0 },
            packets,
            ..Write::default()
        };
        let mut total = 0;
        while total < left {
            call.was_empty = false;
            let error = match self.queue.fill(from, &mut call) {
                Ok(0) if !wait => Errno::EAGAIN,
                Ok(0) => {
                    let (taken, awaited) = self.await_room(!packets, from);
                    total += taken;
                    match awaited {
                        // What a reader took counts, even if it has left.
                        Err(error) if total < left => with_signal(error),
                        _ => continue,
                    }
                }
                Ok(n) => {
                    total += n;
                    self.tell_readers(call.was_empty);
                    continue;
                }
                Err(error) => with_signal(error),
            };
            return fbuf::moved(total, Err(error));
        }
        Ok(total)
    }

    /// Waits until another slice fits. With `offers` a reader may go on with the source's bytes
    /// meanwhile; returns how many it took.
    ///
    /// # Errors
    /// `EPIPE` without a reader, a restart number.
    fn await_room(&self, offers: bool, from: &mut dyn Source) -> (usize, Result<()>) {
        let is_offered = offers && self.queue.offer_bytes(from);
        let awaited = self.await_slot_or(true, || is_offered && self.queue.has_pulled());
        let taken = match is_offered {
            true => self.queue.withdraw_bytes(from),
            false => 0,
        };
        let awaited = awaited.and_then(|status| match status.readers {
            0 => Err(Errno::EPIPE),
            _ => Ok(()),
        });
        (taken, awaited)
    }

    /// Writes as much as there is room for, or as a reader takes meanwhile, waiting for some unless
    /// `wait` is false. Sends SIGPIPE as [`write`](Self::write) does.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_what_fits(&self, wait: bool, from: &mut dyn Source) -> Result<usize> {
        loop {
            // What is written as a whole, `PIPE_BUF`, fits into a slot.
            match self.write(false, false, from) {
                Err(Errno::EAGAIN) if wait => {}
                done => return done,
            }
            // Another writer may be faster.
            match self.await_room(true, from) {
                (0, Ok(())) => {}
                (0, Err(error)) => return Err(with_signal(error)),
                (taken, _) => return Ok(taken),
            }
        }
    }

    /// Wakes readers after a write: they sleep only while the pipe is empty, but observers hear
    /// of each write.
    pub(super) fn tell_readers(&self, was_empty: bool) {
        if was_empty || self.readers.is_observed() {
            self.readers.wake_shared(false);
        }
    }
}

/// Sends SIGPIPE with an `EPIPE`: a write to a pipe without a reader has both.
pub(super) fn with_signal(error: Errno) -> Errno {
    match error {
        Errno::EPIPE => signal::broken_pipe(),
        error => error,
    }
}
