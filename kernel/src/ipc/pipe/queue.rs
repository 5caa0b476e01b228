//! The chain between the two ends of a pipe, and how many ends there are.

use alloc::{sync::Arc, vec::Vec};
use core::{
    ops::{Deref, DerefMut},
    sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use abi::{Errno, Result};
use fbuf::{Aggregate, Slice};
use fs::Ready;
use nucleus::{
    Frame, PAGE_SIZE, frame,
    sync::{Mutex, Rank, SpinGuard, SpinLock},
    task::WaitQueue,
};

use super::packets::Packets;

/// Slices that a new pipe takes: 64 KiB in whole pages, as on Linux.
pub const DEFAULT_SLOTS: usize = 16;
/// The most slices that `F_SETPIPE_SZ` allows: at first 1 MiB, Linux's `pipe-max-size`.
static MAX_SLOTS: AtomicUsize = AtomicUsize::new(256);
/// The most that this can be set to: 128 MiB.
const SLOTS_LIMIT: usize = 1 << 15;

/// The largest size in bytes that a pipe may be given.
pub fn max_size() -> usize {
    MAX_SLOTS.load(Relaxed) * PAGE_SIZE
}

/// Sets [`max_size`], rounded up to a power of two of pages.
///
/// # Errors
/// `EINVAL` for less than a page, or more than a pipe can ever have.
pub fn set_max_size(bytes: usize) -> Result<()> {
    let slots = bytes.div_ceil(PAGE_SIZE).next_power_of_two();
    if bytes < PAGE_SIZE || slots > SLOTS_LIMIT {
        return Err(Errno::EINVAL);
    }
    MAX_SLOTS.store(slots, Relaxed);
    Ok(())
}
/// Room that a chain has above its slots: what is put back in front after a failed splice is not lost.
pub(super) const ABOVE_SLOTS: usize = 2;
/// Writes of up to this many bytes are not mixed with others.
pub const PIPE_BUF: usize = abi::raw::general::PIPE_BUF as usize;
/// Emptied frames that a pipe keeps for its writer, so that a frame need not travel through the
/// allocator from the reader's CPU to the writer's. Half of a full pipe: both sides then work at once.
const SPARE_FRAMES: usize = 8;

/// A pipe.
pub struct Pipe {
    queue: SpinLock<Queue>,
    /// [`Queue::ready`] as it was when the queue lock was last given back after a change. Written only by [`Locked`].
    ready: AtomicU32,
    /// Held by the one reader that takes bytes off. Never while waiting for bytes.
    pub(super) reading: Mutex<()>,
    /// Held by the one writer that adds bytes. Never while waiting for room.
    pub(super) writing: Mutex<Tail>,
    /// Readers that wait for bytes, and opens that wait for a writer.
    pub(super) readers: WaitQueue,
    /// Writers that wait for room, and opens that wait for a reader.
    pub(super) writers: WaitQueue,
    /// There may be packets in the chain.
    pub(super) has_packets: AtomicBool,
    inode: u64,
}

/// What the queue lock guards.
pub(super) struct Queue {
    pub data: Aggregate,
    /// Slices that fit.
    pub slots: usize,
    /// Open reading ends.
    pub readers: usize,
    /// Open writing ends.
    pub writers: usize,
    /// Reading ends that were ever opened.
    readers_seen: u64,
    /// Writing ends that were ever opened.
    writers_seen: u64,
    /// Emptied frames with no other handle.
    pub spare: Vec<Frame>,
    /// Which bytes are packets.
    pub packets: Packets,
}

/// The frame that the last small write went to.
pub(super) struct Tail {
    pub frame: Option<Frame>,
    /// Bytes of it that slices show or have shown since it was last empty.
    pub used: usize,
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
    /// Slices in it.
    pub slices: usize,
    /// Slices that fit.
    pub slots: usize,
    pub readers: usize,
    pub writers: usize,
    /// Counts of opens since the pipe was made.
    pub readers_seen: u64,
    pub writers_seen: u64,
}

impl Status {
    /// Whether another slice fits.
    pub fn has_slot(&self) -> bool {
        self.slices < self.slots
    }

    /// An empty chain with room for all that is in the pipe. Where that is much, it has all the room that a pipe's own chain
    /// has, so that the two can change places.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn room_for_all(&self) -> Result<Aggregate> {
        let mut chain = Aggregate::new();
        chain.reserve(match self.slices * 2 >= self.slots {
            true => self.slots + ABOVE_SLOTS,
            false => self.slices,
        })?;
        Ok(chain)
    }
}

/// Holds the queue lock. Who changed anything leaves the pipe's readiness anew, before the lock is free.
pub(super) struct Locked<'a> {
    ready: &'a AtomicU32,
    changed: bool,
    queue: SpinGuard<'a, Queue>,
}

impl Deref for Locked<'_> {
    type Target = Queue;
    #[inline]
    fn deref(&self) -> &Queue {
        &self.queue
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Queue {
        self.changed = true;
        &mut self.queue
    }
}

impl Locked<'_> {
    /// To change what readiness does not depend on: the spare frames.
    #[inline]
    pub fn aside(&mut self) -> &mut Queue {
        &mut self.queue
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.changed {
            self.ready.store(self.queue.ready().bits(), Release);
        }
    }
}

impl Queue {
    /// What is ready at the two ends: `IN` and `HUP` are the reading end's, `OUT` and `ERR` the writing one's. `HUP` is
    /// that there is no writer; whether there ever was one is for the end to say.
    #[inline]
    pub fn ready(&self) -> Ready {
        let when = |holds: bool, ready: Ready| match holds {
            true => ready,
            false => Ready::empty(),
        };
        when(!self.data.is_empty(), Ready::IN | Ready::RDNORM)
            | when(self.has_slot(), Ready::OUT | Ready::WRNORM)
            | when(self.readers == 0, Ready::ERR)
            | when(self.writers == 0, Ready::HUP)
    }

    pub fn has_slot(&self) -> bool {
        self.data.slice_count() < self.slots
    }

    pub fn free_slots(&self) -> usize {
        self.slots.saturating_sub(self.data.slice_count())
    }

    /// Takes the first slice off, or `max` bytes of it.
    pub fn take_slice(&mut self, max: usize) -> Option<Slice> {
        let slice = self.data.take_slice(max)?;
        self.packets.first += slice.len as u64;
        Some(slice)
    }

    /// Whether the chain ends with bytes of `tail` that can be continued in place.
    pub fn continues(&self, tail: &Tail) -> bool {
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
        data.reserve(DEFAULT_SLOTS + ABOVE_SLOTS)?;
        let mut spare = Vec::new();
        spare
            .try_reserve_exact(SPARE_FRAMES)
            .map_err(|_| Errno::ENOMEM)?;
        let queue = Queue {
            data,
            slots: DEFAULT_SLOTS,
            readers: 0,
            writers: 0,
            readers_seen: 0,
            writers_seen: 0,
            spare,
            packets: Packets::default(),
        };
        Ok(Arc::new(Pipe {
            ready: AtomicU32::new(queue.ready().bits()),
            queue: SpinLock::new(Rank::Leaf, queue),
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
            has_packets: AtomicBool::new(false),
            inode: INODES.fetch_add(1, Relaxed),
        }))
    }

    /// The number that `stat` and `/proc/PID/fd` show.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Takes the queue lock.
    #[inline]
    pub(super) fn lock(&self) -> Locked<'_> {
        self.locked(self.queue.lock())
    }

    /// Takes the queue locks of two pipes, which are not the same one.
    pub(super) fn lock_pair<'a>(a: &'a Pipe, b: &'a Pipe) -> (Locked<'a>, Locked<'a>) {
        let (first, second) = SpinLock::lock_pair(&a.queue, &b.queue);
        (a.locked(first), b.locked(second))
    }

    #[inline]
    fn locked<'a>(&'a self, queue: SpinGuard<'a, Queue>) -> Locked<'a> {
        Locked {
            ready: &self.ready,
            changed: false,
            queue,
        }
    }

    /// What is ready at the two ends, as [`Queue::ready`] says, without the queue lock.
    ///
    /// Who sleeps after a look of this kind loses no wake-up, if it was in the wait queue (as a waiter or by an
    /// observer) *before* and registered by a look under the lock. Whoever changes the pipe stores the new readiness, gives the
    /// queue lock back, and then takes the lock of the wait queue (or of the observers and the list that they fill). Either that
    /// comes after the looker's own hold of it, and then finds the looker there and wakes it; or before, and
    /// then what was stored is seen by this load, which comes after the looker's hold. `WaitQueue` itself argues why
    /// a wake-up that finds nobody enlisted may leave its lock alone.
    #[inline]
    pub(super) fn ready(&self) -> Ready {
        Ready::from_bits_retain(self.ready.load(Acquire))
    }

    /// The state now.
    pub fn status(&self) -> Status {
        let queue = self.lock();
        Status {
            bytes: queue.data.len(),
            slices: queue.data.slice_count(),
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
        let mut queue = self.lock();
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
        let mut queue = self.lock();
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
                let mut queue = self.lock();
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
    /// `EBUSY` if more is in it, `EINVAL` for more than 2 GiB, `EPERM` above [`max_size`], `ENOMEM`.
    pub fn resize(&self, bytes: usize) -> Result<usize> {
        if bytes > 1 << 31 {
            return Err(Errno::EINVAL);
        }
        let slots = bytes.div_ceil(PAGE_SIZE).max(1).next_power_of_two();
        if slots > MAX_SLOTS.load(Relaxed) {
            return Err(Errno::EPERM);
        }
        let _reading = self.reading.lock();
        let _writing = self.writing.lock();
        let mut bigger = Aggregate::new();
        bigger.reserve(slots + ABOVE_SLOTS)?;
        let mut queue = self.lock();
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
}

/// Keeps an emptied frame for the next write, if there is a place for it.
pub(super) fn keep(queue: &mut Queue, emptied: &mut Option<Frame>) {
    // The vector was made with room for all of them: nothing is allocated here.
    if queue.spare.len() < queue.spare.capacity() && queue.readers > 0 && queue.writers > 0 {
        queue.spare.extend(emptied.take());
    }
}
