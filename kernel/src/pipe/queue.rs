//! The chain between the two ends of a pipe.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use abi::{Errno, Result};
use fbuf::{Aggregate, Sink, Slice, Source};
use nucleus::{
    Frame, PAGE_SIZE,
    frame::{self, Contents},
    sync::{Mutex, MutexGuard, Rank, SpinLock},
    task::{Sleep, WaitQueue},
};

use crate::signal;

/// Slices that a new pipe takes: 64 KiB in whole pages, as on Linux.
pub const DEFAULT_SLOTS: usize = 16;
/// The most slices that `F_SETPIPE_SZ` allows: 1 MiB, Linux's `pipe-max-size`.
pub const MAX_SLOTS: usize = 256;
/// Writes of up to this many bytes are not mixed with others.
pub const PIPE_BUF: usize = abi::raw::general::PIPE_BUF as usize;
/// Emptied frames that a pipe keeps for its writer, so that a frame need not travel through the
/// allocator from the reader's CPU to the writer's. Half of a full pipe: both sides then work at once.
const SPARE_FRAMES: usize = 8;

/// A pipe.
pub struct Pipe {
    queue: SpinLock<Queue>,
    /// Held by the one reader that takes bytes off. Never while waiting for bytes.
    reading: Mutex<()>,
    /// Held by the one writer that adds bytes. Never while waiting for room.
    writing: Mutex<Tail>,
    /// Readers that wait for bytes, and opens that wait for a writer.
    readers: WaitQueue,
    /// Writers that wait for room, and opens that wait for a reader.
    writers: WaitQueue,
    inode: u64,
}

/// What the queue lock guards.
struct Queue {
    data: Aggregate,
    /// Slices that fit.
    slots: usize,
    /// Open reading ends.
    readers: usize,
    /// Open writing ends.
    writers: usize,
    /// Reading ends that were ever opened.
    readers_seen: u64,
    /// Writing ends that were ever opened.
    writers_seen: u64,
    /// Emptied frames with no other handle.
    spare: Vec<Frame>,
}

/// The frame that the last small write went to.
struct Tail {
    frame: Option<Frame>,
    /// Bytes of it that slices show or have shown since it was last empty.
    used: usize,
}

/// Which ends an open file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    pub reads: bool,
    pub writes: bool,
}

/// A pipe's state at one time.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    pub bytes: usize,
    /// Whether another slice fits.
    pub has_slot: bool,
    pub slots: usize,
    pub readers: usize,
    pub writers: usize,
    /// Counts of opens since the pipe was made.
    pub readers_seen: u64,
    pub writers_seen: u64,
}

impl Queue {
    fn has_slot(&self) -> bool {
        self.data.slice_count() < self.slots
    }

    fn free_slots(&self) -> usize {
        self.slots.saturating_sub(self.data.slice_count())
    }

    /// Whether the chain ends with bytes of `tail` that can be continued in place.
    fn continues(&self, tail: &Tail) -> bool {
        match (self.data.slices().next_back(), &tail.frame) {
            (Some(last), Some(frame)) => last.frame == *frame && last.end() == tail.used,
            _ => false,
        }
    }
}

impl Pipe {
    /// An empty pipe without ends.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Arc<Pipe>> {
        static INODES: AtomicU64 = AtomicU64::new(1);
        if frame::is_scarce() {
            return Err(Errno::ENOMEM);
        }
        let mut data = Aggregate::new();
        // Two above the slots: what is put back in front after a failed splice is not lost.
        data.reserve(DEFAULT_SLOTS + 2)?;
        let mut spare = Vec::new();
        spare
            .try_reserve_exact(SPARE_FRAMES)
            .map_err(|_| Errno::ENOMEM)?;
        Ok(Arc::new(Pipe {
            queue: SpinLock::new(
                Rank::Leaf,
                Queue {
                    data,
                    slots: DEFAULT_SLOTS,
                    readers: 0,
                    writers: 0,
                    readers_seen: 0,
                    writers_seen: 0,
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
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            inode: INODES.fetch_add(1, Relaxed),
        }))
    }

    /// The number that `stat` and `/proc/PID/fd` show.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The state now.
    pub fn status(&self) -> Status {
        let queue = self.queue.lock();
        Status {
            bytes: queue.data.len(),
            has_slot: queue.has_slot(),
            slots: queue.slots,
            readers: queue.readers,
            writers: queue.writers,
            readers_seen: queue.readers_seen,
            writers_seen: queue.writers_seen,
        }
    }

    /// Tasks that wait for bytes.
    pub fn readers(&self) -> &WaitQueue {
        &self.readers
    }

    /// Tasks that wait for room.
    pub fn writers(&self) -> &WaitQueue {
        &self.writers
    }

    /// One more open file with these ends.
    pub fn open(&self, ends: Ends) {
        let mut queue = self.queue.lock();
        if ends.reads {
            queue.readers += 1;
            queue.readers_seen += 1;
        }
        if ends.writes {
            queue.writers += 1;
            queue.writers_seen += 1;
        }
        drop(queue);
        if ends.reads {
            self.writers.wake_all();
        }
        if ends.writes {
            self.readers.wake_all();
        }
    }

    /// One open file with these ends less. With the last of all ends the bytes go too.
    pub fn close(&self, ends: Ends) {
        let mut queue = self.queue.lock();
        queue.readers -= usize::from(ends.reads);
        queue.writers -= usize::from(ends.writes);
        let (readers, writers) = (queue.readers, queue.writers);
        drop(queue);
        if readers + writers == 0 {
            self.discard();
        }
        if readers == 0 {
            self.writers.wake_all();
        }
        if writers == 0 {
            self.readers.wake_all();
        }
    }

    /// Drops what was not read, frame by frame, so that none is freed under the spin lock.
    fn discard(&self) {
        loop {
            let (slice, frame) = {
                let mut queue = self.queue.lock();
                if queue.readers + queue.writers > 0 {
                    return;
                }
                (queue.data.pop_front(), queue.spare.pop())
            };
            if slice.is_none() && frame.is_none() {
                return;
            }
        }
    }

    /// Changes the capacity to at least `bytes`, in a power of two of pages; returns the new one.
    ///
    /// # Errors
    /// `EBUSY` if more is in it, `EINVAL` for more than 2 GiB, `EPERM` above [`MAX_SLOTS`], `ENOMEM`.
    pub fn resize(&self, bytes: usize) -> Result<usize> {
        if bytes > 1 << 31 {
            return Err(Errno::EINVAL);
        }
        let slots = bytes.div_ceil(PAGE_SIZE).max(1).next_power_of_two();
        if slots > MAX_SLOTS {
            return Err(Errno::EPERM);
        }
        let _reading = self.reading.lock();
        let _writing = self.writing.lock();
        let mut bigger = Aggregate::new();
        bigger.reserve(slots + 2)?;
        let mut queue = self.queue.lock();
        if queue.data.slice_count() > slots {
            return Err(Errno::EBUSY);
        }
        // There is room in `bigger` for all slices: nothing is allocated here.
        bigger.join(&mut queue.data)?;
        queue.data = bigger;
        queue.slots = slots;
        drop(queue);
        self.writers.wake_all();
        Ok(slots * PAGE_SIZE)
    }

    /// Reads what is there, waiting for the first bytes unless `wait` is false.
    ///
    /// # Errors
    /// `EAGAIN`, a restart number, or that of the sink.
    pub fn read(&self, wait: bool, to: &mut dyn Sink) -> Result<usize> {
        if to.room() == 0 {
            return Ok(0);
        }
        loop {
            let n = {
                let reading = self.reading.lock();
                self.drain(&reading, to, usize::MAX)?
            };
            if n > 0 {
                return Ok(n);
            }
            let status = self.status();
            if status.bytes > 0 {
                continue;
            }
            if status.writers == 0 {
                return Ok(0);
            }
            if !wait {
                return Err(Errno::EAGAIN);
            }
            self.wait_for_bytes()?;
        }
    }

    /// Sleeps until there are bytes or no writer.
    pub fn wait_for_bytes(&self) -> Result<()> {
        self.readers
            .wait(Sleep::INTERRUPTIBLE, || {
                let status = self.status();
                (status.bytes > 0 || status.writers == 0).then_some(())
            })
            .map_err(signal::woken)
    }

    /// Sleeps until another slice fits or there is no reader.
    pub fn wait_for_slot(&self) -> Result<()> {
        self.writers
            .wait(Sleep::INTERRUPTIBLE, || {
                let status = self.status();
                (status.has_slot || status.readers == 0).then_some(())
            })
            .map_err(signal::woken)
    }

    /// The lock that [`drain`](Pipe::drain) wants.
    pub fn lock_reading(&self) -> MutexGuard<'_, ()> {
        self.reading.lock()
    }

    /// Moves bytes that are there, `max` at most, to a sink. Wakes writers once, at the end.
    ///
    /// # Errors
    /// That of the sink, if it took nothing.
    pub fn drain(
        &self,
        _reading: &MutexGuard<'_, ()>,
        to: &mut dyn Sink,
        max: usize,
    ) -> Result<usize> {
        let mut total = 0;
        let mut freed_slot = false;
        let mut emptied: Option<Frame> = None;
        let result = loop {
            if total == max || to.room() == 0 {
                break Ok(());
            }
            // A handle of the first slice keeps its frame while bytes are copied without the lock.
            let first = {
                let mut queue = self.queue.lock();
                keep(&mut queue, &mut emptied);
                queue.data.slices().next().cloned()
            };
            let Some(first) = first else { break Ok(()) };
            let n = first.len.min(max - total);
            let taken = match to.put_frame(&first.frame, first.offset, n) {
                Ok(0) => break Ok(()),
                Ok(taken) => taken,
                Err(error) => break Err(error),
            };
            total += taken;
            let old = {
                let mut queue = self.queue.lock();
                let was_full = !queue.has_slot();
                let old = queue.data.take_slice(taken);
                freed_slot |= was_full && queue.has_slot();
                old
            };
            drop(first);
            if let Some(old) = old
                && old.frame.handles() == 1
                && !frame::is_scarce()
            {
                emptied = Some(old.frame);
            }
        };
        if emptied.is_some() {
            keep(&mut self.queue.lock(), &mut emptied);
        }
        if freed_slot {
            self.writers.wake_all();
        }
        fbuf::moved(total, result)
    }

    /// Writes all that the source has, waiting for room unless `wait` is false.
    ///
    /// # Errors
    /// `EPIPE` without a reader (the caller sends SIGPIPE), `EAGAIN`, a restart number, or that of the
    /// source; each only if nothing was written.
    pub fn write(&self, wait: bool, from: &mut dyn Source) -> Result<usize> {
        let whole = from.left() <= PIPE_BUF;
        let mut total = 0;
        while from.left() > 0 {
            let result = {
                let mut tail = self.writing.lock();
                self.fill(&mut tail, from, whole)
            };
            let error = match result {
                Ok(0) if !wait => Errno::EAGAIN,
                Ok(0) => match self.wait_for_slot() {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Ok(n) => {
                    total += n;
                    continue;
                }
                Err(error) => error,
            };
            if total > 0 && error == Errno::EPIPE {
                // The caller learns of what was written; the signal must come all the same.
                super::broken_pipe();
            }
            return fbuf::moved(total, Err(error));
        }
        Ok(total)
    }

    /// Adds slices that fit, without copying; what is left in `from` did not fit. Wakes readers.
    ///
    /// # Errors
    /// `EPIPE` without a reader; `ENOMEM`.
    pub fn append(&self, from: &mut Aggregate) -> Result<usize> {
        let _tail = self.writing.lock();
        let mut queue = self.queue.lock();
        if queue.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let was_empty = queue.data.is_empty();
        let mut total = 0;
        while queue.has_slot()
            && let Some(slice) = from.pop_front()
        {
            total += slice.len;
            // Two places above the slots are reserved: nothing is allocated.
            queue.data.append(slice)?;
        }
        drop(queue);
        if was_empty && total > 0 {
            self.readers.wake_all();
        }
        Ok(total)
    }

    /// Copies handles of the first slices, `max` bytes at most (`tee`).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn duplicate(&self, max: usize) -> Result<Aggregate> {
        let mut copy = Aggregate::new();
        copy.reserve(self.status().slots)?;
        let queue = self.queue.lock();
        for slice in queue.data.slices() {
            let len = slice.len.min(max - copy.len());
            if len == 0 {
                break;
            }
            copy.append(Slice {
                len,
                ..slice.clone()
            })?;
        }
        Ok(copy)
    }

    /// Takes slices off, `max` bytes at most. What is not used goes back by [`put_back`](Pipe::put_back).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn take(&self, _reading: &MutexGuard<'_, ()>, max: usize) -> Result<Aggregate> {
        let mut taken = Aggregate::new();
        taken.reserve(self.status().slots)?;
        let mut queue = self.queue.lock();
        while let Some(slice) = queue.data.take_slice(max - taken.len()) {
            taken.append(slice)?;
        }
        Ok(taken)
    }

    /// Puts back in front what was taken and not used, and tells writers of the room that the rest left.
    pub fn put_back(&self, _reading: &MutexGuard<'_, ()>, mut unused: Aggregate) {
        let mut queue = self.queue.lock();
        let was_empty = queue.data.is_empty();
        let any = !unused.is_empty();
        while let Some(slice) = unused.pop_back() {
            // At most what was there before, and the two places above the slots: nothing is allocated unless
            // writers have filled the pipe meanwhile.
            if queue.data.prepend(slice).is_err() {
                break;
            }
        }
        drop(queue);
        if was_empty && any {
            self.readers.wake_all();
        }
        self.writers.wake_all();
    }

    /// Adds bytes that fit: all or none of them with `whole`. Wakes readers once, at the end.
    fn fill(&self, tail: &mut Tail, from: &mut dyn Source, whole: bool) -> Result<usize> {
        let mut total = 0;
        let mut was_empty = false;
        let result = loop {
            if from.left() == 0 {
                break Ok(());
            }
            match self.fill_some(tail, from, whole && total == 0) {
                Ok((0, _)) => break Ok(()),
                Ok((n, empty)) => {
                    total += n;
                    was_empty |= empty;
                }
                Err(error) => break Err(error),
            }
        };
        if was_empty {
            self.readers.wake_all();
        }
        fbuf::moved(total, result)
    }

    /// One step of [`fill`](Pipe::fill): up to two slices are filled, then linked together, so
    /// that a reader sees all or nothing of a write of at most [`PIPE_BUF`] bytes. Returns the bytes added and whether
    /// the pipe was empty.
    fn fill_some(
        &self,
        tail: &mut Tail,
        from: &mut dyn Source,
        whole: bool,
    ) -> Result<(usize, bool)> {
        let mut spare: [Option<Frame>; 2] = [None, None];
        let (continues, free_slots) = {
            let mut queue = self.queue.lock();
            if queue.readers == 0 {
                return Err(Errno::EPIPE);
            }
            let continues = tail.used < PAGE_SIZE && queue.continues(tail);
            let free_slots = queue.free_slots();
            for frame in spare.iter_mut().take(free_slots) {
                *frame = queue.spare.pop();
            }
            (continues, free_slots)
        };
        if !continues {
            // When nobody else has a handle of the tail frame, it is empty again. A reader or another pipe
            // may have one still; then the frame is theirs.
            if tail.frame.as_ref().is_some_and(|frame| frame.handles() > 1) {
                tail.frame = None;
            }
            tail.used = 0;
        }
        let mut in_place = if continues { PAGE_SIZE - tail.used } else { 0 };
        if whole && from.left() > in_place + free_slots * PAGE_SIZE {
            self.give_back(&mut spare);
            return Ok((0, false));
        }
        let mut slices: [Option<Slice>; 2] = [None, None];
        let mut slots = free_slots;
        let mut result = Ok(());
        for slot in &mut slices {
            if from.left() == 0 || (in_place == 0 && slots == 0) {
                break;
            }
            match next_slice(tail, &mut in_place, &mut slots, from, &mut spare) {
                Ok(Some(slice)) => *slot = Some(slice),
                Ok(None) => break,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        let (mut total, mut was_empty) = (0, false);
        if slices[0].is_some() {
            let mut queue = self.queue.lock();
            was_empty = queue.data.is_empty();
            for slice in slices.into_iter().flatten() {
                total += slice.len;
                queue.data.append(slice)?;
            }
        }
        self.give_back(&mut spare);
        fbuf::moved(total, result).map(|n| (n, was_empty))
    }

    fn give_back(&self, spare: &mut [Option<Frame>; 2]) {
        if spare.iter().any(Option::is_some) {
            let mut queue = self.queue.lock();
            for frame in spare {
                keep(&mut queue, frame);
            }
        }
    }
}

/// Makes the next slice: in place behind the last one, passed on by the source, or in a frame of its own.
fn next_slice(
    tail: &mut Tail,
    in_place: &mut usize,
    slots: &mut usize,
    from: &mut dyn Source,
    spare: &mut [Option<Frame>; 2],
) -> Result<Option<Slice>> {
    if *slots > 0
        && let Some(slice) = from.take_slice(PAGE_SIZE)
    {
        *in_place = 0;
        *slots -= 1;
        // What is written next starts a frame of its own.
        tail.frame = None;
        return Ok(Some(slice));
    }
    if *in_place == 0 {
        if *slots == 0 {
            return Ok(None);
        }
        *slots -= 1;
    }
    if tail.used == PAGE_SIZE || tail.frame.is_none() {
        let recycled = spare.iter_mut().find_map(Option::take);
        let frame = match recycled {
            Some(frame) => frame,
            None => Frame::alloc(Contents::Stale).map_err(|_| Errno::ENOMEM)?,
        };
        tail.frame = Some(frame);
        tail.used = 0;
    }
    *in_place = 0;
    let Some(frame) = &tail.frame else {
        return Ok(None);
    };
    let n = from.take_into(frame, tail.used, from.left().min(PAGE_SIZE - tail.used))?;
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

/// Keeps an emptied frame for the next write, if there is a place for it.
fn keep(queue: &mut Queue, emptied: &mut Option<Frame>) {
    // The vector was made with room for all of them: nothing is allocated here.
    if queue.spare.len() < queue.spare.capacity() && queue.readers > 0 && queue.writers > 0 {
        queue.spare.extend(emptied.take());
    }
}
