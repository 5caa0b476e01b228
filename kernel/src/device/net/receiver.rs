//! Packets that a device hands over.
//!
//! Each buffer is a frame of its own. The slices of a packet are the frames that it fills; a small
//! packet is copied into a frame that it shares with others, and its own goes back to the device.
//!
//! Where packets are larger than a page, a buffer is a place for headers and as many frames as a
//! packet needs (header split): a payload that begins behind the usual headers fills whole pages,
//! which become those of a program. The place is as long as the headers of the last large packet
//! were. What is in it is copied to where small packets are.

use alloc::{sync::Arc, vec::Vec};

use fbuf::{Aggregate, Slice};
use net::packet::Packet;
use nucleus::{
    Frame, PAGE_SIZE,
    dma::{Buffer, Part},
    ephemeral,
    frame::Contents,
    virtio::{Device, Error, Queue, Request},
};

use super::{Feature, header};
use crate::counters::Counter;

/// The most bytes of a packet that is copied: a whole frame would hold too little then.
const SMALL: usize = 256;
/// The most buffers of a packet.
const MOST_BUFFERS: usize = (header::LEN + header::MOST).div_ceil(PAGE_SIZE);
/// Bytes of a place for headers, and of the usual ones: those of IPv4, and of TCP with timestamps.
const PLACE: usize = 256;
const USUAL_HEADERS: usize = header::ETHERNET + 20 + 32;

/// What a buffer of the device is made of.
#[derive(Clone, Copy)]
pub struct Layout {
    /// Its frames.
    frames: usize,
    /// There is a place for headers before them.
    splits: bool,
}

impl Layout {
    /// Returns the layout for packets of IP of up to `mtu` bytes.
    pub fn of(mtu: u16, features: Feature) -> Layout {
        let splits = usize::from(mtu) > PAGE_SIZE && features.contains(Feature::MERGED_BUFFERS);
        Layout {
            // The shortest headers leave the longest payload.
            frames: match splits {
                true => (usize::from(mtu) - 40).div_ceil(PAGE_SIZE),
                false => 1,
            },
            splits,
        }
    }

    /// Returns how many buffers have as many frames as `buffers` of one frame.
    pub fn buffers(&self, buffers: usize) -> usize {
        buffers.div_ceil(self.frames)
    }
}

/// A buffer that the device has, or is to get.
struct Place {
    frames: Vec<Frame>,
    /// Bytes for headers before them.
    headers: usize,
}

/// The receiving half of a pair.
pub struct Receiver {
    queue: Arc<Queue>,
    features: Feature,
    layout: Layout,
    requests: Vec<Arc<Request>>,
    /// The buffer of each request.
    places: Vec<Place>,
    /// Room for headers, if they are split off.
    heads: Vec<Buffer>,
    /// Bytes of the headers of the last large packet, with the device's before them.
    headers: usize,
    /// The requests that the device does not have.
    idle: Vec<u32>,
    /// A packet of which buffers are missing.
    partial: Option<Partial>,
    /// The frame for small packets, and where the next one begins in it.
    small: Option<(Frame, usize)>,
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
    /// Makes the half with `count` buffers at most.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(
        device: &Device,
        queue: &Arc<Queue>,
        features: Feature,
        layout: Layout,
        count: usize,
    ) -> Result<Receiver, Error> {
        let count = count.min(queue.slots());
        queue.prepare(count)?;
        let mut requests = nucleus::try_vec(count)?;
        let mut places = nucleus::try_vec(count)?;
        let mut idle = nucleus::try_vec(count)?;
        for number in 0..count as u32 {
            requests.push(Request::idle_numbered(1 + layout.frames, number)?);
            places.push(Place {
                frames: nucleus::try_vec(layout.frames)?,
                headers: 0,
            });
            idle.push(number);
        }
        let pages = match layout.splits {
            true => (count * PLACE).div_ceil(PAGE_SIZE),
            false => 0,
        };
        let pool = device.pool(pages)?;
        let mut heads = nucleus::try_vec(pages)?;
        for _ in 0..pages {
            heads.push(pool.take()?);
        }
        Ok(Receiver {
            queue: queue.clone(),
            features,
            layout,
            requests,
            places,
            heads,
            headers: header::LEN + USUAL_HEADERS,
            idle,
            partial: None,
            small: None,
        })
    }

    /// Gives the device frames, if it has few, or `always`. Returns false if memory is missing for
    /// some.
    pub fn refill(&mut self, always: bool) -> bool {
        if !always && self.idle.len() < self.requests.len() / 4 {
            return true;
        }
        while let Some(number) = self.idle.pop() {
            let at = number as usize;
            let place = &mut self.places[at];
            while place.frames.len() < self.layout.frames {
                // Zeroed: a device that says to have written more than it has shows nothing of
                // others.
                let Ok(frame) = Frame::alloc(Contents::Zeroed) else {
                    self.idle.push(number);
                    return false;
                };
                place.frames.push(frame);
            }
            let head = self.heads.get(at * PLACE / PAGE_SIZE);
            let head = head.map(|page| page.part(at * PLACE % PAGE_SIZE, self.headers));
            place.headers = head.as_ref().map_or(0, |_| self.headers);
            let request = &self.requests[at];
            request.renew(0, |parts| {
                parts.extend(head);
                parts.extend(place.frames.iter().map(|frame| Part::whole(frame.clone())));
            });
            if let Err(error) = self.queue.try_submit(request) {
                request.abandon();
                self.idle.push(number);
                return error != Error::OutOfMemory;
            }
        }
        true
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
            let place = &self.places[number as usize];
            if place.frames.len() < self.layout.frames {
                return Err("a buffer that it did not have");
            }
            self.idle.push(number);
            let written = written as usize;
            if written > place.headers + place.frames.len() * PAGE_SIZE {
                return Err("more bytes than a buffer has");
            }
            if let Some(received) = self.add(written, number as usize)? {
                return Ok(received);
            }
        }
    }

    /// Adds buffer `at` with `written` bytes; returns the packet if it was its last one.
    fn add(&mut self, written: usize, at: usize) -> Result<Option<Received>, &'static str> {
        let mut partial = match self.partial.take() {
            Some(mut partial) => {
                if written == 0 || partial.data.len() + written > header::MOST {
                    return Err("a packet of an impossible length");
                }
                partial.left -= 1;
                partial
            }
            None => {
                if written <= header::LEN {
                    return Err("a packet without a header");
                }
                let mut header = [0; header::LEN];
                self.read(at, 0, &mut header);
                let buffers = header::buffers(&header, self.features);
                if !(1..=MOST_BUFFERS).contains(&buffers) {
                    return Err("a packet of an impossible number of buffers");
                }
                let mut data = Aggregate::new();
                if data.reserve(buffers * (1 + self.layout.frames)).is_err() {
                    // The rest of it is taken for packets of its own, and is nonsense: as well.
                    return match buffers {
                        1 => Ok(Some(Received::Dropped)),
                        _ => Err("no memory for a packet of several buffers"),
                    };
                }
                Partial {
                    header,
                    data,
                    left: buffers - 1,
                }
            }
        };
        let is_first = partial.data.is_empty();
        let from = if is_first { header::LEN } else { 0 };
        let is_small = is_first && partial.left == 0 && written - from <= SMALL;
        let copied = match is_small {
            true => written,
            false => written.min(self.places[at].headers),
        };
        if is_first && copied < written && self.layout.splits {
            self.note_headers(at, written);
        }
        if copied > from {
            match self.copy_small(at, from, copied - from) {
                // There is room for all.
                Some(slice) => {
                    let _ = partial.data.append(slice);
                }
                None if is_small && !self.layout.splits => {
                    self.take_frames(at, from, written, &mut partial.data);
                }
                None => {
                    return match (is_first, partial.left) {
                        (true, 0) => Ok(Some(Received::Dropped)),
                        _ => Err("no memory for a packet of several buffers"),
                    };
                }
            }
        }
        if copied < written {
            self.take_frames(at, from.max(copied), written, &mut partial.data);
        }
        if partial.left > 0 {
            self.partial = Some(partial);
            return Ok(None);
        }
        let checksum = header::check(&partial.header, partial.data.len(), self.features)?;
        Ok(Some(Received::Packet(Packet {
            data: core::mem::take(&mut partial.data),
            checksum,
            ..Packet::default()
        })))
    }

    /// Takes bytes `from..to` of buffer `at`, which begin in or before its frames, with the frames
    /// that have them.
    fn take_frames(&mut self, at: usize, from: usize, to: usize, data: &mut Aggregate) {
        let place = &mut self.places[at];
        let (mut start, mut left) = (from - place.headers, to - from);
        let count = (start + left).div_ceil(PAGE_SIZE);
        Counter::card_received_passed.add(left as u64);
        for frame in place.frames.drain(..count) {
            let n = left.min(PAGE_SIZE - start);
            let slice = match (start, n) {
                (0, PAGE_SIZE) => Slice::whole(frame),
                _ => Slice::part(&frame, start, n),
            };
            // There is room for all.
            let _ = data.append(slice);
            (start, left) = (0, left - n);
        }
    }

    /// Notes how long the headers of the packet in buffer `at`, with `written` bytes, are: its
    /// payload would have begun with a page if the place for them had been so long.
    fn note_headers(&mut self, at: usize, written: usize) {
        let mut bytes = [0; PLACE];
        let len = written.min(PLACE);
        self.read(at, 0, &mut bytes[..len]);
        if let Some(headers) = header::before_payload(&bytes[header::LEN..len]) {
            self.headers = (header::LEN + headers).min(PLACE);
        }
    }

    /// Copies bytes of buffer `at` from byte `from` on; they are there.
    fn read(&self, at: usize, from: usize, to: &mut [u8]) {
        let place = &self.places[at];
        let in_head = place.headers.saturating_sub(from).min(to.len());
        if in_head > 0 {
            let page = &self.heads[at * PLACE / PAGE_SIZE];
            page.read(at * PLACE % PAGE_SIZE + from, &mut to[..in_head]);
        }
        if in_head < to.len() {
            // Few bytes are read, of one frame.
            let offset = from + in_head - place.headers;
            ephemeral::map(&place.frames[0]).read(offset, &mut to[in_head..]);
        }
    }

    /// Copies a few bytes of buffer `at` into the frame for such ones; `None` without memory for
    /// that.
    fn copy_small(&mut self, at: usize, from: usize, len: usize) -> Option<Slice> {
        let mut bytes = [0; SMALL];
        let bytes = &mut bytes[..len];
        self.read(at, from, bytes);
        let (frame, start) = match self.small.take() {
            Some((frame, start)) if start + len <= PAGE_SIZE => (frame, start),
            _ => (Frame::alloc(Contents::Zeroed).ok()?, 0),
        };
        ephemeral::map(&frame).write(start, bytes);
        Counter::card_received_copied.add(len as u64);
        let slice = Slice::part(&frame, start, len);
        self.small = Some((frame, (start + len).next_multiple_of(16)));
        Some(slice)
    }
}
