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
    time,
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
/// How often a place is looked for while other CPUs take those that were found.
const ATTEMPTS: usize = 8;
/// Status: the program's; packets were lost before; the block's time was over.
const KERNEL: u32 = 0;
const USER: u32 = 1;
const LOSING: u32 = 4;
const TIMED_OUT: u32 = 0x20;
/// The time after which a block is closed, of a program that leaves it to the kernel: that of Linux
/// for a link without a speed.
const USUAL_PATIENCE: Duration = Duration::from_millis(8);

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
    /// Milliseconds after which a block with packets is the program's though it has room
    /// (`tp_retire_blk_tov`); 0 leaves that to the kernel.
    pub patience: u32,
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
    /// Packets in it, and where the last of them begins.
    packets: u32,
    last: usize,
    /// Packets of the ring, or of the block, that are being written.
    writers: u32,
    /// It is to be given to the program as soon as all are written.
    closes: bool,
    /// The time since boot at which it is closed though it has room, and whether it was.
    due: Duration,
    has_timed_out: bool,
    /// The number of the next block.
    sequence: u64,
    first_at: Duration,
}

/// What became of a packet.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Added {
    /// The ring has it.
    pub is_kept: bool,
    /// The program has something new to read.
    pub is_news: bool,
    /// The packet is the first one of a block, which [`Ring::close_due`] closes at this time since
    /// boot.
    pub due: Option<Duration>,
}

impl Added {
    /// That of a packet that the program may read at once, if it was kept.
    pub fn at_once(is_kept: bool) -> Added {
        Added {
            is_kept,
            is_news: is_kept,
            due: None,
        }
    }
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

    /// Returns where a packet with a header of the link of `link` bytes begins in its slot, and
    /// that of the network; `None` if a head can't say that: such packets are lost, as on Linux.
    fn places(&self, link: usize) -> Option<(u16, u16)> {
        let network = u16::try_from(self.network()).ok()?;
        let link = if self.has_link { link as u16 } else { 0 };
        Some((network - link, network))
    }

    /// Bytes of the ring.
    pub fn len(&self) -> usize {
        self.block_size * self.blocks
    }

    /// Where the first packet of a block begins.
    fn first(&self) -> usize {
        BLOCK_HEAD + self.private.next_multiple_of(8)
    }

    /// Bytes of a block for packets, which end at multiples of their alignment.
    fn room(&self) -> usize {
        (self.block_size - self.first()) / ALIGNMENT * ALIGNMENT
    }

    /// Whether there can be such a ring, with room for the heads of a packet in each slot or block.
    fn is_possible(&self) -> bool {
        let pages = self.block_size / PAGE_SIZE;
        let all = self.blocks.checked_mul(pages);
        let is_block = self.block_size > 0 && self.block_size.is_multiple_of(PAGE_SIZE);
        is_block
            && self.blocks > 0
            && all.is_some_and(|all| all <= MOST_PAGES)
            && self.slot_size.is_multiple_of(ALIGNMENT)
            && (self.network()..=self.block_size).contains(&self.slot_size)
            && self.block_size / self.slot_size * self.blocks == self.slots
            && (self.version == 2 || self.first() + padded(self.network()) <= self.block_size)
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
    /// `EINVAL` for a shape that can't be, `ENOMEM`, `EINTR` if the thread is to end.
    pub fn new(shape: Shape, charge: impl FnOnce(usize) -> Option<Charge>) -> Result<Arc<Ring>> {
        if !shape.is_possible() {
            return Err(Errno::EINVAL);
        }
        let count = shape.len() / PAGE_SIZE;
        let charge = charge(shape.len());
        let mut frames = nucleus::try_vec(count.div_ceil(CHUNK))?;
        for first in (0..count).step_by(CHUNK) {
            let n = CHUNK.min(count - first);
            let mut chunk = nucleus::try_vec(n)?;
            if vm::is_dying() {
                return Err(Errno::EINTR);
            }
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

    /// Adds the first `len` bytes of a packet that was seen at `at` since the epoch, or fewer if
    /// there is no room for so many.
    pub fn add(&self, seen: &Seen<'_>, len: usize, at: Duration, has_lost: bool) -> Added {
        if self.shape.version == 2 {
            return Added::at_once(self.add_to_slot(seen, len, at, has_lost));
        }
        let mut added = Added::default();
        added.is_kept = self.add_to_block(seen, len, at, has_lost, &mut added);
        added
    }

    fn add_to_slot(&self, seen: &Seen<'_>, len: usize, time: Duration, has_lost: bool) -> bool {
        let Some(slot) = self.claim_slot() else {
            return false;
        };
        let Some((start, network)) = self.shape.places(seen.link) else {
            return false;
        };
        let len = len.min(self.shape.slot_size - usize::from(start));
        self.copy(seen, slot + usize::from(start), len);
        let mut head = [0; HEAD_V2 + NAME];
        let words = [seen.size() as u32, len as u32];
        head[4..8].copy_from_slice(&words[0].to_le_bytes());
        head[8..12].copy_from_slice(&words[1].to_le_bytes());
        head[12..14].copy_from_slice(&start.to_le_bytes());
        head[14..16].copy_from_slice(&network.to_le_bytes());
        head[16..20].copy_from_slice(&(time.as_secs() as u32).to_le_bytes());
        head[20..24].copy_from_slice(&time.subsec_nanos().to_le_bytes());
        head[HEAD_V2..].copy_from_slice(&seen.name.bytes());
        self.write(slot + 4, &head[4..]);
        let losing = if has_lost { LOSING } else { 0 };
        self.write_word(slot, USER | losing | seen.checksum());
        self.state.lock().writers -= 1;
        true
    }

    /// Takes the next slot for a packet; `None` if the program has not read that yet.
    fn claim_slot(&self) -> Option<usize> {
        for _ in 0..ATTEMPTS {
            let number = self.state.lock().next;
            let slot = self.slot(number);
            if self.read_word(slot) != KERNEL {
                return None;
            }
            let mut state = self.state.lock();
            // Another CPU has taken it meanwhile.
            if state.next != number {
                continue;
            }
            // A slot that is being written still looks free: a round begins when all are written.
            if number == 0 && state.writers > 0 {
                return None;
            }
            state.next = (number + 1) % self.shape.slots;
            state.writers += 1;
            return Some(slot);
        }
        None
    }

    fn add_to_block(
        &self,
        seen: &Seen<'_>,
        len: usize,
        time: Duration,
        has_lost: bool,
        added: &mut Added,
    ) -> bool {
        let Some((start, network)) = self.shape.places(seen.link) else {
            return false;
        };
        let first = self.shape.first();
        let start = usize::from(start);
        let len = len.min(self.shape.room() - start);
        let size = padded(start + len);
        // The block that is being filled may have no room.
        for _ in 0..ATTEMPTS {
            let number = self.state.lock().next;
            let block = number * self.shape.block_size;
            let is_ours = self.read_word(block + 8) == KERNEL;
            let place = {
                let mut state = self.state.lock();
                // Another CPU has filled it meanwhile.
                if state.next != number {
                    continue;
                }
                if !is_ours || state.closes {
                    return false;
                }
                if state.filled == 0 {
                    let due = time::since_boot() + self.patience();
                    added.due = Some(due);
                    *state = State {
                        next: number,
                        filled: first,
                        sequence: state.sequence,
                        first_at: time,
                        due,
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
                added.is_news |= self.close_block(time, None);
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
            head[26..28].copy_from_slice(&network.to_le_bytes());
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
                added.is_news = true;
            }
            return true;
        }
        false
    }

    fn patience(&self) -> Duration {
        match self.shape.patience {
            0 => USUAL_PATIENCE,
            milliseconds => Duration::from_millis(milliseconds.into()),
        }
    }

    /// Gives the block that is being filled to the program if its time is over, at `time` since the
    /// epoch. Returns whether the program has something new to read.
    pub fn close_due(&self, time: Duration) -> bool {
        self.close_block(time, Some(time::since_boot()))
    }

    /// Gives the block that is being filled to the program, if it has packets; with `now`, the time
    /// since boot, only if its time is over. One that is being written is given by its last writer.
    /// Returns whether the program has it.
    fn close_block(&self, time: Duration, now: Option<Duration>) -> bool {
        let closes = {
            let mut state = self.state.lock();
            let is_over = now.is_none_or(|now| now >= state.due);
            let begins = state.packets > 0 && !state.closes && is_over;
            if begins {
                state.closes = true;
                state.has_timed_out = now.is_some();
            }
            begins && state.writers == 0
        };
        if closes {
            self.hand_over(time);
        }
        closes
    }

    fn hand_over(&self, time: Duration) {
        let (number, packets, filled, last, sequence, first_at, has_timed_out) = {
            let state = self.state.lock();
            let State {
                next,
                packets,
                filled,
                last,
                sequence,
                first_at,
                has_timed_out,
                ..
            } = *state;
            (
                next,
                packets,
                filled,
                last,
                sequence,
                first_at,
                has_timed_out,
            )
        };
        let block = number * self.shape.block_size;
        let first = self.shape.first();
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
        let timed_out = if has_timed_out { TIMED_OUT } else { 0 };
        self.write_word(block + 8, USER | timed_out);
        let mut state = self.state.lock();
        *state = State {
            next: (number + 1) % self.shape.blocks,
            sequence: sequence + 1,
            ..State::default()
        };
    }

    /// Tells whether the program has something to read: a block that is being filled is not its.
    pub fn is_readable(&self) -> bool {
        let last = |next: usize, count: usize| (next + count - 1) % count;
        if self.shape.version == 2 {
            let next = self.state.lock().next;
            let slot = self.slot(last(next, self.shape.slots));
            return self.read_word(slot) != KERNEL;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use nucleus::sim::Random;

    /// Shapes with every number near an edge: a block of one that passes the check has room for
    /// the heads of a packet.
    #[test]
    fn a_ring_that_can_be_has_room_for_packets() {
        let mut random = Random::new(3);
        let mut possible = [0; 2];
        for _ in 0..200_000 {
            let version = 2 + random.below(2) as u32;
            let block_size = PAGE_SIZE * (1 + random.below(2));
            let slot_size = [48, 96, 112, 1024, 4096][random.below(5)];
            let mut shape = Shape {
                version,
                block_size,
                blocks: 1 + random.below(3),
                slot_size,
                slots: 0,
                reserve: random.below(300),
                private: 0,
                patience: 0,
                has_link: random.below(2) == 0,
            };
            shape.slots = block_size / slot_size * shape.blocks;
            if version == 3 {
                let taken = BLOCK_HEAD + shape.network();
                shape.private = (block_size + 20).saturating_sub(taken + random.below(60));
            }
            if !shape.is_possible() {
                continue;
            }
            possible[version as usize - 2] += 1;
            match version {
                2 => assert!(shape.network() <= slot_size, "{shape:?}"),
                _ => {
                    assert!(shape.network() <= shape.room(), "{shape:?}");
                    assert!(shape.first() + shape.room() <= block_size, "{shape:?}");
                }
            }
        }
        assert!(possible.iter().all(|&n| n > 1000), "{possible:?}");
    }

    /// What is reserved before packets may be more than their heads can say.
    #[test]
    fn places_are_those_that_a_head_can_say() {
        let shape = |reserve| Shape {
            version: 2,
            block_size: 1 << 17,
            blocks: 1,
            slot_size: 1 << 17,
            slots: 1,
            reserve,
            private: 0,
            patience: 0,
            has_link: true,
        };
        assert_eq!(shape(65_000).places(14), Some((65_066, 65_080)));
        assert!(shape(65_500).is_possible());
        assert_eq!(shape(65_500).places(14), None);
    }

    #[test]
    fn lengths_that_overflow_make_no_ring() {
        for (block_size, blocks, private) in [
            (1 << 31, u32::MAX as usize, 0),
            (PAGE_SIZE, 0, 0),
            (0, 1, 0),
            (PAGE_SIZE, 1, u32::MAX as usize),
        ] {
            let shape = Shape {
                version: 3,
                block_size,
                blocks,
                slot_size: 1024,
                slots: block_size / 1024 * blocks,
                reserve: 0,
                private,
                patience: 0,
                has_link: true,
            };
            assert!(!shape.is_possible(), "{shape:?}");
        }
    }
}
