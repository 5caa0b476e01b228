//! The byte queue of pipes, TCP connections and Unix stream sockets: a chain of slices from one
//! writer to one reader at a time, never a byte ring.
//!
//! - this file: [`Queue`], its [`Chain`], and [`State`], which a kind of queue adds to the chain;
//! - `fill`: writing; [`Fill`] is one call that writes;
//! - `drain`: reading and peeking; [`Drain`] is one call that reads;
//! - `direct`: bytes that go past the empty queue, between the memory of two programs, one of which
//!   waits;
//! - `urgent`: the place of the byte sent with `MSG_OOB`;
//! - `splice`: slices that change queues without a copy;
//! - `front`: the first bytes, for a file that writes them while they stay in the queue;
//! - `ready`: the stored readiness that `poll` reads without a lock.
//!
//! A page of data comes in by [`Queue::fill`] or [`Queue::append`] and leaves by [`Queue::drain`],
//! [`Queue::pass`], or a [`Front`] and [`Queue::remove`]. Pages that a program lends
//! (`uvm.txt` 7) come in where `fill` asks its source for them, and pages leave by transfer where
//! `drain` finds places for them in its sink. Where a reader waits for bytes, or a writer for room,
//! `direct` passes the queue.
//!
//! Locks, in the order in which they are taken:
//!
//! ```text
//! reading (one reader at a time copies)      QUEUE_READING
//!    writing (one writer at a time copies)   QUEUE_WRITING
//!       receiving, sending (an offer's       QUEUE_OFFER
//!       buffer; never both)
//!       chain (slices and state)             Leaf, spinning, never held during a copy
//! ```
//! So a reader and a writer on two CPUs copy at the same time and meet only to link and unlink
//! slices. Bytes shown by a slice never change; the writer continues the last frame only behind
//! all bytes that any slice shows. Neither `reading` nor `writing` is held while its owner waits
//! for bytes or room. Frames are never freed under the chain's lock; the memory for slices may grow
//! under it, and its old part is freed there, as the heap allows.
//!
//! A kind of queue brings, without cost on the way of the others (every hook is inlined):
//!
//! | | pipe | TCP | Unix stream |
//! |---|---|---|---|
//! | limit | slices | bytes, and slices in proportion | the same |
//! | writer told | a slice fits again | a third is free | three quarters are free |
//! | reader told | not empty any more | below `SO_RCVLOWAT` before | each write |
//! | marks | packets | urgent byte | credentials, descriptors, urgent byte |

use alloc::boxed::Box;
use core::{
    mem,
    ops::{Deref, DerefMut},
    sync::atomic::{AtomicU32, Ordering::Release},
};

use nucleus::{
    Frame, PAGE_SIZE, frame,
    sync::{Mutex, MutexGuard, Rank, SpinGuard, SpinLock},
};
use vm::{TransferCall, account::Stock};

use crate::{
    aggregate::Aggregate,
    slice::{Slice, View},
};

mod direct;
mod drain;
mod fill;
mod front;
mod ready;
mod splice;
mod urgent;

use direct::Offer;
pub use drain::Drain;
pub use fill::{Added, Fill, Space};
pub use front::Front;
pub use splice::Slots;

/// Emptied frames that a queue keeps for its writer, so that they need not travel through the
/// allocator from the reader's CPU to the writer's: half of a full pipe, which lets both sides
/// work at once. By instructions, 4 costs bandwidth: 1.9% (`pipe/bandwidth-64KiB`) to 6.4%
/// (`unix-socket/stream-bandwidth-64KiB`). 16 gains 2.6% and 1.7%, but an emptied queue would keep
/// as much memory as a full pipe has.
const SPARE_FRAMES: usize = 8;

/// What a slice counts for at least in a queue limited by bytes: small pieces of pages that were
/// passed on hold whole frames.
const SLICE_BYTES: usize = PAGE_SIZE / 2;

/// What a kind of queue keeps with the chain, under its lock.
pub trait State: Sized {
    /// Whether [`ready`](State::ready) is stored after every change.
    const STORES_READY: bool = false;

    /// The calls that write and that read it.
    const CALLS: [TransferCall; 2];

    /// Returns what is ready, as bits of the kind's choice.
    fn ready(chain: &Chain<Self>) -> u32 {
        let _ = chain;
        0
    }

    /// Where emptied frames are kept: [`SpareFrames`], or `Option<Box<SpareFrames>>` where many
    /// queues keep none.
    type Spare: Spare;

    /// Returns whether an emptied frame is kept for the next write.
    fn keeps_frames(chain: &Chain<Self>) -> bool;
}

/// Bytes on their way from writers to readers.
pub struct Queue<S: State> {
    chain: SpinLock<Chain<S>>,
    /// [`State::ready`] as of the last release of the chain's lock after a change.
    ready: AtomicU32,
    /// Held by the reader that takes bytes off.
    reading: Mutex<()>,
    /// Held by the writer that adds bytes.
    writing: Mutex<Tail>,
    /// The buffer of a reader that waits for bytes.
    receiving: Offer,
    /// The bytes of a writer that waits for room.
    sending: Offer,
}

/// The slices of a queue, and the state of its kind. [chain's lock]
pub struct Chain<S: State> {
    /// The bytes.
    pub data: Aggregate,
    /// Bytes that were ever taken off: the position in the stream of the first byte.
    taken: u64,
    /// The position of the urgent place, until a read passes it.
    pub urgent: Option<u64>,
    /// Emptied frames without another handle.
    spare: S::Spare,
    /// For whom the frames are kept: covers slices and spare frames after each change.
    stock: Stock,
    /// What the kind of queue adds.
    pub state: S,
}

/// The frame of the last small write. [`writing`](Queue::writing)
struct Tail {
    frame: Option<Frame>,
    /// Bytes that slices show or have shown since the frame was last empty.
    used: usize,
}

/// Emptied frames of a queue.
pub type SpareFrames = Frames<SPARE_FRAMES>;

/// The place for emptied frames of a queue.
pub trait Spare: Default {
    /// Returns the frames; `None` if the queue keeps none.
    fn frames(&self) -> Option<&SpareFrames>;

    /// As [`frames`](Spare::frames), to change.
    fn frames_mut(&mut self) -> Option<&mut SpareFrames>;
}

impl Spare for SpareFrames {
    #[inline]
    fn frames(&self) -> Option<&SpareFrames> {
        Some(self)
    }

    #[inline]
    fn frames_mut(&mut self) -> Option<&mut SpareFrames> {
        Some(self)
    }
}

impl Spare for Option<Box<SpareFrames>> {
    #[inline]
    fn frames(&self) -> Option<&SpareFrames> {
        self.as_deref()
    }

    #[inline]
    fn frames_mut(&mut self) -> Option<&mut SpareFrames> {
        self.as_deref_mut()
    }
}

/// Up to `N` frames, without an allocation.
pub struct Frames<const N: usize> {
    frames: [Option<Frame>; N],
    count: usize,
}

/// The right to take bytes off a queue.
pub type Reading<'a> = MutexGuard<'a, ()>;

/// The chain, locked. Its release after a change stores the readiness anew.
pub struct Locked<'a, S: State> {
    ready: &'a AtomicU32,
    changed: bool,
    chain: SpinGuard<'a, Chain<S>>,
}

impl<S: State> Queue<S> {
    /// Makes an empty queue whose frames `stock` charges. Allocates nothing.
    #[inline]
    pub fn new(state: S, stock: Stock) -> Queue<S> {
        Queue::with(Aggregate::new(), state, stock)
    }

    #[inline]
    fn with(data: Aggregate, state: S, stock: Stock) -> Queue<S> {
        let chain = Chain {
            data,
            taken: 0,
            urgent: None,
            spare: S::Spare::default(),
            stock,
            state,
        };
        Queue {
            ready: AtomicU32::new(S::ready(&chain)),
            chain: SpinLock::new(Rank::Leaf, chain),
            reading: Mutex::new(crate::rank::QUEUE_READING, ()),
            writing: Mutex::new(crate::rank::QUEUE_WRITING, Tail::new()),
            receiving: Offer::new(),
            sending: Offer::new(),
        }
    }

    /// Decides where emptied frames are kept, before the queue is used.
    pub fn set_spare(&mut self, spare: S::Spare) {
        self.chain.get_mut().spare = spare;
    }

    /// Locks the chain.
    #[inline]
    pub fn lock(&self) -> Locked<'_, S> {
        self.locked(self.chain.lock())
    }

    /// Locks the chains of two queues, which are not the same one.
    fn lock_pair<'a>(a: &'a Queue<S>, b: &'a Queue<S>) -> (Locked<'a, S>, Locked<'a, S>) {
        let (first, second) = SpinLock::lock_pair(&a.chain, &b.chain);
        (a.locked(first), b.locked(second))
    }

    #[inline]
    fn locked<'a>(&'a self, chain: SpinGuard<'a, Chain<S>>) -> Locked<'a, S> {
        Locked {
            ready: &self.ready,
            changed: false,
            chain,
        }
    }

    /// Waits for other readers to be done. Not held while waiting for bytes.
    pub fn lock_reading(&self) -> Reading<'_> {
        self.reading.lock()
    }

    /// Frees what an empty queue that is limited by bytes keeps for its next ones: the frame of the
    /// last small write, emptied frames, and the places of slices. One that has bytes, or a writer
    /// at work, keeps all. Never waits, so locks of any rank may be held.
    pub fn trim(&self) {
        // A writer makes room for slices before it copies the bytes.
        let Some(mut tail) = self.writing.try_lock() else {
            return;
        };
        let (places, frame) = {
            let mut chain = self.lock();
            if !chain.data.is_empty() {
                return;
            }
            (mem::take(&mut chain.data), tail.frame.take())
        };
        tail.used = 0;
        drop((places, frame));
        loop {
            let spare = self.lock().pop_spare();
            if spare.is_none() {
                return;
            }
        }
    }

    /// Drops all bytes while `is_over` holds, frame by frame, so that none is freed under the
    /// spin lock. Returns whether there were any.
    ///
    /// The last reader is gone: one at work has come anew (a FIFO opened again), and keeps the
    /// bytes. Never waits, so locks of any rank may be held.
    pub fn discard(&self, is_over: impl Fn(&S) -> bool) -> bool {
        let mut any = false;
        let Some(_reading) = self.reading.try_lock() else {
            return any;
        };
        loop {
            let (slice, frame) = {
                let mut chain = self.lock();
                if !is_over(&chain.state) {
                    return any;
                }
                chain.urgent = None;
                (chain.take(usize::MAX), chain.pop_spare())
            };
            any |= slice.is_some();
            if slice.is_none() && frame.is_none() {
                return any;
            }
        }
    }
}

impl<S: State> Chain<S> {
    /// Returns the position in the stream of the first byte.
    pub fn start(&self) -> u64 {
        self.taken
    }

    /// Returns the position in the stream behind the last byte.
    pub fn end(&self) -> u64 {
        self.taken + self.data.len() as u64
    }

    /// Returns whether there is anything to [discard](Queue::discard).
    #[inline]
    pub fn holds_frames(&self) -> bool {
        !self.data.is_empty() || self.spare_count() > 0
    }

    /// Returns how many emptied frames are kept.
    #[inline]
    fn spare_count(&self) -> usize {
        self.spare.frames().map_or(0, |spare| spare.count)
    }

    /// Takes an emptied frame.
    #[inline]
    fn pop_spare(&mut self) -> Option<Frame> {
        self.spare.frames_mut()?.pop()
    }

    /// Returns how many more slices a queue takes that is limited to `limit` bytes: two for a page
    /// of the limit.
    #[inline]
    pub fn free_slots_within(&self, limit: usize) -> usize {
        let counted = self.data.slice_count() * SLICE_BYTES;
        limit.saturating_sub(counted).div_ceil(SLICE_BYTES)
    }

    /// Returns a handle of the first slice.
    #[inline]
    pub fn first(&self) -> Option<View> {
        self.data.slice(0).map(Slice::view)
    }

    /// Returns how many of the first slices, `most` at most, are whole pages that were lent. Frames
    /// of the queue's own are copied: the writer takes them again, while a page that leaves costs
    /// an allocation here, and a change of mappings there.
    pub fn lent_pages(&self, most: usize) -> usize {
        let is_lent = |slice: &&Slice| slice.is_page() && slice.frame().is_lent();
        self.data.slices().take(most).take_while(is_lent).count()
    }

    /// Returns how many of the first slices, `most` at most, are whole pages, lent or filled here.
    pub fn whole_pages(&self, most: usize) -> usize {
        let slices = self.data.slices().take(most);
        slices.take_while(|slice| slice.is_page()).count()
    }

    /// Returns how many bytes come before the first whole page. Without one among the first `most`
    /// slices, these are all that count.
    pub fn before_page(&self, most: usize) -> usize {
        let slices = self.data.slices().take(most);
        let before = slices.take_while(|slice| !slice.is_page());
        before.map(|slice| slice.len).sum()
    }

    /// Returns how many of the first `len` bytes come before and in their last whole page among the
    /// first `most` slices; 0 without one.
    pub fn to_page_end(&self, len: usize, most: usize) -> usize {
        let (mut at, mut end) = (0, 0);
        for slice in self.data.slices().take(most) {
            at += slice.len;
            if at > len {
                break;
            }
            if slice.is_page() {
                end = at;
            }
        }
        end
    }

    /// Whether the first slice is a whole page.
    #[inline]
    fn begins_page(&self) -> bool {
        self.data.slice(0).is_some_and(Slice::is_page)
    }

    /// Takes the first slice off, or `max` bytes of it.
    #[inline]
    pub fn take(&mut self, max: usize) -> Option<Slice> {
        let slice = self.data.take_slice(max)?;
        self.taken += slice.len as u64;
        Some(slice)
    }

    /// Takes off the first slice, or its first `n` bytes, which were copied; returns it if it is
    /// used up.
    #[inline]
    pub fn pass(&mut self, n: usize) -> Option<Slice> {
        self.taken += n as u64;
        self.data.pass(n)
    }

    /// Returns how many bytes `tail` can take behind the last slice, in its frame.
    #[inline]
    fn in_place(&self, tail: &Tail) -> usize {
        match (self.data.last(), &tail.frame) {
            (Some(last), Some(frame)) if last.end() == tail.used && *last.frame() == *frame => {
                PAGE_SIZE - tail.used
            }
            _ => 0,
        }
    }

    /// Keeps the frame of a slice that was taken off, unless it has another handle than this
    /// one and the reader's `copied`, which the reader is about to drop.
    #[inline]
    fn recycle(&mut self, taken: &mut Option<Slice>, copied: &View) {
        if let Some(slice) = taken
            && *slice.frame() == copied.frame
            && slice.more() == 0
            && slice.frame().handles() == 2
            && self.spare.frames().is_some_and(Frames::has_room)
            && S::keeps_frames(self)
            && !frame::is_scarce()
            && let Some(spare) = self.spare.frames_mut()
            && let Some(slice) = taken.take()
        {
            spare.push(slice.into_frame());
        }
    }
}

impl Tail {
    const fn new() -> Tail {
        Tail {
            frame: None,
            used: 0,
        }
    }

    /// Returns whether the frame has no other handle: no slice shows it, and all of it is free.
    #[inline]
    fn is_alone(&self) -> bool {
        let frame = self.frame.as_ref();
        frame.is_some_and(|frame| frame.handles() == 1)
    }

    /// Makes the whole frame free, or gives it up to a reader or another queue that shows it.
    #[inline]
    fn restart(&mut self) {
        if !self.is_alone() {
            self.frame = None;
        }
        self.used = 0;
    }
}

impl<const N: usize> Default for Frames<N> {
    #[inline]
    fn default() -> Frames<N> {
        Frames::new()
    }
}

impl<const N: usize> Frames<N> {
    /// Makes an empty set.
    #[inline]
    pub const fn new() -> Frames<N> {
        Frames {
            frames: [const { None }; N],
            count: 0,
        }
    }

    fn has_room(&self) -> bool {
        self.count < N
    }

    /// Adds a frame. There is room.
    fn push(&mut self, frame: Frame) {
        self.frames[self.count] = Some(frame);
        self.count += 1;
    }

    /// Takes up to `most` frames of another set, if there is one, as far as there is room.
    #[inline]
    fn fill_from<const M: usize>(&mut self, other: Option<&mut Frames<M>>, most: usize) {
        let Some(other) = other else { return };
        for _ in 0..most.min(N - self.count) {
            let Some(frame) = other.pop() else { return };
            self.push(frame);
        }
    }

    fn pop(&mut self) -> Option<Frame> {
        self.count = self.count.checked_sub(1)?;
        self.frames[self.count].take()
    }
}

impl<S: State> Locked<'_, S> {
    /// Gives access to the chain for a change that readiness does not depend on.
    #[inline]
    fn aside(&mut self) -> &mut Chain<S> {
        &mut self.chain
    }
}

impl<S: State> Deref for Locked<'_, S> {
    type Target = Chain<S>;
    #[inline]
    fn deref(&self) -> &Chain<S> {
        &self.chain
    }
}

impl<S: State> DerefMut for Locked<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Chain<S> {
        self.changed = true;
        &mut self.chain
    }
}

impl<S: State> Drop for Locked<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if self.changed {
            let chain = &*self.chain;
            chain
                .stock
                .cover(chain.data.frame_count() + chain.spare_count());
            if S::STORES_READY {
                self.ready.store(S::ready(chain), Release);
            }
        }
    }
}
