//! Packets in a pipe (`O_DIRECT`): each write of up to a page is read by itself, and the bytes
//! that a reader has no room for are lost.

use alloc::collections::VecDeque;

use abi::{Errno, Result};

/// Which bytes of the stream are packets: positions of the first byte and behind the last one,
/// in rising order.
#[derive(Default)]
pub(super) struct Packets {
    ranges: VecDeque<(u64, u64)>,
}

/// What a pipe's chain begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Front {
    /// The rest of a packet that ends at this position.
    Packet(u64),
    /// Bytes up to a packet that begins at this position.
    Bytes(u64),
}

impl Packets {
    /// Returns whether no packet is in the chain.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns what the chain, whose first byte is at `start`, begins with; `None` if no packet
    /// is in it. Forgets packets that were read.
    pub fn front(&mut self, start: u64) -> Option<Front> {
        while self.ranges.front().is_some_and(|&(_, end)| end <= start) {
            self.ranges.pop_front();
        }
        let &(first, end) = self.ranges.front()?;
        Some(match first <= start {
            true => Front::Packet(end),
            false => Front::Bytes(first),
        })
    }

    /// Makes room for a packet in a chain whose first byte is at `start`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&mut self, start: u64) -> Result<()> {
        // A splice takes packets off without a look at them.
        self.front(start);
        self.ranges.try_reserve(1).map_err(|_| Errno::ENOMEM)
    }

    /// Notes a packet. [`reserve`](Packets::reserve) made room for it.
    pub fn push(&mut self, start: u64, end: u64) {
        self.ranges.push_back((start, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_their_bounds() {
        let mut packets = Packets::default();
        assert_eq!(packets.front(0), None);
        packets.push(3, 8);
        packets.push(8, 10);
        assert_eq!(packets.front(0), Some(Front::Bytes(3)));
        assert_eq!(packets.front(3), Some(Front::Packet(8)));
        assert_eq!(packets.front(7), Some(Front::Packet(8)));
        assert_eq!(packets.front(8), Some(Front::Packet(10)));
        assert_eq!(packets.front(10), None);
        packets.push(10, 11);
        assert_eq!(packets.front(10), Some(Front::Packet(11)));
    }

    /// A splice takes packets off without reading them.
    #[test]
    fn packets_that_were_spliced_away_are_forgotten() {
        let mut packets = Packets::default();
        for at in 0..1000 {
            packets.reserve(at).unwrap();
            packets.push(at, at + 1);
            assert_eq!(packets.ranges.len(), 1);
        }
    }
}
