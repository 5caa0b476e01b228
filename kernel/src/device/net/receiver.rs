//! Packets that a device hands over.
//!
//! Each buffer is a frame of its own. The slices of a packet are the frames that it fills; a small
//! packet is copied into a frame that it shares with others, and its own goes back to the device.

use alloc::{sync::Arc, vec::Vec};

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
/// The most buffers of a packet.
const MOST_BUFFERS: usize = (header::LEN + header::MOST).div_ceil(PAGE_SIZE);

/// The receiving half of a pair.
pub struct Receiver {
    queue: Arc<Queue>,
    features: Feature,
    requests: Vec<Arc<Request>>,
    /// The frame of each request, as long as it has one.
    frames: Vec<Option<Frame>>,
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
    pub fn new(
        queue: &Arc<Queue>,
        features: Feature,
        count: usize,
    ) -> Result<Receiver, OutOfMemory> {
        let count = count.min(queue.slots());
        queue.prepare(count)?;
        let mut requests = nucleus::try_vec(count)?;
        let mut frames = nucleus::try_vec(count)?;
        let mut idle = nucleus::try_vec(count)?;
        for number in 0..count as u32 {
            requests.push(Request::idle_numbered(1, number)?);
            frames.push(None);
            idle.push(number);
        }
        Ok(Receiver {
            queue: queue.clone(),
            features,
            requests,
            frames,
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
            // Zeroed: a device that says to have written more than it has shows nothing of others.
            let frame = match self.frames[at].take() {
                Some(frame) => frame,
                None => match Frame::alloc(Contents::Zeroed) {
                    Ok(frame) => frame,
                    Err(_) => {
                        self.idle.push(number);
                        return false;
                    }
                },
            };
            let request = &self.requests[at];
            request.renew(0, |parts| parts.push(Part::whole(frame.clone())));
            self.frames[at] = Some(frame);
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
            let frame = self.frames[number as usize].take();
            let frame = frame.ok_or("a buffer that it did not have")?;
            self.idle.push(number);
            let written = written as usize;
            if written > PAGE_SIZE {
                return Err("more bytes than a buffer has");
            }
            if let Some(received) = self.add(frame, written, number)? {
                return Ok(received);
            }
        }
    }

    /// Adds a buffer with `written` bytes; returns the packet if it was its last one.
    fn add(
        &mut self,
        frame: Frame,
        written: usize,
        number: u32,
    ) -> Result<Option<Received>, &'static str> {
        let mut partial = match self.partial.take() {
            Some(mut partial) => {
                if written == 0 || partial.data.len() + written > header::MOST {
                    return Err("a packet of an impossible length");
                }
                partial.left -= 1;
                // There is room for all.
                let _ = partial.data.append(Slice::part(&frame, 0, written));
                partial
            }
            None => {
                if written <= header::LEN {
                    return Err("a packet without a header");
                }
                let mut header = [0; header::LEN];
                ephemeral::map(&frame).read(0, &mut header);
                let buffers = header::buffers(&header, self.features);
                if !(1..=MOST_BUFFERS).contains(&buffers) {
                    return Err("a packet of an impossible number of buffers");
                }
                let len = written - header::LEN;
                let mut data = Aggregate::new();
                if data.reserve(buffers).is_err() {
                    // The rest of it is taken for packets of its own, and is nonsense: as well.
                    return match buffers {
                        1 => Ok(Some(Received::Dropped)),
                        _ => Err("no memory for a packet of several buffers"),
                    };
                }
                let slice = match (buffers, len) {
                    (1, 0..=SMALL) => self.copy_small(&frame, len),
                    _ => None,
                };
                match slice {
                    Some(slice) => {
                        self.frames[number as usize] = Some(frame);
                        let _ = data.append(slice);
                    }
                    None => {
                        let _ = data.append(Slice::part(&frame, header::LEN, len));
                    }
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
        let checksum = header::check(&partial.header, partial.data.len(), self.features)?;
        Ok(Some(Received::Packet(Packet {
            data: core::mem::take(&mut partial.data),
            checksum,
            ..Packet::default()
        })))
    }

    /// Copies a small packet into the frame for such ones; `None` without memory for that.
    fn copy_small(&mut self, from: &Frame, len: usize) -> Option<Slice> {
        let mut bytes = [0; SMALL];
        let bytes = &mut bytes[..len];
        ephemeral::map(from).read(header::LEN, bytes);
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
