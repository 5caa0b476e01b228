//! Packets that a device hands over.
//!
//! A buffer is a frame, or several where packets are long: so a long packet takes one request. The
//! slices of a packet are the frames and blocks that it fills; the others stay with their request.
//! A small packet is copied into a frame that it shares with others, and all frames of its buffer
//! stay.
//!
//! Where packets of IP may be longer than a page, a buffer of several frames begins with a place
//! for headers (header split): a payload that begins behind the usual headers fills whole pages,
//! which become those of a program. The place is as long as the headers of the last long packet
//! were. What is in it is copied to where small packets are. Segments that the device joins are no
//! such packets: header split cost a third more instructions in `receive-64KiB`, as frames that
//! become pages are zeroed anew.
//!
//! Frames may be pages of fbufs of the kernel, where a packet socket has such: all of a packet then
//! stays where it was written, and is shown by slices that become no page of others. Such frames go
//! back to their fbufs by themselves, once no slice and no receiver has them.
//!
//! Other frames are used again after their packets ([`Supply`]), but not whole pages: they may
//! become a program's, and with a further owner each write there, that of the next read, too,
//! would copy the page first.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::ptr;

use fbuf::{Aggregate, Slice, region::Pool};
use net::packet::Checksum;
use nucleus::{
    Frame, PAGE_SIZE,
    dma::{Buffer, Part},
    ephemeral,
    frame::Contents,
    virtio::{Device, Error, Queue, Request},
};

use super::{
    Feature,
    card::Above,
    header::{self, LONGEST},
    supply::Supply,
};
use crate::counters::Counter;

/// The most bytes of a packet that is copied: a whole frame would hold too little then.
const SMALL: usize = 256;
/// The least number of requests for long packets.
const LEAST_LONG: usize = 4;
/// Bytes for a place for headers, and those of the usual ones: of IPv4, and of TCP with timestamps.
const PLACE: usize = 256;
const USUAL_HEADERS: usize = header::LEN + header::ETHERNET + 20 + 32;
/// Requests that are taken from the queue at once.
const TAKEN: usize = 16;
/// A packet's length counts for one part in so many of the usual length.
const WEIGHT: usize = 8;

/// The receiving half of a pair.
pub struct Receiver {
    queue: Arc<Queue>,
    features: Feature,
    /// First the requests for long packets, of [`LONGEST`] pages, then those of one.
    requests: Vec<Arc<Request>>,
    /// The buffer of each request.
    buffers: Vec<Held>,
    /// Places for headers, of the requests for long packets.
    places: Vec<Buffer>,
    /// Bytes of the headers of the last long packet, with the device's before them.
    headers: usize,
    /// Requests that the device has done: so many of them, of which those from `done_next` on were
    /// not looked at.
    done: [u32; TAKEN],
    done_count: usize,
    done_next: usize,
    /// The requests that the device does not have: for long packets, and the others.
    idle_long: Vec<u32>,
    idle: Vec<u32>,
    /// How many requests are for long packets.
    long: usize,
    /// The pages that the device may have, and has.
    most: usize,
    lent: usize,
    /// The usual length of packets.
    usual: usize,
    /// Packets of IP may be longer than a page.
    has_long_mtu: bool,
    /// A packet of which buffers are missing.
    partial: Option<Partial>,
    /// Buffers to come of a packet for which there was no memory.
    skipped: usize,
    /// The frame for small packets, and where the next one begins in it.
    small: Option<(Frame, usize)>,
    supply: Supply,
}

/// A buffer that the device has, or is to get.
struct Held {
    /// The last one first.
    frames: Vec<Frame>,
    /// The frames are pages of fbufs, which receivers read, and are not used otherwise.
    is_pools: bool,
    /// Those of this pool.
    pool: Weak<Pool>,
    /// Pages of them.
    pages: usize,
    /// Bytes for headers before them.
    headers: usize,
}

struct Partial {
    header: [u8; header::LEN],
    data: Aggregate,
    /// Buffers to come.
    left: usize,
}

impl Held {
    /// Fills it with pages of a pool, as many as that has; false if there is none.
    fn fill_from(&mut self, pool: Option<&Arc<Pool>>, wanted: usize) -> bool {
        // Another pool's readers may read none of the packets to come.
        let is_its = pool.is_some_and(|pool| ptr::eq(self.pool.as_ptr(), Arc::as_ptr(pool)));
        if !is_its || !self.is_pools {
            let Some((pool, first)) = pool.and_then(|pool| Some((pool, pool.take()?))) else {
                if self.is_pools {
                    self.frames.clear();
                    self.pages = 0;
                    self.is_pools = false;
                }
                return false;
            };
            self.frames.clear();
            self.frames.push(first);
            self.is_pools = true;
            self.pool = Arc::downgrade(pool);
        }
        while self.frames.len() < wanted
            && let Some(frame) = pool.and_then(|pool| pool.take())
        {
            self.frames.push(frame);
        }
        self.pages = self.frames.len();
        self.is_pools = self.pages > 0;
        self.is_pools
    }
}

/// What was received.
pub enum Received {
    /// A packet, and what the device says of its checksum.
    Packet(Aggregate, Checksum),
    /// One for which there was no memory.
    Dropped,
    /// Nothing.
    Nothing,
}

impl Receiver {
    /// Makes the half with buffers of `count` frames, for packets of IP of up to `mtu` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(
        device: &Device,
        queue: &Arc<Queue>,
        features: Feature,
        mtu: u16,
        count: usize,
    ) -> Result<Receiver, Error> {
        let can_be_long = features.contains(Feature::MERGED_BUFFERS) && queue.max_parts() > LONGEST;
        let long = match can_be_long {
            true => (count / LONGEST).max(LEAST_LONG),
            false => 0,
        };
        let packets = count / 2;
        let short = count.min(queue.slots() - long);
        let count = long + short;
        queue.prepare(count)?;
        let mut requests = nucleus::try_vec(count)?;
        let mut buffers = nucleus::try_vec(count)?;
        let mut idle_long = nucleus::try_vec(long)?;
        let mut idle = nucleus::try_vec(short)?;
        for number in 0..count {
            let is_long = number < long;
            let (frames, parts) = if is_long {
                (LONGEST, LONGEST + 1)
            } else {
                (1, 1)
            };
            requests.push(Request::idle_numbered(parts, number as u32)?);
            buffers.push(Held {
                frames: nucleus::try_vec(frames)?,
                is_pools: false,
                pool: Weak::new(),
                pages: 0,
                headers: 0,
            });
            match is_long {
                true => idle_long.push(number as u32),
                false => idle.push(number as u32),
            }
        }
        let has_long_mtu = usize::from(mtu) > PAGE_SIZE;
        let pages = match has_long_mtu {
            true => (long * PLACE).div_ceil(PAGE_SIZE),
            false => 0,
        };
        let pool = device.pool(pages)?;
        let mut places = nucleus::try_vec(pages)?;
        for _ in 0..pages {
            let page = pool.take()?;
            page.fill(0, PAGE_SIZE, 0);
            places.push(page);
        }
        Ok(Receiver {
            queue: queue.clone(),
            features,
            requests,
            buffers,
            places,
            headers: USUAL_HEADERS,
            done: [0; TAKEN],
            done_count: 0,
            done_next: 0,
            idle_long,
            idle,
            long,
            most: short.max(long * LONGEST),
            lent: 0,
            usual: mtu.into(),
            has_long_mtu,
            partial: None,
            skipped: 0,
            small: None,
            supply: Supply::new(packets, has_long_mtu)?,
        })
    }

    /// Gives the device frames if it has three quarters of them or fewer, or `always`. Returns
    /// false if memory is missing for some.
    pub fn refill(&mut self, always: bool, above: &dyn Above) -> bool {
        if !always && self.lent > self.most / 4 * 3 {
            return true;
        }
        let pool = above.pool();
        while let Some(number) = self.next_idle() {
            let at = number as usize;
            let wanted = if at < self.long { LONGEST } else { 1 };
            // Usually a small packet was copied out and every frame has stayed: the request is
            // given again as it is.
            let buffer = &self.buffers[at];
            let has_place = at < self.long && self.has_long_mtu;
            let has_stayed =
                buffer.pages == wanted && !has_place && pool.is_none() && !buffer.is_pools;
            let is_ready = has_stayed && self.requests[at].again();
            if !is_ready && !self.fill(at, wanted, pool.as_ref()) {
                self.put_back(number);
                return false;
            }
            let count = self.buffers[at].pages;
            let request = &self.requests[at];
            if let Err(error) = self.queue.try_submit(request) {
                request.abandon();
                self.put_back(number);
                return error != Error::OutOfMemory;
            }
            self.lent += count;
            if count < wanted && !self.buffers[at].is_pools {
                return false;
            }
        }
        true
    }

    /// Makes the request `at` ready with `wanted` pages, or fewer where memory is missing; returns
    /// false without any.
    fn fill(&mut self, at: usize, wanted: usize, pool: Option<&Arc<Pool>>) -> bool {
        let buffer = &mut self.buffers[at];
        let (missing, was_pools) = (wanted - buffer.pages, buffer.is_pools);
        let old_pool = buffer.pool.as_ptr();
        if !buffer.fill_from(pool, wanted) {
            let missing = wanted - buffer.pages;
            buffer.pages += self.supply.fill(&mut buffer.frames, missing);
        }
        let has_stayed =
            missing == 0 && buffer.is_pools == was_pools && ptr::eq(buffer.pool.as_ptr(), old_pool);
        if buffer.pages == 0 {
            return false;
        }
        // The parts of a packet in fbufs are all in them.
        let has_place = at < self.long && self.has_long_mtu && !buffer.is_pools;
        let place = match has_place {
            true => Some(self.places[at * PLACE / PAGE_SIZE].part(offset_of(at), self.headers)),
            false => None,
        };
        buffer.headers = place.as_ref().map_or(0, |_| self.headers);
        let request = &self.requests[at];
        // One whose frames have stayed still has its parts.
        if !has_stayed || place.is_some() || !request.again() {
            request.renew(0, |parts| {
                parts.extend(place);
                parts.extend(buffer.frames.iter().rev().map(|it| Part::all(it.clone())));
            });
        }
        true
    }

    /// The next request to be given to the device: one for long packets, if packets are long.
    fn next_idle(&mut self) -> Option<u32> {
        let room = self.most - self.lent.min(self.most);
        match self.long > 0 && self.usual > PAGE_SIZE {
            true if room >= LONGEST => self.idle_long.pop(),
            false if room > 0 => self.idle.pop(),
            // Room for a long one is kept for it: in others no payload fills pages.
            _ => None,
        }
    }

    fn put_back(&mut self, number: u32) {
        match (number as usize) < self.long {
            true => self.idle_long.push(number),
            false => self.idle.push(number),
        }
    }

    /// Returns the number of the next request that the device has done.
    fn next_done(&mut self) -> Option<u32> {
        if self.done_next == self.done_count {
            self.done_next = 0;
            self.done_count = self.queue.take_done(&mut self.done);
        }
        let number = *self.done[..self.done_count].get(self.done_next)?;
        self.done_next += 1;
        Some(number)
    }

    /// Returns the next packet.
    ///
    /// # Errors
    /// What the device said that can't be.
    pub fn next(&mut self) -> Result<Received, &'static str> {
        loop {
            let Some(number) = self.next_done() else {
                return Ok(Received::Nothing);
            };
            let Some(Ok(written)) = self.requests[number as usize].result() else {
                return Ok(Received::Nothing);
            };
            let buffer = &self.buffers[number as usize];
            if buffer.pages == 0 {
                return Err("a buffer that it did not have");
            }
            let room = buffer.headers + buffer.pages * PAGE_SIZE;
            self.lent -= buffer.pages;
            self.put_back(number);
            let written = written as usize;
            if written > room {
                return Err("more bytes than a buffer has");
            }
            if let Some(received) = self.add(number as usize, written)? {
                return Ok(received);
            }
        }
    }

    /// Adds a buffer with `written` bytes; returns the packet if it was its last one.
    fn add(&mut self, at: usize, written: usize) -> Result<Option<Received>, &'static str> {
        if self.skipped > 0 {
            self.skipped -= 1;
            return Ok(None);
        }
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
                if !(1..=LONGEST).contains(&buffers) {
                    return Err("a packet of an impossible number of buffers");
                }
                if written - header::LEN > header::MOST {
                    return Err("a packet of an impossible length");
                }
                // Each buffer may begin with headers, and end within a frame.
                let frames = self.buffers[at].frames.len();
                let slices = match buffers {
                    1 => 1 + written.div_ceil(PAGE_SIZE).min(frames),
                    _ => LONGEST + 2 * buffers,
                };
                let mut data = Aggregate::new();
                if data.reserve(slices).is_err() {
                    self.skipped = buffers - 1;
                    return Ok(Some(Received::Dropped));
                }
                Partial {
                    header,
                    data,
                    left: buffers - 1,
                }
            }
        };
        let is_first = partial.data.is_empty();
        let buffers = if is_first { 1 + partial.left } else { LONGEST };
        let from = if is_first { header::LEN } else { 0 };
        let headers = self.buffers[at].headers;
        let is_pools = self.buffers[at].is_pools;
        let is_small = buffers == 1 && written - from <= SMALL && !is_pools;
        if is_first && self.has_long_mtu && (buffers > 1 || written > PAGE_SIZE) {
            self.note_headers(at, written);
        }
        let mut copied = if is_small {
            written
        } else {
            written.min(headers)
        };
        if copied > from {
            match self.copy_small(at, from, copied - from) {
                // There is room for all.
                Some(slice) => drop(partial.data.append(slice)),
                // All of it is in a frame.
                None if headers == 0 => copied = 0,
                None => {
                    self.skipped = partial.left;
                    return Ok(Some(Received::Dropped));
                }
            }
        }
        if copied < written {
            self.take(at, from.max(copied), written, &mut partial.data);
        }
        if partial.left > 0 {
            self.partial = Some(partial);
            return Ok(None);
        }
        let len = partial.data.len();
        // Small packets leave all frames with their buffer: acknowledgements are no reason to give
        // the device buffers in which the next long packet fills no pages.
        if len > SMALL || !self.has_long_mtu {
            self.usual = (self.usual * (WEIGHT - 1) + len) / WEIGHT;
        }
        let checksum = header::check(&partial.header, len, self.features)?;
        Ok(Some(Received::Packet(partial.data, checksum)))
    }

    /// Moves the frames with a buffer's bytes from `from` to `end` to a packet, which has room. No
    /// such byte is in the place for headers.
    fn take(&mut self, at: usize, from: usize, end: usize, to: &mut Aggregate) {
        // Frames that come back have no other handle.
        self.requests[at].clear();
        let buffer = &mut self.buffers[at];
        let mut keeping = self.supply.keeping();
        let (mut start, mut left) = (from - buffer.headers, end - from);
        Counter::card_received_passed.add(left as u64);
        while left > 0
            && let Some(frame) = buffer.frames.pop()
        {
            let size = frame.size();
            buffer.pages -= size / PAGE_SIZE;
            let here = left.min(size - start);
            left -= here;
            if here == PAGE_SIZE && self.has_long_mtu && !buffer.is_pools {
                let _ = to.append(Slice::whole(frame));
                continue;
            }
            let _ = to.append(Slice::part(&frame, start, here));
            start = 0;
            if !buffer.is_pools {
                keeping.keep(frame);
            }
        }
    }

    /// Notes how long the headers of the packet that begins in a buffer with `written` bytes are:
    /// its payload would begin with a page behind a place of that length.
    fn note_headers(&mut self, at: usize, written: usize) {
        let mut bytes = [0; PLACE];
        let bytes = &mut bytes[..written.min(PLACE)];
        self.read(at, 0, bytes);
        let packet = bytes.get(header::LEN..).unwrap_or(&[]);
        if let Some(headers) = header::before_payload(packet) {
            self.headers = (header::LEN + headers).min(PLACE);
        }
    }

    /// Copies bytes of a buffer from byte `from` on; they are there, and few: those that are not
    /// in the place for headers are in the first frame.
    fn read(&self, at: usize, from: usize, to: &mut [u8]) {
        let buffer = &self.buffers[at];
        if let (0, Some(first)) = (buffer.headers, buffer.frames.last()) {
            ephemeral::map(first).read(from, to);
            return;
        }
        let (before, behind) = to.split_at_mut(buffer.headers.saturating_sub(from).min(to.len()));
        if !before.is_empty() {
            self.places[at * PLACE / PAGE_SIZE].read(offset_of(at) + from, before);
        }
        if !behind.is_empty()
            && let Some(first) = buffer.frames.last()
        {
            let from = from + before.len() - buffer.headers;
            ephemeral::map(first).read(from, behind);
        }
    }

    /// Copies a few bytes of a buffer into the frame for such ones; `None` without memory for that.
    fn copy_small(&mut self, at: usize, from: usize, len: usize) -> Option<Slice> {
        let (frame, start) = match self.small.take() {
            Some((frame, start)) if start + len <= PAGE_SIZE => (frame, start),
            // What is not written is not shown.
            _ => (Frame::alloc(Contents::Stale).ok()?, 0),
        };
        let buffer = &self.buffers[at];
        match buffer.frames.last() {
            Some(first) if buffer.headers == 0 => {
                ephemeral::copy(&frame, start, first, from, len);
            }
            _ => {
                let mut bytes = [0; SMALL];
                self.read(at, from, &mut bytes[..len]);
                ephemeral::map(&frame).write(start, &bytes[..len]);
            }
        }
        Counter::card_received_copied.add(len as u64);
        let slice = Slice::part(&frame, start, len);
        self.small = Some((frame, (start + len).next_multiple_of(16)));
        Some(slice)
    }
}

/// Where the place for headers of a request is in its page.
fn offset_of(at: usize) -> usize {
    at * PLACE % PAGE_SIZE
}
