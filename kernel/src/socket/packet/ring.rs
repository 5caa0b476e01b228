//! A ring of packets in memory that a program maps: `TPACKET_V2`, whose slots have one size, and
//! `TPACKET_V3`, whose blocks are filled with packets one behind the other.
//!
//! The program owns a slot or block from when its status says so until it says otherwise. The
//! kernel writes there whatever the program has written meanwhile, and reads the status only.

use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;

use abi::{Errno, Result};
use nucleus::{
    PAGE_SIZE, ephemeral,
    frame::{self, Contents, Frame},
    sync::{Rank, SpinLock},
};
use vm::{Lookup, Object, Pager, PagerError, account::Charge};

use super::{name::NAME, seen::Seen};

/// Frames in one list, which takes a page.
const CHUNK: usize = 1024;
/// The most pages of a ring.
const MOST_PAGES: usize = 16_384;
/// Bytes of the heads of packets, to which a name is added, and their alignment.
const HEAD_V2: usize = 32;
const HEAD_V3: usize = 48;
const ALIGNMENT: usize = 16;
/// Bytes of the head of a block.
const BLOCK_HEAD: usize = 48;
/// Status: the program's; the packet was cut; packets were lost before.
const KERNEL: u32 = 0;
const USER: u32 = 1;
const LOSING: u32 = 4;

/// How a ring is to be.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// 2 or 3.
    pub version: u32,
    pub block_size: usize,
    pub blocks: usize,
    pub slot_size: usize,
    pub slots: usize,
    /// Bytes before each packet that are the program's (`PACKET_RESERVE`).
    pub reserve: usize,
    /// Bytes behind the head of each block that are the program's.
    pub private: usize,
    /// Packets have a header of the link.
    pub has_link: bool,
}

/// A ring.
pub struct Ring {
    shape: Shape,
    object: Object,
    frames: Vec<Vec<Frame>>,
    state: SpinLock<State>,
    _charge: Option<Charge>,
}

#[derive(Default, Debug)]
struct State {
    /// The next slot, or the block that is being filled.
    next: usize,
    /// Bytes of the block that are filled; 0 if it has not been begun.
    filled: usize,
    /// Packets in it, where the last of them begins, and how many are being written.
    packets: u32,
    last: usize,
    writers: u32,
    /// It is to be given to the program as soon as all are written.
    closes: bool,
    /// The number of the next block.
    sequence: u64,
    first_at: Duration,
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(ALIGNMENT)
}

impl Shape {
    /// Bytes before the header of the network in a slot.
    fn network(&self) -> usize {
        let head = match self.version {
            2 => HEAD_V2 + NAME,
            _ => HEAD_V3 + NAME,
        };
        let link = if self.has_link {
            super::seen::ETHERNET
        } else {
            0
        };
        padded(head + link.max(16)) + self.reserve
    }

    /// Bytes of the ring.
    pub fn len(&self) -> usize {
        self.block_size * self.blocks
    }
}

/// Returns the bytes of a packet's head (`PACKET_HDRLEN`).
///
/// # Errors
/// `EINVAL` for an unknown version.
pub fn head_len(version: i32) -> Result<i32> {
    match version {
        1 => Ok(HEAD_V2 as i32),
        2 => Ok(HEAD_V3 as i32),
        _ => Err(Errno::EINVAL),
    }
}

impl Ring {
    /// Makes an empty ring.
    ///
    /// # Errors
    /// `EINVAL` for a shape that can't be, `ENOMEM`.
    pub fn new(shape: Shape, charge: impl FnOnce(usize) -> Option<Charge>) -> Result<Arc<Ring>> {
        let pages = shape.block_size / PAGE_SIZE;
        let is_wrong = shape.block_size == 0
            || !shape.block_size.is_multiple_of(PAGE_SIZE)
            || shape.blocks == 0
            || !shape.slot_size.is_multiple_of(ALIGNMENT)
            || shape.slot_size < shape.network()
            || shape.slot_size > shape.block_size
            || shape
                .blocks
                .checked_mul(pages)
                .is_none_or(|all| all > MOST_PAGES)
            || shape.block_size / shape.slot_size * shape.blocks != shape.slots
            || BLOCK_HEAD + shape.private + shape.network() >= shape.block_size;
        if is_wrong {
            return Err(Errno::EINVAL);
        }
        let count = pages * shape.blocks;
        let charge = charge(shape.len());
        let mut frames = nucleus::try_vec(count.div_ceil(CHUNK))?;
        for first in (0..count).step_by(CHUNK) {
            let n = CHUNK.min(count - first);
            let mut chunk = nucleus::try_vec(n)?;
            for _ in 0..n {
                frame::check_not_scarce()?;
                chunk.push(Frame::alloc(Contents::Zeroed)?);
            }
            frames.push(chunk);
        }
        Ok(Arc::new(Ring {
            shape,
            object: Object::new(),
            frames,
            state: SpinLock::new(Rank::Leaf, State::default()),
            _charge: charge,
        }))
    }

    fn frame(&self, number: usize) -> Option<&Frame> {
        self.frames.get(number / CHUNK)?.get(number % CHUNK)
    }

    /// Writes bytes at a place of the ring, which they do not leave.
    fn write(&self, at: usize, mut bytes: &[u8]) {
        let mut at = at;
        while !bytes.is_empty() {
            let Some(frame) = self.frame(at / PAGE_SIZE) else {
                return;
            };
            let offset = at % PAGE_SIZE;
            let n = bytes.len().min(PAGE_SIZE - offset);
            ephemeral::map(frame).write(offset, &bytes[..n]);
            (at, bytes) = (at + n, &bytes[n..]);
        }
    }

    fn write_word(&self, at: usize, word: u32) {
        self.write(at, &word.to_le_bytes());
    }

    fn read_word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        if let Some(frame) = self.frame(at / PAGE_SIZE) {
            ephemeral::map(frame).read(at % PAGE_SIZE, &mut bytes);
        }
        u32::from_le_bytes(bytes)
    }

    /// Where a slot begins.
    fn slot(&self, number: usize) -> usize {
        let of_block = self.shape.block_size / self.shape.slot_size;
        number / of_block * self.shape.block_size + number % of_block * self.shape.slot_size
    }

    /// Copies the first `len` bytes of a packet to a place.
    fn copy(&self, seen: &Seen<'_>, at: usize, len: usize) {
        let mut piece = [0; 256];
        let mut done = 0;
        while done < len {
            let wanted = (len - done).min(piece.len());
            let n = seen.copy(done, &mut piece[..wanted]);
            if n == 0 {
                return;
            }
            self.write(at + done, &piece[..n]);
            done += n;
        }
    }

    /// Adds the first `len` bytes of a packet, or fewer if there is no room for so many; false if
    /// there is none at all.
    pub fn add(&self, seen: &Seen<'_>, len: usize, at: Duration, has_lost: bool) -> bool {
        match self.shape.version {
            2 => self.add_to_slot(seen, len, at, has_lost),
            _ => self.add_to_block(seen, len, at, has_lost),
        }
    }

    fn add_to_slot(&self, seen: &Seen<'_>, len: usize, time: Duration, has_lost: bool) -> bool {
        let number = self.state.lock().next;
        let slot = self.slot(number);
        if self.read_word(slot) != KERNEL {
            return false;
        }
        {
            let mut state = self.state.lock();
            if state.next != number {
                // Another packet was faster; the ring is as good as full.
                return false;
            }
            state.next = (number + 1) % self.shape.slots;
        }
        let network = self.shape.network();
        let start = if self.shape.has_link {
            network - seen.link
        } else {
            network
        };
        let len = len.min(self.shape.slot_size - start);
        self.copy(seen, slot + start, len);
        let mut head = [0; HEAD_V2 + NAME];
        let words = [seen.size() as u32, len as u32];
        head[4..8].copy_from_slice(&words[0].to_le_bytes());
        head[8..12].copy_from_slice(&words[1].to_le_bytes());
        head[12..14].copy_from_slice(&(start as u16).to_le_bytes());
        head[14..16].copy_from_slice(&(network as u16).to_le_bytes());
        head[16..20].copy_from_slice(&(time.as_secs() as u32).to_le_bytes());
        head[20..24].copy_from_slice(&time.subsec_nanos().to_le_bytes());
        head[HEAD_V2..].copy_from_slice(&seen.name.bytes());
        self.write(slot + 4, &head[4..]);
        let losing = if has_lost { LOSING } else { 0 };
        self.write_word(slot, USER | losing | seen.checksum());
        true
    }

    fn add_to_block(&self, seen: &Seen<'_>, len: usize, time: Duration, has_lost: bool) -> bool {
        let network = self.shape.network();
        let start = if self.shape.has_link {
            network - seen.link
        } else {
            network
        };
        let first = BLOCK_HEAD + self.shape.private.next_multiple_of(8);
        let len = len.min(self.shape.block_size - first - start);
        let size = padded(start + len);
        // Twice: the block that is being filled may have no room.
        for _ in 0..2 {
            let number = self.state.lock().next;
            let block = number * self.shape.block_size;
            let is_ours = self.read_word(block + 8) == KERNEL;
            let place = {
                let mut state = self.state.lock();
                if state.next != number || !is_ours || state.closes {
                    return false;
                }
                if state.filled == 0 {
                    *state = State {
                        next: number,
                        filled: first,
                        sequence: state.sequence,
                        first_at: time,
                        ..State::default()
                    };
                }
                match state.filled + size <= self.shape.block_size {
                    true => {
                        let place = state.filled;
                        let last = state.last;
                        state.filled += size;
                        state.packets += 1;
                        state.last = place;
                        state.writers += 1;
                        Some((place, last))
                    }
                    false => None,
                }
            };
            let Some((place, last)) = place else {
                self.close_block(time);
                continue;
            };
            self.copy(seen, block + place + start, len);
            let mut head = [0; HEAD_V3 + NAME];
            let losing = if has_lost { LOSING } else { 0 };
            let words = [
                0,
                time.as_secs() as u32,
                time.subsec_nanos(),
                len as u32,
                seen.size() as u32,
                USER | losing | seen.checksum(),
            ];
            for (n, word) in words.into_iter().enumerate() {
                head[n * 4..n * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
            head[24..26].copy_from_slice(&(start as u16).to_le_bytes());
            head[26..28].copy_from_slice(&(network as u16).to_le_bytes());
            head[HEAD_V3..].copy_from_slice(&seen.name.bytes());
            // The word in front leads to the next packet, which may be there already.
            self.write(block + place + 4, &head[4..]);
            if last != 0 {
                self.write_word(block + last, (place - last) as u32);
            }
            let closes = {
                let mut state = self.state.lock();
                state.writers -= 1;
                state.closes && state.writers == 0
            };
            if closes {
                self.hand_over(time);
            }
            return true;
        }
        false
    }

    /// Gives the block that is being filled to the program.
    fn close_block(&self, time: Duration) {
        let closes = {
            let mut state = self.state.lock();
            let has_packets = state.packets > 0 && !state.closes;
            state.closes |= has_packets;
            has_packets && state.writers == 0
        };
        if closes {
            self.hand_over(time);
        }
    }

    fn hand_over(&self, time: Duration) {
        let (number, packets, filled, last, sequence, first_at) = {
            let state = self.state.lock();
            let State {
                next,
                packets,
                filled,
                last,
                sequence,
                first_at,
                ..
            } = *state;
            (next, packets, filled, last, sequence, first_at)
        };
        let block = number * self.shape.block_size;
        let first = BLOCK_HEAD + self.shape.private.next_multiple_of(8);
        self.write_word(block + last, 0);
        let mut head = [0; BLOCK_HEAD];
        let words = [
            2,
            BLOCK_HEAD as u32,
            0,
            packets,
            first as u32,
            filled as u32,
        ];
        for (n, word) in words.into_iter().enumerate() {
            head[n * 4..n * 4 + 4].copy_from_slice(&word.to_le_bytes());
        }
        head[24..32].copy_from_slice(&sequence.to_le_bytes());
        for (n, at) in [first_at, time].into_iter().enumerate() {
            let begin = 32 + n * 8;
            head[begin..begin + 4].copy_from_slice(&(at.as_secs() as u32).to_le_bytes());
            head[begin + 4..begin + 8].copy_from_slice(&at.subsec_nanos().to_le_bytes());
        }
        self.write(block, &head[..8]);
        self.write(block + 12, &head[12..]);
        self.write_word(block + 8, USER);
        let mut state = self.state.lock();
        *state = State {
            next: (number + 1) % self.shape.blocks,
            sequence: sequence + 1,
            ..State::default()
        };
    }

    /// Tells whether the program has something to read. A block that has a packet is closed and
    /// given to the program.
    pub fn is_readable(&self, now: Duration) -> bool {
        let last = |next: usize, count: usize| (next + count - 1) % count;
        if self.shape.version == 2 {
            let next = self.state.lock().next;
            let slot = self.slot(last(next, self.shape.slots));
            return self.read_word(slot) != KERNEL;
        }
        self.close_block(now);
        let next = self.state.lock().next;
        let block = last(next, self.shape.blocks) * self.shape.block_size;
        self.read_word(block + 8) != KERNEL
    }
}

impl Pager for Ring {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> core::result::Result<Lookup, PagerError> {
        let frame = usize::try_from(index).ok().and_then(|at| self.frame(at));
        let frame = frame.ok_or(PagerError::BeyondEnd)?;
        self.object.get_or_insert(index, || Ok(frame.clone()))
    }
}
