//! The bytes on their way to one end of a stream: a chain of slices of pages, and what goes with some of them.
//!
//! One writer and one reader at a time copy, each with a lock of its own and not the queue's: they meet only to link
//! and unlink slices, as in a pipe. Bytes that a slice shows never change; the writer adds to the last frame only
//! behind what any slice shows.
//!
//! A [`Mark`] stands at a position in the stream from which on the bytes have another sender or bring files with them.
//!
//! - `peek`: looking at bytes that stay;
//! - `urgent`: the byte sent with `MSG_OOB`.

use alloc::{collections::VecDeque, vec::Vec};

use abi::{Errno, Result};
use fbuf::{Aggregate, Sink, Slice, Source};
use nucleus::{
    Frame, PAGE_SIZE,
    counters::Counter,
    frame::{self, Contents},
    sync::{Mutex, Rank, SpinLock},
};

mod peek;
#[cfg(test)]
mod tests;
mod urgent;

use super::{
    credentials::Sender,
    rights::{self, Rights},
};

/// Slices that are filled before they are linked together: fewer rounds for the queue's lock, and yet the reader can
/// begin while a large write goes on.
const STEP: usize = 8;
/// Emptied frames that are kept for the writer, so that a frame need not travel through the allocator
/// from the reader's CPU to the writer's.
const SPARE_FRAMES: usize = STEP;
/// Slices that a queue takes whatever its limit in bytes, and for each page of it: small pieces of pages that were
/// passed on hold whole frames.
const SLICES_PER_PAGE: usize = 2;

/// Bytes for one end.
pub struct Channel {
    queue: SpinLock<Queue>,
    /// Held by the one reader that takes bytes off. Never while waiting for bytes.
    reading: Mutex<()>,
    /// Held by the one writer that adds bytes. Never while waiting for room.
    writing: Mutex<Tail>,
}

struct Queue {
    data: Aggregate,
    /// Bytes that were ever taken off: the position of the first byte in `data`.
    taken: u64,
    /// By rising position.
    marks: VecDeque<Mark>,
    /// Who sent the first byte.
    first_sender: Option<Sender>,
    /// Who sent the last byte.
    last_sender: Option<Sender>,
    /// The position of the last byte that was sent as urgent, until it is received.
    urgent: Option<u64>,
    /// Nobody will read.
    closed: bool,
    /// The writer found no room, and waits to be told of it.
    writer_waits: bool,
    /// Emptied frames with no other handle.
    spare: Vec<Frame>,
}

/// What is special about the bytes from a position on.
struct Mark {
    at: u64,
    /// The byte after those that came with `rights`.
    end: u64,
    sender: Option<Sender>,
    rights: Option<Rights>,
}

/// The frame that the last small write went to.
struct Tail {
    frame: Option<Frame>,
    /// Bytes of it that slices show or have shown since it was last empty.
    used: usize,
}

/// What goes with the bytes of one message.
#[derive(Default)]
pub struct Attached {
    /// Who sends them, if anybody wants to know.
    pub sender: Option<Sender>,
    /// Taken with the first bytes.
    pub rights: Option<Rights>,
    /// The last byte is urgent.
    pub is_urgent: bool,
}

/// What became of the bytes of one call to receive.
#[derive(Default)]
pub struct Received {
    /// The call wants no bytes of two senders.
    pub minds_sender: bool,
    /// An urgent byte is received with the others (`SO_OOBINLINE`).
    pub inline_urgent: bool,
    /// Bytes that the call took off.
    pub taken: usize,
    /// Whose bytes they are, as soon as there are any.
    pub sender: Option<Option<Sender>>,
    /// Files that came with them.
    pub rights: Option<Vec<alloc::sync::Arc<crate::process::files::OpenFile>>>,
    /// What follows is for another call.
    pub is_over: bool,
    /// What came with an urgent byte that was passed over, to be dropped without locks.
    pub lost: Option<Rights>,
    /// Room was made that the writer waits for.
    pub made_room: bool,
}

/// What a reader finds in front.
enum Front {
    /// A slice to be copied.
    Slice(Slice),
    /// Files that come with the next bytes, up to this position.
    Rights(u64),
    /// An urgent byte that this call passes over.
    Skipped(Option<Slice>),
    Nothing,
}

/// A channel's state at one time.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    pub bytes: usize,
    pub closed: bool,
    /// An urgent byte has not been received.
    pub urgent: bool,
}

impl Queue {
    /// Slices that fit within `limit` bytes' worth.
    fn free_slots(&self, limit: usize) -> usize {
        let slots = limit.div_ceil(PAGE_SIZE).max(1) * SLICES_PER_PAGE;
        slots.saturating_sub(self.data.slice_count())
    }

    /// Whether the chain ends with bytes of `tail` that can be continued in place.
    fn continues(&self, tail: &Tail) -> bool {
        match (self.data.slices().next_back(), &tail.frame) {
            (Some(last), Some(frame)) => last.frame == *frame && last.end() == tail.used,
            _ => false,
        }
    }

    /// Whether so little is left that the writer should go on: a quarter, so that it does so with a will.
    fn is_low(&self, limit: usize) -> bool {
        self.data.len() <= limit / 4 && self.free_slots(limit) > 0
    }

    fn keep(&mut self, emptied: &mut Option<Frame>) {
        // The vector was made with room for all of them: nothing is allocated here.
        if self.spare.len() < self.spare.capacity() && !self.closed {
            self.spare.extend(emptied.take());
        }
    }

    /// Passes the marks at the position of the first byte, up to one with rights or a sender whose bytes are for another call.
    fn front(&mut self, received: &mut Received, stop: Option<u64>) -> Front {
        if self.urgent == Some(self.taken) {
            if received.taken > 0 {
                received.is_over = true;
                return Front::Nothing;
            }
            if !received.inline_urgent {
                let (byte, rights) = self.skip_urgent();
                received.lost = rights;
                return Front::Skipped(byte);
            }
            self.urgent = None;
        }
        while let Some(mark) = self.marks.front()
            && mark.at <= self.taken
        {
            if received.minds_sender && received.sender.is_some_and(|sender| sender != mark.sender)
            {
                received.is_over = true;
                return Front::Nothing;
            }
            if mark.rights.is_some() {
                return Front::Rights(mark.end);
            }
            self.first_sender = mark.sender;
            self.marks.pop_front();
        }
        let Some(first) = self.data.slices().next() else {
            return Front::Nothing;
        };
        let mut slice = first.clone();
        received.sender.get_or_insert(self.first_sender);
        // Not beyond the next mark, what came with rights, and an urgent byte.
        let mark = self.marks.front().map(|mark| mark.at);
        for end in [mark, stop, self.urgent].into_iter().flatten() {
            slice.len = slice.len.min((end - self.taken) as usize);
        }
        Front::Slice(slice)
    }
}

impl Queue {
    /// Takes bytes off, all of one slice.
    fn take(&mut self, n: usize) -> Option<Slice> {
        self.taken += n as u64;
        self.data.take_slice(n)
    }

    /// Whether the writer waits for room and there is some now; says so once.
    fn has_made_room(&mut self, limit: usize) -> bool {
        let made = self.writer_waits && self.is_low(limit);
        self.writer_waits &= !made;
        made
    }
}

impl Channel {
    /// No bytes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Channel> {
        let mut spare = Vec::new();
        spare
            .try_reserve_exact(SPARE_FRAMES)
            .map_err(|_| Errno::ENOMEM)?;
        Ok(Channel {
            queue: SpinLock::new(
                Rank::Leaf,
                Queue {
                    data: Aggregate::new(),
                    taken: 0,
                    marks: VecDeque::new(),
                    first_sender: None,
                    last_sender: None,
                    urgent: None,
                    closed: false,
                    writer_waits: false,
                    spare,
                },
            ),
            reading: Mutex::new(Rank::PipeReading, ()),
            writing: Mutex::new(
                Rank::Pipe,
                Tail {
                    frame: None,
                    used: 0,
                },
            ),
        })
    }

    /// The state now.
    pub fn status(&self) -> Status {
        let queue = self.queue.lock();
        Status {
            bytes: queue.data.len(),
            closed: queue.closed,
            urgent: queue.urgent.is_some(),
        }
    }

    /// Whether there is room for another write within `limit` bytes. If not, the next reader that makes some says so
    /// ([`Received::made_room`]).
    pub fn has_room(&self, limit: usize) -> bool {
        let mut queue = self.queue.lock();
        let low = queue.closed || queue.is_low(limit);
        queue.writer_waits |= !low;
        low
    }

    /// From now on nothing is taken in.
    pub fn close(&self) {
        self.queue.lock().closed = true;
    }

    /// Drops all that is there, frame by frame, so that none is freed under the spin lock. Returns whether there was anything.
    pub fn discard(&self) -> bool {
        let mut rights = Vec::new();
        self.take_rights(&mut rights);
        rights::drop_all(rights);
        let mut any = false;
        loop {
            let (slice, frame, mark) = {
                let mut queue = self.queue.lock();
                (
                    queue.data.pop_front(),
                    queue.spare.pop(),
                    queue.marks.pop_front(),
                )
            };
            any |= slice.is_some();
            if slice.is_none() && frame.is_none() && mark.is_none() {
                return any;
            }
        }
    }

    /// Shows the rights that are there.
    pub fn visit_rights(&self, visit: &mut dyn FnMut(&Rights)) {
        let queue = self.queue.lock();
        queue
            .marks
            .iter()
            .filter_map(|mark| mark.rights.as_ref())
            .for_each(visit);
    }

    /// Takes out the rights that are there; the bytes stay.
    pub fn take_rights(&self, to: &mut Vec<Rights>) {
        let mut queue = self.queue.lock();
        to.extend(queue.marks.iter_mut().filter_map(|mark| mark.rights.take()));
    }

    /// Adds bytes that fit within `limit`; returns how many. Nothing fits: the writer is told when something does. `linked` is called, with no
    /// spin lock held, each time when some can be read and more is to come.
    ///
    /// # Errors
    /// `EPIPE` if nobody will read; `ENOMEM`; that of the source; each only if nothing was added.
    pub fn fill(
        &self,
        from: &mut dyn Source,
        limit: usize,
        attached: &mut Attached,
        linked: &dyn Fn(),
    ) -> Result<usize> {
        let mut tail = self.writing.lock();
        let mut total = 0;
        while from.left() > 0 {
            match self.fill_some(&mut tail, from, limit, attached) {
                Ok(0) => break,
                Ok(n) => total += n,
                Err(error) => return fbuf::moved(total, Err(error)),
            }
            if from.left() > 0 {
                linked();
            }
        }
        Ok(total)
    }

    /// One step of [`fill`](Channel::fill).
    fn fill_some(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        limit: usize,
        attached: &mut Attached,
    ) -> Result<usize> {
        let mut spare: [Option<Frame>; STEP] = [const { None }; STEP];
        let (continues, mut slots, mut room) = {
            let mut queue = self.queue.lock();
            if queue.closed {
                return Err(Errno::EPIPE);
            }
            let room = limit.saturating_sub(queue.data.len());
            let slots = queue.free_slots(limit).min(STEP);
            if room == 0 || slots == 0 {
                queue.writer_waits = true;
                return Ok(0);
            }
            let wanted = from.left().div_ceil(PAGE_SIZE).min(slots);
            for frame in spare.iter_mut().take(wanted) {
                *frame = queue.spare.pop();
            }
            let continues = tail.used < PAGE_SIZE && queue.continues(tail);
            (continues, slots, room)
        };
        if !continues {
            // When nobody else has a handle of the tail frame, it is empty again. A reader or another queue
            // may have one still; then the frame is theirs.
            if tail.frame.as_ref().is_some_and(|frame| frame.handles() > 1) {
                tail.frame = None;
            }
            tail.used = 0;
        }
        let mut slices: [Option<Slice>; STEP] = [const { None }; STEP];
        let mut result = Ok(());
        for slot in &mut slices {
            if from.left() == 0 || room == 0 || slots == 0 {
                break;
            }
            slots -= 1;
            match next_slice(tail, from, room, &mut spare) {
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
        let is_end = from.left() == 0;
        let linked = self.link(slices, attached, is_end, spare);
        match linked {
            Ok(total) => fbuf::moved(total, result),
            error => error,
        }
    }

    /// Links slices behind, with what is attached to them; gives back frames that were not used. `is_end`: the last byte is
    /// the last one of its call.
    fn link(
        &self,
        slices: [Option<Slice>; STEP],
        attached: &mut Attached,
        is_end: bool,
        mut spare: [Option<Frame>; STEP],
    ) -> Result<usize> {
        let mut queue = self.queue.lock();
        let mut total = 0;
        if slices[0].is_some() {
            if queue.closed {
                drop(queue);
                return Err(Errno::EPIPE);
            }
            let marks = attached.rights.is_some() || attached.sender != queue.last_sender;
            queue.data.reserve(STEP)?;
            if marks {
                queue.marks.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            }
            let at = queue.taken + queue.data.len() as u64;
            for slice in slices.into_iter().flatten() {
                total += slice.len;
                queue.data.append(slice)?;
            }
            if attached.is_urgent && is_end {
                queue.urgent = Some(at + total as u64 - 1);
            }
            if marks {
                queue.last_sender = attached.sender;
                let mark = Mark {
                    at,
                    end: at + total as u64,
                    sender: attached.sender,
                    rights: attached.rights.take(),
                };
                // The bytes of the last one may be gone by now: then it would part those around it.
                if queue.marks.back().is_some_and(|last| last.at == at) {
                    queue.marks.pop_back();
                }
                queue.marks.push_back(mark);
            }
        }
        for frame in &mut spare {
            queue.keep(frame);
        }
        Ok(total)
    }

    /// Moves bytes that are there to a sink, `max` at most, as far as one call may take them. `freed` is called, with no spin lock held, when a writer
    /// that waits would find room ([`Received::made_room`] says so, too).
    ///
    /// # Errors
    /// That of the sink, if it took nothing.
    pub fn drain(
        &self,
        to: &mut dyn Sink,
        max: usize,
        limit: usize,
        received: &mut Received,
        freed: &dyn Fn(),
    ) -> Result<usize> {
        let _reading = self.reading.lock();
        let mut total = 0;
        let mut stop = None;
        let mut emptied: Option<Frame> = None;
        let result = loop {
            if total == max || to.room() == 0 || received.is_over {
                break Ok(());
            }
            // A handle of the slice keeps its frame while bytes are copied without the lock.
            let front = {
                let mut queue = self.queue.lock();
                queue.keep(&mut emptied);
                queue.front(received, stop)
            };
            let slice = match front {
                Front::Slice(slice) => slice,
                Front::Nothing => break Ok(()),
                Front::Rights(end) => {
                    self.receive_rights(received);
                    stop = Some(end);
                    continue;
                }
                Front::Skipped(slice) => {
                    received.made_room |= self.queue.lock().has_made_room(limit);
                    drop(slice);
                    continue;
                }
            };
            let n = slice.len.min(max - total);
            let taken = match to.put_frame(&slice.frame, slice.offset, n) {
                Ok(0) => break Ok(()),
                Ok(taken) => taken,
                Err(error) => break Err(error),
            };
            total += taken;
            let (old, made_room) = {
                let mut queue = self.queue.lock();
                let old = queue.take(taken);
                received.taken += taken;
                received.is_over = stop.is_some_and(|end| queue.taken >= end);
                (old, queue.has_made_room(limit))
            };
            drop(slice);
            if made_room {
                received.made_room = true;
                freed();
            }
            if let Some(old) = old
                && old.frame.handles() == 1
                && !frame::is_scarce()
            {
                emptied = Some(old.frame);
            }
        };
        if emptied.is_some() {
            self.queue.lock().keep(&mut emptied);
        }
        // What came with rights is one call's, even where it had no room for all of it.
        received.is_over |= stop.is_some();
        fbuf::moved(total, result)
    }

    /// The rights at the first byte have arrived.
    fn receive_rights(&self, received: &mut Received) {
        let is_guarded = self
            .queue
            .lock()
            .marks
            .front()
            .and_then(|mark| mark.rights.as_ref())
            .is_some_and(Rights::has_sockets);
        let mut sockets = is_guarded.then(rights::sockets);
        let rights = {
            let mut queue = self.queue.lock();
            queue.marks.front_mut().and_then(|mark| mark.rights.take())
        };
        // Only a reader takes them, or who empties the queue for good: none are left then.
        if let Some(rights) = rights {
            let files = rights.arrive(sockets.as_deref_mut());
            received.rights = Some(files);
        }
    }
}

/// Makes the next slice of `max` bytes at most: passed on by the source, behind the last one in its frame, or in a
/// frame of its own.
fn next_slice(
    tail: &mut Tail,
    from: &mut dyn Source,
    max: usize,
    spare: &mut [Option<Frame>; STEP],
) -> Result<Option<Slice>> {
    if let Some(slice) = from.take_slice(max) {
        Counter::bytes_passed.add(slice.len as u64);
        // What is written next starts a frame of its own.
        tail.frame = None;
        return Ok(Some(slice));
    }
    if tail.used == PAGE_SIZE || tail.frame.is_none() {
        let recycled = spare.iter_mut().find_map(Option::take);
        let frame = match recycled {
            Some(frame) => frame,
            None => vm::alloc_frame(Contents::Stale).map_err(|_| Errno::ENOMEM)?,
        };
        tail.frame = Some(frame);
        tail.used = 0;
    }
    let Some(frame) = &tail.frame else {
        return Ok(None);
    };
    let wanted = from.left().min(PAGE_SIZE - tail.used).min(max);
    let n = from.take_into(frame, tail.used, wanted)?;
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
