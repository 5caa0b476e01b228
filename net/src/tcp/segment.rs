//! Segments: a TCP header as values, and the payload as slices.
//!
//! Between the ends of a loopback connection segments travel as they are; to a network they get
//! their header by [`format`](super::format).
#![allow(missing_docs, reason = "fields and constants whose names say it")]

use core::{
    cmp::Ordering,
    ops::{Add, AddAssign, Sub},
};

use fbuf::Aggregate;

/// A sequence number. The order is that of numbers at most 2^31 apart.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns the distance from `earlier` to this number.
    pub fn since(self, earlier: Seq) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }

    pub fn max(self, other: Seq) -> Seq {
        if self < other { other } else { self }
    }

    pub fn min(self, other: Seq) -> Seq {
        if other < self { other } else { self }
    }
}

impl PartialOrd for Seq {
    #[inline]
    fn partial_cmp(&self, other: &Seq) -> Option<Ordering> {
        (self.0.wrapping_sub(other.0) as i32).partial_cmp(&0)
    }
}

impl Add<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn add(self, n: u32) -> Seq {
        Seq(self.0.wrapping_add(n))
    }
}

impl AddAssign<u32> for Seq {
    #[inline]
    fn add_assign(&mut self, n: u32) {
        *self = *self + n;
    }
}

impl Sub<u32> for Seq {
    type Output = Seq;
    #[inline]
    fn sub(self, n: u32) -> Seq {
        Seq(self.0.wrapping_sub(n))
    }
}

/// The control bits.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub u8);

impl Flags {
    pub const FIN: Flags = Flags(1);
    pub const SYN: Flags = Flags(2);
    pub const RST: Flags = Flags(4);
    pub const PSH: Flags = Flags(8);
    pub const ACK: Flags = Flags(16);
    pub const URG: Flags = Flags(32);

    /// Returns the bits of both.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns the bits that `other` does not have.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Tells whether it has all bits of `other`.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Blocks of a SACK option: no header has room for more.
pub const MAX_SACKS: usize = 4;

/// Ranges of bytes that have arrived behind a gap (RFC 2018), the latest first.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sacks {
    blocks: [(Seq, Seq); MAX_SACKS],
    count: u8,
}

impl Sacks {
    /// Adds a block, unless there is no room or it is there already.
    pub fn push(&mut self, left: Seq, right: Seq) {
        let count = usize::from(self.count);
        if count < MAX_SACKS && !self.as_slice().contains(&(left, right)) {
            self.blocks[count] = (left, right);
            self.count += 1;
        }
    }

    /// Drops all blocks behind the first `most`.
    pub fn truncate(&mut self, most: usize) {
        self.count = self.count.min(most as u8);
    }

    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.blocks[..usize::from(self.count)]
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The options of a header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Options {
    /// The largest payload that the sender takes (RFC 9293 3.7.1); in SYNs.
    pub largest: Option<u16>,
    /// The shift of its windows (RFC 7323); in SYNs.
    pub scale: Option<u8>,
    /// It understands SACK; in SYNs.
    pub may_sack: bool,
    /// The sender's clock, and the last one of the receiver's that it has seen.
    pub stamps: Option<(u32, u32)>,
    pub sacks: Sacks,
}

/// A segment.
#[derive(Clone, Default, Debug)]
pub struct Segment {
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    pub window: u16,
    pub urgent: u16,
    pub options: Options,
    pub data: Aggregate,
    /// Bytes of payload per packet when the segment has more than one packet's
    /// (segmentation offload); 0 if it is one packet.
    pub cut: u16,
}

impl Segment {
    /// Returns the numbers that it takes: its bytes, and one each for SYN and FIN.
    #[allow(
        clippy::len_without_is_empty,
        reason = "one without numbers is an acknowledgement"
    )]
    pub fn len(&self) -> u32 {
        let ends = self.is(Flags::SYN) as u32 + self.is(Flags::FIN) as u32;
        self.data.len() as u32 + ends
    }

    /// Returns the number behind its last one.
    pub fn end(&self) -> Seq {
        self.seq + self.len()
    }

    /// Tells whether it has all of these bits.
    pub fn is(&self, flags: Flags) -> bool {
        self.flags.has(flags)
    }

    /// Tells whether it asks for a connection.
    pub fn opens(&self) -> bool {
        let others = Flags::ACK.with(Flags::RST).with(Flags::FIN);
        self.is(Flags::SYN) && self.flags.without(others) == self.flags
    }

    /// Returns the reset that answers a segment without a connection (RFC 9293 3.10.7.1); `None`
    /// for a reset.
    pub fn refusal(&self) -> Option<Segment> {
        if self.is(Flags::RST) {
            return None;
        }
        let mut reset = Segment::default();
        if self.is(Flags::ACK) {
            reset.seq = self.ack;
            reset.flags = Flags::RST;
        } else {
            reset.ack = self.end();
            reset.flags = Flags::RST.with(Flags::ACK);
        }
        Some(reset)
    }
}
