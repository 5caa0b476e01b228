//! The sender's side of a stream: filling frames and linking slices.

use abi::{Errno, Result};
use fbuf::{Slice, Source};
use nucleus::{Frame, PAGE_SIZE, counters::Counter, frame::Contents};

use super::{Stream, Tail, Urgent};

/// Frames that are filled before they are linked together: the reader is told once of all of them.
const BATCH: usize = 8;

/// What became of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// So many bytes went in, perhaps fewer than there were, perhaps none.
    Bytes(usize),
    /// The receiver has closed its socket and will answer with a reset.
    Abandoned,
    /// The stream has ended or was reset.
    Ended,
}

/// A step's slices, in order.
type Slices = [Option<Slice>; BATCH];

impl Stream {
    /// Adds what fits of the source's bytes. Wakes the reader.
    ///
    /// # Errors
    /// That of the source, or `ENOMEM`, if nothing was added.
    pub fn write(&self, from: &mut dyn Source) -> Result<Written> {
        let mut tail = self.writing.lock();
        let mut total = 0;
        let mut wake = false;
        let result = loop {
            if from.left() == 0 {
                break Ok(());
            }
            match self.step(&mut tail, from, &mut wake) {
                Ok(Written::Bytes(0)) => break Ok(()),
                Ok(Written::Bytes(n)) => {
                    total += n;
                    if wake && from.left() > 0 {
                        self.receiver.readable.wake_beside();
                    }
                }
                Ok(_) if total > 0 => break Ok(()),
                Ok(ended) => return Ok(ended),
                Err(error) => break Err(error),
            }
        };
        drop(tail);
        if total > 0 {
            Counter::loopback_packets.add(1);
            Counter::loopback_packets_v6.add(self.is_v6.into());
            Counter::tcp_segments.add(1);
            Counter::loopback_bytes.add(total as u64);
        }
        if wake {
            self.receiver.readable.wake_all();
        }
        fbuf::moved(total, result).map(Written::Bytes)
    }

    /// Adds one byte as urgent data: it is read apart, or in its place where the receiver wants it so (`in_line`).
    ///
    /// # Errors
    /// `ENOMEM`; `EAGAIN` when it must be in line and there is no room.
    pub fn write_urgent(&self, byte: u8, in_line: bool) -> Result<Written> {
        if in_line {
            let place = self.chain.lock().added;
            match self.write(&mut fbuf::BytesSource::new(&[byte]))? {
                Written::Bytes(0) => return Err(Errno::EAGAIN),
                Written::Bytes(_) => {}
                ended => return Ok(ended),
            }
            self.chain.lock().urgent = Some(Urgent {
                place,
                byte: None,
                in_line,
            });
        } else {
            let mut chain = self.chain.lock();
            if chain.abandoned {
                return Ok(Written::Abandoned);
            }
            if chain.broken || chain.finished {
                return Ok(Written::Ended);
            }
            let place = chain.added;
            chain.urgent = Some(Urgent {
                place,
                byte: Some(byte),
                in_line,
            });
        }
        self.receiver.readable.wake_all();
        Ok(Written::Bytes(1))
    }

    /// Fills up to [`BATCH`] slices, then links them. `wake` becomes true when the reader has to be told.
    fn step(&self, tail: &mut Tail, from: &mut dyn Source, wake: &mut bool) -> Result<Written> {
        let mut spare: [Option<Frame>; BATCH] = Default::default();
        let (continues, mut room) = {
            let mut chain = self.chain.lock();
            if chain.abandoned {
                return Ok(Written::Abandoned);
            }
            if chain.broken || chain.finished {
                return Ok(Written::Ended);
            }
            let room = chain.room();
            if room > PAGE_SIZE {
                for frame in &mut spare {
                    *frame = chain.spare.pop();
                }
            }
            (tail.used < PAGE_SIZE && chain.continues(tail), room)
        };
        if !continues {
            // When nobody else has a handle of the tail frame, it is empty again. A reader may have one still, or
            // whom it passed the slice on to; then the frame is theirs.
            if tail.frame.as_ref().is_some_and(|frame| frame.handles() > 1) {
                tail.frame = None;
            }
            tail.used = 0;
        }
        let mut slices: Slices = Default::default();
        let mut result = Ok(());
        for slot in &mut slices {
            match next_slice(tail, room, from, &mut spare) {
                Ok(Some(slice)) => {
                    room -= slice.len;
                    *slot = Some(slice);
                }
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let total = self.link(slices, spare, wake)?;
        fbuf::moved(total, result).map(Written::Bytes)
    }

    /// Adds slices to the chain and gives frames back that were not needed; returns how many bytes that is.
    fn link(
        &self,
        slices: Slices,
        spare: [Option<Frame>; BATCH],
        wake: &mut bool,
    ) -> Result<usize> {
        if slices[0].is_none() {
            return Ok(0);
        }
        let mut total = 0;
        let mut left = spare.into_iter().flatten();
        let mut chain = self.chain.lock();
        if chain.abandoned || chain.broken || chain.finished {
            // It ended while bytes were copied; the next step reports it. They are as lost as in flight.
            drop(chain);
            return Ok(slices.iter().flatten().map(|slice| slice.len).sum());
        }
        let before = chain.data.len();
        for slice in slices.into_iter().flatten() {
            let len = slice.len;
            chain.data.append(slice)?;
            chain.added += len as u64;
            total += len;
        }
        while chain.spare.len() < chain.spare.capacity()
            && let Some(frame) = left.next()
        {
            chain.spare.push(frame);
        }
        // Below the mark a reader may wait for whatever comes.
        *wake |= before < chain.low_water;
        drop(chain);
        // Frames for which there was no place are freed here, without the spin lock.
        left.for_each(drop);
        Ok(total)
    }
}

/// Makes the next slice of at most `room` bytes: passed on by the source, in place behind the last one, or in a frame of its own.
fn next_slice(
    tail: &mut Tail,
    room: usize,
    from: &mut dyn Source,
    spare: &mut [Option<Frame>; BATCH],
) -> Result<Option<Slice>> {
    let want = from.left().min(room);
    if want == 0 {
        return Ok(None);
    }
    if let Some(slice) = from.take_slice(room.min(PAGE_SIZE)) {
        Counter::bytes_passed.add(slice.len as u64);
        // What is written next starts a frame of its own.
        tail.frame = None;
        tail.used = 0;
        return Ok(Some(slice));
    }
    if tail.used == PAGE_SIZE {
        tail.frame = None;
        tail.used = 0;
    }
    let frame = match tail.frame.take() {
        Some(frame) => frame,
        None => match spare.iter_mut().find_map(Option::take) {
            Some(frame) => frame,
            // The lock of the end that writes is held, which neither the pagedaemon nor who empties the chain takes.
            None => vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM)?,
        },
    };
    let frame = &*tail.frame.insert(frame);
    let n = from.take_into(frame, tail.used, want.min(PAGE_SIZE - tail.used))?;
    if n == 0 {
        return Ok(None);
    }
    let slice = Slice {
        frame: frame.clone(),
        offset: tail.used,
        len: n,
    };
    tail.used += n;
    Ok(Some(slice))
}
