//! Packets in a pipe (`O_DIRECT`): each write of a page at most is read by itself, and what a reader has no room for is
//! lost.

use alloc::collections::VecDeque;
use core::sync::atomic::Ordering::Relaxed;

use abi::{Errno, Result};
use fbuf::{Sink, Slice, Source};
use nucleus::{PAGE_SIZE, frame::Contents, sync::MutexGuard};

use super::queue::Pipe;

/// Which bytes of the chain are packets. The bytes that go through a pipe are numbered.
#[derive(Default)]
pub(super) struct Packets {
    /// The number of the first byte in the chain.
    pub first: u64,
    /// First byte and the one behind the last, in rising order.
    ranges: VecDeque<(u64, u64)>,
}

impl Packets {
    /// What the chain begins with; `None` if no packet is in it. Packets that were read are forgotten.
    pub fn front(&mut self) -> Option<Front> {
        while self
            .ranges
            .front()
            .is_some_and(|&(_, end)| end <= self.first)
        {
            self.ranges.pop_front();
        }
        let &(start, end) = self.ranges.front()?;
        Some(match start <= self.first {
            true => Front::Packet((end - self.first) as usize),
            false => Front::Bytes((start - self.first) as usize),
        })
    }

    /// Notes a packet of `len` bytes behind `before` bytes. There is room for it.
    fn push(&mut self, before: usize, len: usize) {
        let start = self.first + before as u64;
        self.ranges.push_back((start, start + len as u64));
    }
}

/// What a pipe's chain begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Front {
    /// What is left of a packet.
    Packet(usize),
    /// So many bytes in front of a packet.
    Bytes(usize),
}

impl Pipe {
    /// Writes all that the source has, each page as a packet.
    ///
    /// # Errors
    /// As [`write`](Pipe::write).
    pub fn write_packets(&self, wait: bool, from: &mut dyn Source) -> Result<usize> {
        self.write_in_steps(wait, from, |from| self.add_packet(from))
    }

    /// Adds one packet, or nothing when no slot is free.
    fn add_packet(&self, from: &mut dyn Source) -> Result<usize> {
        // The lock on the tail keeps a free slot free: nobody else adds.
        let _tail = self.writing.lock();
        {
            let mut queue = self.lock();
            if queue.readers == 0 {
                return Err(Errno::EPIPE);
            }
            if !queue.has_slot() {
                return Ok(0);
            }
            let room = queue.slots;
            let ranges = &mut queue.packets.ranges;
            let more = (room + 1).saturating_sub(ranges.len());
            ranges.try_reserve(more).map_err(|_| Errno::ENOMEM)?;
        }
        let frame = vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM)?;
        let len = from.take_into(&frame, 0, from.left().min(PAGE_SIZE))?;
        if len == 0 {
            return Ok(0);
        }
        let mut queue = self.lock();
        let before = queue.data.len();
        queue.data.append(Slice {
            frame,
            offset: 0,
            len,
        })?;
        queue.packets.push(before, len);
        drop(queue);
        self.has_packets.store(true, Relaxed);
        if before == 0 {
            self.readers.wake_all();
        }
        Ok(len)
    }

    /// Reads bytes up to the next packet, or one packet; 0 if there is nothing.
    ///
    /// # Errors
    /// That of the sink.
    pub(super) fn drain_packet(
        &self,
        reading: &MutexGuard<'_, ()>,
        to: &mut dyn Sink,
    ) -> Result<usize> {
        let front = self.lock().packets.front();
        match front {
            None => {
                // One that comes now says so again.
                self.has_packets.store(false, Relaxed);
                self.drain(reading, to, usize::MAX)
            }
            Some(Front::Bytes(n)) => self.drain(reading, to, n),
            Some(Front::Packet(len)) => {
                let n = self.drain(reading, to, len)?;
                let mut rest = len - n;
                while rest > 0 {
                    let slice = self.lock().take_slice(rest);
                    let Some(slice) = slice else { break };
                    rest -= slice.len;
                }
                if n < len {
                    self.writers.wake_all();
                }
                Ok(n)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_their_bounds() {
        let mut packets = Packets::default();
        assert_eq!(packets.front(), None);
        packets.push(3, 5);
        packets.push(8, 2);
        assert_eq!(packets.front(), Some(Front::Bytes(3)));
        packets.first += 3;
        assert_eq!(packets.front(), Some(Front::Packet(5)));
        packets.first += 4;
        assert_eq!(packets.front(), Some(Front::Packet(1)));
        packets.first += 1;
        assert_eq!(packets.front(), Some(Front::Packet(2)));
        packets.first += 2;
        assert_eq!(packets.front(), None);
        packets.push(0, 1);
        assert_eq!(packets.front(), Some(Front::Packet(1)));
    }
}
