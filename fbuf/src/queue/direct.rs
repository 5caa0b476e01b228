//! One copy: bytes that go from the writer's memory straight into that of a reader who waits, past
//! the empty queue.
//!
//! A reader that would sleep leaves word of its buffer ([`Queue::offer`]), and takes it back when
//! it has been woken ([`Queue::withdraw`]). A writer that finds the queue empty fills the buffer
//! once. No fault is resolved while the reader may not leave: a page of the writer's that is not
//! mapped is brought in between, and one of the reader's that cannot be written as it is ends the
//! copy. So all that the reader may have to wait for when it takes its word back is the copying of
//! some pages.

use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use abi::Result;
use nucleus::{PAGE_SIZE, VirtAddr, VirtRange, sync::Mutex, task};
use vm::{Map, Moved, Movement, PASSED_TOGETHER};

use super::{Added, Fill, Queue, State};
use crate::{
    counters::Counter,
    io::{Sink, Source, UserBuffers},
};

/// The buffer of a reader that waits.
struct Receiver {
    map: Arc<Map>,
    at: VirtAddr,
    len: usize,
}

impl Receiver {
    /// Copies the source's next bytes behind the first `done` ones, [`MOST`] at most, as far as the
    /// pages of both sides are mapped; returns how many.
    fn take(&self, done: usize, from: &mut UserBuffers) -> usize {
        let most = self.len.saturating_sub(done).min(from.left()).min(MOST);
        let range = VirtRange::new(self.at + done, self.at + done + most);
        self.map
            .write_mapped(range, |page, place| from.take_mapped(page, place))
    }
}

/// Bytes that are copied while the reader may not leave.
const MOST: usize = PASSED_TOGETHER * PAGE_SIZE;

/// Bytes from which on one copy is better than two even where two CPUs could share these, since the
/// reader is woken once. Measured: 256 KiB take 1.4 times as long, 1 MiB half as long.
const FOR_ALL_CPUS: usize = 512 << 10;

/// The place for one such reader.
pub(super) struct Waiting {
    /// The CPU that the reader ran on, plus one; 0 if there is none. Looked at without the lock.
    cpu: AtomicUsize,
    /// Bytes that were put into the buffer: it takes no more then.
    put: AtomicUsize,
    receiver: Mutex<Option<Receiver>>,
}

impl Waiting {
    pub(super) const fn new() -> Waiting {
        Waiting {
            cpu: AtomicUsize::new(0),
            put: AtomicUsize::new(0),
            receiver: Mutex::new(crate::rank::QUEUE_RECEIVER, None),
        }
    }
}

impl<S: State> Queue<S> {
    /// Offers a writer the buffer that a sink fills next, if that is worth it and no other reader
    /// does so; then the caller [withdraws](Queue::withdraw) it after it has waited.
    #[inline]
    pub fn offer(&self, to: &mut dyn Sink) -> bool {
        to.room() >= vm::least_direct() && self.offer_buffer(to)
    }

    #[inline(never)]
    fn offer_buffer(&self, to: &mut dyn Sink) -> bool {
        let target = to.program_memory().and_then(|memory| memory.target());
        let Some((at, len)) = target.filter(|&(_, len)| len >= vm::least_direct()) else {
            return false;
        };
        let Some(map) = vm::with_current(Arc::clone) else {
            return false;
        };
        let mut receiver = self.waiting.receiver.lock();
        if receiver.is_some() {
            return false;
        }
        self.waiting.put.store(0, Relaxed);
        *receiver = Some(Receiver { map, at, len });
        self.waiting.cpu.store(task::cpu() + 1, Release);
        true
    }

    /// Whether a reader's buffer is on offer, for which `bytes` are worth one copy by the writer.
    pub(super) fn is_awaited(&self, bytes: usize) -> bool {
        match self.waiting.cpu.load(Acquire) {
            0 => false,
            cpu if cpu == task::cpu() + 1 => true,
            _ => bytes >= FOR_ALL_CPUS || vm::movement() == Movement::Once,
        }
    }

    /// Whether bytes were put into the buffer that is on offer. The caller is woken as for bytes in
    /// the queue.
    #[inline]
    pub fn has_put(&self) -> bool {
        self.waiting.put.load(Acquire) > 0
    }

    /// Takes back the buffer of `to` that [`offer`](Queue::offer) offered; returns how many bytes
    /// were put there, which it has taken.
    pub fn withdraw(&self, to: &mut dyn Sink) -> usize {
        let (receiver, put) = {
            let mut receiver = self.waiting.receiver.lock();
            self.waiting.cpu.store(0, Relaxed);
            (receiver.take(), self.waiting.put.swap(0, Relaxed))
        };
        // The address space may end here, without the lock.
        drop(receiver);
        if put > 0
            && let Some(memory) = to.program_memory()
        {
            memory.skip(put);
        }
        put
    }

    /// Copies bytes into the buffer of a reader that waits, if there is one and the queue is empty;
    /// returns how many. The writing side is locked.
    #[inline(never)]
    pub(super) fn put<F: Fill<S>>(&self, from: &mut UserBuffers, call: &mut F) -> Result<usize> {
        if self.has_put() {
            return Ok(0);
        }
        {
            let mut chain = self.lock();
            if !chain.data.is_empty() || !call.may_put(chain.aside())? {
                return Ok(0);
            }
        }
        let mut total = 0;
        let mut has_brought = false;
        while from.left() > 0 {
            let n = match self.waiting.receiver.lock().as_ref() {
                // A reader that was interrupted may have left with some, and be back with a new
                // buffer.
                Some(receiver) if self.waiting.put.load(Relaxed) == total => {
                    let n = receiver.take(total, from);
                    // From here on the reader has them, whatever ends its wait.
                    self.waiting.put.store(total + n, Release);
                    n
                }
                _ => break,
            };
            total += n;
            // Either the receiver's buffer ends here, or one side's page is not mapped.
            if n < MOST && (n == 0 && has_brought || from.bring_in().is_err()) {
                break;
            }
            has_brought = n < MOST;
        }
        if total > 0 {
            Counter::bytes_put.add(total as u64);
            vm::count_moved(S::CALLS[0], Moved::Put, total);
            vm::count_moved(S::CALLS[1], Moved::Put, total);
            let mut chain = self.lock();
            let at = chain.end();
            chain.taken += total as u64;
            let is_end = from.left() == 0;
            let len = total;
            call.put(&mut chain, Added { at, len, is_end });
        }
        Ok(total)
    }
}

