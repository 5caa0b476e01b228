//! Packets that a device hands over.
//!
//! A buffer is a frame, or several where packets are long: so a long packet takes one request. The
//! slices of a packet are the frames that it fills; the others stay with their request. A small
//! packet is copied into a frame that it shares with others, and all frames of its buffer stay.
//!
//! Frames are zeroed, so that a device that says to have written more than it has shows nothing of
//! others. Those that only this device has written to need not be: it could as well hand over the
//! same bytes again.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};

use fbuf::{Aggregate, Slice};
use net::packet::Packet;
use nucleus::{
    Frame, OutOfMemory, PAGE_SIZE,
    dma::Part,
    ephemeral,
    frame::Contents,
    virtio::{Error, Queue, Request},
};

use super::{Feature, header};

/// The most bytes of a packet that is copied: a whole frame would hold too little then.
const SMALL: usize = 256;
/// The frames that the longest packet fills, and the most buffers of a packet.
const LONGEST: usize = (header::LEN + header::MOST).div_ceil(PAGE_SIZE);
/// How many frames of packets are remembered, to be used again.
const GIVEN: usize = 64;
/// A packet's length counts for one part in so many of the usual length.
const WEIGHT: usize = 8;

/// The receiving half of a pair.
pub struct Receiver {
    queue: Arc<Queue>,
    features: Feature,
    /// First the requests for long packets, of [`LONGEST`] frames, then those of one.
    requests: Vec<Arc<Request>>,
    /// The frames of each request, as long as it has any.
    frames: Vec<Vec<Frame>>,
    /// The requests that the device does not have: for long packets, and the others.
    idle_long: Vec<u32>,
    idle: Vec<u32>,
    /// How many requests are for long packets.
    long: usize,
    /// The frames that the device may have, and has.
    most: usize,
    lent: usize,
    /// The usual length of packets.
    usual: usize,
    /// A packet of which buffers are missing.
    partial: Option<Partial>,
    /// The frame for small packets, and where the next one begins in it.
    small: Option<(Frame, usize)>,
    /// Frames of packets, which nobody else writes to: no frame with two handles is.
    given: VecDeque<Frame>,
}

struct Partial {
    header: [u8; header::LEN],
    data: Aggregate,
    /// Buffers to come.
    left: usize,
}

/// What was received.
pub enum Received {
    /// A packet.
    Packet(Packet),
    /// One for which there was no memory.
    Dropped,
    /// Nothing.
    Nothing,
}

impl Receiver {
    pub fn new(
        queue: &Arc<Queue>,
        features: Feature,
        count: usize,
    ) -> Result<Receiver, OutOfMemory> {
        let most = count.min(queue.slots());
        let long = match features.contains(Feature::MERGED_BUFFERS) {
            true => (most / LONGEST).min(queue.slots() - most),
            false => 0,
        };
        let count = most + long;
        queue.prepare(count)?;
        let mut requests = nucleus::try_vec(count)?;
        let mut frames = nucleus::try_vec(count)?;
        let mut idle_long = nucleus::try_vec(long)?;
        let mut idle = nucleus::try_vec(most)?;
        for number in 0..count {
            let is_long = number < long;
            let parts = if is_long { LONGEST } else { 1 };
            requests.push(Request::idle_numbered(parts, number as u32)?);
            frames.push(nucleus::try_vec(parts)?);
            match is_long {
                true => idle_long.push(number as u32),
                false => idle.push(number as u32),
            }
        }
        let mut given = VecDeque::new();
        given.try_reserve_exact(GIVEN).map_err(|_| OutOfMemory)?;
        Ok(Receiver {
            queue: queue.clone(),
            features,
            requests,
            frames,
            idle_long,
            idle,
            long,
            most,
            lent: 0,
            usual: 0,
            partial: None,
            small: None,
            given,
        })
    }

    /// Gives the device frames, if it has few, or `always`. Returns false if memory is missing for
    /// some.
    pub fn refill(&mut self, always: bool) -> bool {
        if !always && self.lent > self.most / 4 * 3 {
            return true;
        }
        while let Some(number) = self.next_idle() {
            let at = number as usize;
            let wanted = if at < self.long { LONGEST } else { 1 };
            while self.frames[at].len() < wanted {
                match self.frame() {
                    Some(frame) => self.frames[at].push(frame),
                    None => break,
                }
            }
            let count = self.frames[at].len();
            if count == 0 {
                self.put_back(number);
                return false;
            }
            let request = &self.requests[at];
            let parts = self.frames[at].iter().map(|it| Part::whole(it.clone()));
            request.renew(0, |list| list.extend(parts));
            if let Err(error) = self.queue.try_submit(request) {
                request.abandon();
                self.put_back(number);
                return error != Error::OutOfMemory;
            }
            self.lent += count;
            if count < wanted {
                return false;
            }
        }
        true
    }

    /// The next request to be given to the device: one for long packets, if packets are long.
    fn next_idle(&mut self) -> Option<u32> {
        let room = self.most - self.lent.min(self.most);
        if room >= LONGEST && self.usual > PAGE_SIZE && !self.idle_long.is_empty() {
            return self.idle_long.pop();
        }
        // Room for a long one is kept for it.
        match room > 0 && (self.usual <= PAGE_SIZE || self.idle_long.is_empty()) {
            true => self.idle.pop(),
            false => None,
        }
    }

    fn put_back(&mut self, number: u32) {
        match (number as usize) < self.long {
            true => self.idle_long.push(number),
            false => self.idle.push(number),
        }
    }

    /// A frame that shows nothing of others.
    fn frame(&mut self) -> Option<Frame> {
        if self.given.front().is_some_and(|it| it.handles() == 1) {
            return self.given.pop_front();
        }
        let frame = Frame::alloc(Contents::Zeroed).ok();
        if frame.is_none() {
            self.given.clear();
        }
        frame
    }

    /// Returns the next packet.
    ///
    /// # Errors
    /// What the device said that can't be.
    pub fn next(&mut self) -> Result<Received, &'static str> {
        loop {
            let Some(request) = self.queue.next_done() else {
                return Ok(Received::Nothing);
            };
            let Some(Ok(written)) = request.result() else {
                return Ok(Received::Nothing);
            };
            request.clear();
            let number = request.number();
            let count = self.frames[number as usize].len();
            self.lent -= count;
            self.put_back(number);
            let written = written as usize;
            if written > count * PAGE_SIZE {
                return Err("more bytes than a buffer has");
            }
            if let Some(received) = self.add(number as usize, written)? {
                return Ok(received);
            }
        }
    }

    /// Adds a buffer with `written` bytes; returns the packet if it was its last one.
    fn add(&mut self, at: usize, written: usize) -> Result<Option<Received>, &'static str> {
        let mut partial = match self.partial.take() {
            Some(mut partial) => {
                if written == 0 || partial.data.len() + written > header::MOST {
                    return Err("a packet of an impossible length");
                }
                partial.left -= 1;
                self.take(at, 0, written, &mut partial.data);
                partial
            }
            None => {
                if written <= header::LEN {
                    return Err("a packet without a header");
                }
                let frame = self.frames[at].first().ok_or("a buffer without a frame")?;
                let mut header = [0; header::LEN];
                ephemeral::map(frame).read(0, &mut header);
                let buffers = header::buffers(&header, self.features);
                if !(1..=LONGEST).contains(&buffers) {
                    return Err("a packet of an impossible number of buffers");
                }
                let len = written - header::LEN;
                if len > header::MOST {
                    return Err("a packet of an impossible length");
                }
                // Each buffer may end within a frame.
                let slices = match buffers {
                    1 => written.div_ceil(PAGE_SIZE),
                    _ => LONGEST + buffers,
                };
                let mut data = Aggregate::new();
                if data.reserve(slices).is_err() {
                    // The rest of it is taken for packets of its own, and is nonsense: as well.
                    return match buffers {
                        1 => Ok(Some(Received::Dropped)),
                        _ => Err("no memory for a packet of several buffers"),
                    };
                }
                let slice = match (buffers, len) {
                    (1, 0..=SMALL) => self.copy_small(at, len),
                    _ => None,
                };
                match slice {
                    Some(slice) => drop(data.append(slice)),
                    None => self.take(at, header::LEN, written, &mut data),
                }
                Partial {
                    header,
                    data,
                    left: buffers - 1,
                }
            }
        };
        if partial.left > 0 {
            self.partial = Some(partial);
            return Ok(None);
        }
        let len = partial.data.len();
        self.usual = (self.usual * (WEIGHT - 1) + len) / WEIGHT;
        let checksum = header::check(&partial.header, len, self.features)?;
        Ok(Some(Received::Packet(Packet {
            data: core::mem::take(&mut partial.data),
            checksum,
            ..Packet::default()
        })))
    }

    /// Moves the frames with a buffer's bytes from `from` to `end` to a packet, which has room.
    fn take(&mut self, at: usize, mut from: usize, end: usize, to: &mut Aggregate) {
        let mut left = end;
        for frame in self.frames[at].drain(..end.div_ceil(PAGE_SIZE)) {
            let here = left.min(PAGE_SIZE);
            let _ = to.append(Slice::part(&frame, from, here - from));
            left -= here;
            from = 0;
            if self.given.len() == GIVEN {
                self.given.pop_front();
            }
            self.given.push_back(frame);
        }
    }

    /// Copies a small packet into the frame for such ones; `None` without memory for that.
    fn copy_small(&mut self, at: usize, len: usize) -> Option<Slice> {
        let mut bytes = [0; SMALL];
        let bytes = &mut bytes[..len];
        ephemeral::map(self.frames[at].first()?).read(header::LEN, bytes);
        let (frame, at) = match self.small.take() {
            Some((frame, at)) if at + len <= PAGE_SIZE => (frame, at),
            _ => (Frame::alloc(Contents::Zeroed).ok()?, 0),
        };
        ephemeral::map(&frame).write(at, bytes);
        let slice = Slice::part(&frame, at, len);
        self.small = Some((frame, (at + len).next_multiple_of(16)));
        Some(slice)
    }
}
