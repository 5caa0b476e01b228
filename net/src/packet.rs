//! Packets: headers in a small buffer that grows to the front, and the rest as slices.
//!
//! A packet that is sent has its headers in [`Packet::head`] and the payload as the slices that the
//! program or a file gave. One that has arrived is all slices; its first bytes are copied once
//! ([`Headers`]), and each layer reads its header there.

use fbuf::Aggregate;
use nucleus::ephemeral;

/// Bytes of headers: Ethernet, IPv6 with a fragment header, TCP with all options, less padding.
const HEAD: usize = 128;

/// Bytes that are copied of a packet that has arrived: Ethernet, IPv6 and a TCP header with 38
/// bytes of options; where headers are longer, those of the transport are copied again. An array of
/// so many bytes is zeroed without a call.
const HEADERS: usize = 14 + 40 + TRANSPORT;
/// Bytes of them for the header above IP.
pub const TRANSPORT: usize = 58;

/// Headers, the outermost first.
#[derive(Clone, Debug)]
pub struct Head {
    bytes: [u8; HEAD],
    /// Where they begin.
    start: u8,
}

impl Default for Head {
    fn default() -> Head {
        Head {
            bytes: [0; HEAD],
            start: HEAD as u8,
        }
    }
}

impl Head {
    /// Adds `n` zero bytes before the others.
    ///
    /// # Panics
    /// If there is no room: no combination of headers has so many bytes.
    pub fn push(&mut self, n: usize) -> &mut [u8] {
        let end = usize::from(self.start);
        let start = end - n;
        self.start = start as u8;
        &mut self.bytes[start..end]
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[usize::from(self.start)..]
    }

    /// Returns the bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[usize::from(self.start)..]
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        HEAD - usize::from(self.start)
    }

    /// Tells whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A copy of the first bytes of a packet that has arrived, less those of the layers that have read
/// theirs.
#[derive(Clone, Debug)]
pub struct Headers {
    bytes: [u8; HEADERS],
    start: u8,
    end: u8,
}

impl Headers {
    /// Copies the first bytes.
    #[inline]
    pub fn of(data: &Aggregate) -> Headers {
        let mut bytes = [0; HEADERS];
        let n = data.peek(0, &mut bytes[..HEADERS.min(data.len())]);
        Headers {
            bytes,
            start: 0,
            end: n as u8,
        }
    }

    /// Returns them.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start.into()..self.end.into()]
    }

    /// Returns the last `n` bytes that were given up; `None` if there were fewer.
    pub fn before(&self, n: usize) -> Option<&[u8]> {
        let start = usize::from(self.start);
        Some(&self.bytes[start.checked_sub(n)?..start])
    }

    /// Keeps no more than `n` bytes.
    #[inline]
    pub fn cut(&mut self, n: usize) {
        let left = usize::from(self.end - self.start);
        self.end = self.start + left.min(n) as u8;
    }

    /// Gives up the first `n` bytes, or all if there are fewer.
    #[inline]
    pub fn skip(&mut self, n: usize) {
        let left = self.end - self.start;
        self.start += n.min(left.into()) as u8;
    }
}

/// The state of the checksum of the transport header.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Checksum {
    /// It is in its place, and has not been verified.
    #[default]
    Unknown,
    /// It was checked, or the packet has never left this machine.
    Right,
    /// The device computes it over all bytes from `from` on, and adds it to what is at `at`; both
    /// are counted from the beginning of the packet.
    Wanted {
        /// The first byte.
        from: u16,
        /// The place of the checksum.
        at: u16,
    },
}

/// A packet between a device and this machine.
#[derive(Clone, Default, Debug)]
pub struct Packet {
    /// Headers; empty in a packet that has arrived.
    pub head: Head,
    /// What follows them.
    pub data: Aggregate,
    /// The transport header's checksum.
    pub checksum: Checksum,
    /// The device cuts the payload into segments of so many bytes, unless this is 0.
    pub cut: u16,
}

impl Packet {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.data.len()
    }

    /// Tells whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes from byte `at` on; returns how many there were.
    pub fn peek(&self, at: usize, to: &mut [u8]) -> usize {
        let head = self.head.as_slice().get(at..).unwrap_or(&[]);
        let n = head.len().min(to.len());
        to[..n].copy_from_slice(&head[..n]);
        n + self
            .data
            .peek((at + n).saturating_sub(self.head.len()), &mut to[n..])
    }
}

/// A checksum: the sum of 16-bit words in ones' complement (RFC 1071).
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum {
    total: u64,
    /// The number of bytes so far is odd.
    is_odd: bool,
}

impl Sum {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut part = 0u64;
        let mut words = bytes.chunks_exact(4);
        for word in &mut words {
            part += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
        }
        let mut last = [0; 4];
        last[..words.remainder().len()].copy_from_slice(words.remainder());
        part += u64::from(u32::from_ne_bytes(last));
        let part = u16::from_be_bytes(fold(part).to_ne_bytes());
        self.total += u64::from(match self.is_odd {
            true => part.swap_bytes(),
            false => part,
        });
        self.is_odd ^= bytes.len() % 2 == 1;
    }

    /// Adds the bytes of slices.
    pub fn add_slices(&mut self, data: &Aggregate) {
        let mut piece = [0; 512];
        for slice in data.slices() {
            let view = ephemeral::map(slice.frame());
            let mut at = 0;
            while at < slice.len {
                let n = (slice.len - at).min(piece.len());
                view.read(slice.offset + at, &mut piece[..n]);
                self.add(&piece[..n]);
                at += n;
            }
        }
    }

    /// Returns the sum itself, as a device wants it that goes on with it.
    pub fn partial(self) -> u16 {
        fold(self.total)
    }

    /// Returns the checksum; 0 for bytes with a right one among them.
    pub fn finish(self) -> u16 {
        !fold(self.total)
    }
}

fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    total as u16
}

#[cfg(test)]
mod tests {
    use super::Sum;

    /// The example of RFC 1071, in one piece and in odd ones.
    #[test]
    fn sums_are_those_of_the_rfc() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        for cut in 0..8 {
            let mut sum = Sum::default();
            sum.add(&bytes[..cut]);
            sum.add(&bytes[cut..]);
            assert_eq!(sum.partial(), 0xddf2, "cut at {cut}");
            assert_eq!(sum.finish(), !0xddf2);
        }
    }
}
