//! A pipe: its queue, and the tasks that wait for it.

use alloc::sync::Arc;
use core::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use abi::{Errno, Result};
use fbuf::queue::{Queue, Reading, State};
use fs::Ready;
use nucleus::{
    PAGE_SIZE, frame,
    task::{Sleep, WaitQueue},
    time,
};

use vm::account::{self, Charge, Kind, Stock};

use super::{
    limits::{self, DEFAULT_SLOTS, slots_for},
    state::{Ends, PipeState, PipeStatus},
    transfer::with_signal,
};
use crate::process::{signal, thread};

pub struct Pipe {
    pub(super) queue: Queue<PipeState>,
    /// Readers that wait for bytes, and opens that wait for a writer.
    pub(super) readers: WaitQueue,
    /// Writers that wait for room, and opens that wait for a reader.
    pub(super) writers: WaitQueue,
    /// A file writes slices that a splice gave it and that stay in the queue. `Queue::reading`
    pub(super) is_lent: AtomicBool,
    /// Readers that wait for the end of that.
    pub(super) loans: WaitQueue,
    /// The number that `stat` and `/proc/PID/fd` show.
    pub(super) inode: u64,
    /// When it was made, since the epoch.
    pub(super) created: Duration,
    /// The user and the group of its maker, who may open it again through `/proc/PID/fd`.
    pub(super) owner: (u32, u32),
}

impl Pipe {
    /// Makes an empty pipe without ends, charged to the current process and owned by its user.
    ///
    /// # Errors
    /// `ENFILE` beyond the hard limit of the process's user, `ENOMEM`.
    pub fn new() -> Result<Arc<Pipe>> {
        Pipe::owned_by(thread::current_owner())
    }

    /// As [`new`](Pipe::new), owned by this user and group.
    pub(super) fn owned_by(owner: (u32, u32)) -> Result<Arc<Pipe>> {
        static INODES: AtomicU64 = AtomicU64::new(1);
        frame::check_not_scarce()?;
        let account = account::current();
        let charge = account.as_ref().map(limits::charge).transpose()?;
        let state = PipeState {
            slots: charge.as_ref().map_or(DEFAULT_SLOTS, Charge::things),
            charge,
            ..PipeState::default()
        };
        Ok(Arc::new(Pipe {
            queue: Queue::with_slots(state, Stock::new(account, Kind::Pipes))?,
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            is_lent: AtomicBool::new(false),
            loans: WaitQueue::new(),
            inode: INODES.fetch_add(1, Relaxed),
            created: time::since_epoch(),
            owner,
        }))
    }

    /// Returns what is ready at the two ends, without a lock: [`Queue::ready`] says when a thread
    /// may sleep after it.
    #[inline]
    pub(super) fn ready(&self) -> Ready {
        Ready::from_bits_retain(self.queue.ready())
    }

    /// As [`ready`](Pipe::ready), under the lock: later changes see what was registered before.
    pub(super) fn ready_locked(&self) -> Ready {
        Ready::from_bits_retain(PipeState::ready(&self.queue.lock()))
    }

    pub fn status(&self) -> PipeStatus {
        PipeStatus::of(&self.queue.lock())
    }

    /// Waits until no other reader takes bytes off: one that copies, or a splice whose file may
    /// sleep for long, so signals end that wait. As on Linux, readers that shall not wait for bytes
    /// do wait here.
    ///
    /// # Errors
    /// A restart number.
    #[inline]
    pub(super) fn lock_reading(&self) -> Result<Reading<'_>> {
        loop {
            let reading = self.queue.lock_reading();
            if !self.is_lent.load(Relaxed) {
                return Ok(reading);
            }
            drop(reading);
            self.wait_for_loan()?;
        }
    }

    #[cold]
    fn wait_for_loan(&self) -> Result<()> {
        let is_over = || (!self.is_lent.load(Relaxed)).then_some(());
        self.loans
            .wait(Sleep::INTERRUPTIBLE, is_over)
            .map_err(signal::woken)
    }

    /// Waits until there are bytes; `None` at the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN` without `wait`, a restart number.
    pub(super) fn await_bytes(&self, wait: bool) -> Result<Option<PipeStatus>> {
        self.await_bytes_or(wait, || false)
    }

    /// As [`await_bytes`](Self::await_bytes), or until `is_over`, which is as good as the end.
    pub(super) fn await_bytes_or(
        &self,
        wait: bool,
        is_over: impl Fn() -> bool,
    ) -> Result<Option<PipeStatus>> {
        signal::take_or_wait(&self.readers, wait, || {
            let status = self.status();
            let is_over = status.writers == 0 || is_over();
            (status.bytes > 0 || is_over).then(|| Some(status).filter(|it| it.bytes > 0))
        })
    }

    /// Waits until another slice fits.
    ///
    /// # Errors
    /// `EPIPE` without a reader, and SIGPIPE is sent; `EAGAIN` without `wait`, a restart number.
    pub(super) fn await_slot(&self, wait: bool) -> Result<PipeStatus> {
        let status = self.await_slot_or(wait, || false)?;
        match status.readers {
            0 => Err(with_signal(Errno::EPIPE)),
            _ => Ok(status),
        }
    }

    /// Waits until another slice fits, there is no reader, or `is_over`.
    ///
    /// # Errors
    /// `EAGAIN` without `wait`, a restart number.
    pub(super) fn await_slot_or(
        &self,
        wait: bool,
        is_over: impl Fn() -> bool,
    ) -> Result<PipeStatus> {
        signal::take_or_wait(&self.writers, wait, || {
            Some(self.status()).filter(|it| it.has_slot() || it.readers == 0 || is_over())
        })
    }

    /// Sleeps in `queue`, one of the pipe's, until `is_ready` holds.
    ///
    /// # Errors
    /// A restart number.
    pub(super) fn wait(
        &self,
        queue: &WaitQueue,
        is_ready: impl Fn(PipeStatus) -> bool,
    ) -> Result<()> {
        queue
            .wait(Sleep::INTERRUPTIBLE, || {
                is_ready(self.status()).then_some(())
            })
            .map_err(signal::woken)
    }

    /// Counts one more open file with these ends; returns what there was before.
    pub fn open(&self, ends: Ends) -> PipeStatus {
        let before = {
            let mut chain = self.queue.lock();
            let before = PipeStatus::of(&chain);
            let state = &mut chain.state;
            state.readers += usize::from(ends.reads);
            state.readers_seen += u64::from(ends.reads);
            state.writers += usize::from(ends.writes);
            state.writers_seen += u64::from(ends.writes);
            before
        };
        if ends.reads {
            self.writers.wake_all();
        }
        if ends.writes {
            self.readers.wake_all();
        }
        before
    }

    /// Counts one open file with these ends less. The last one of all drops the bytes.
    pub fn close(&self, ends: Ends) {
        let (readers, writers, holds_frames) = {
            let mut chain = self.queue.lock();
            let state = &mut chain.state;
            state.readers -= usize::from(ends.reads);
            state.writers -= usize::from(ends.writes);
            (state.readers, state.writers, chain.holds_frames())
        };
        if readers + writers == 0 && holds_frames {
            self.queue
                .discard(|state| state.readers + state.writers == 0);
        }
        if readers == 0 {
            self.writers.wake_all();
        }
        if writers == 0 {
            self.readers.wake_all();
        }
    }

    /// Changes the capacity to at least `bytes`, in a power of two of pages; returns the new one.
    ///
    /// # Errors
    /// `EBUSY` if more is in it, `EINVAL` for more than 2 GiB, `EPERM` above the largest size
    /// that a pipe may be given, or beyond the limits of the user that it is charged to;
    /// `ENOMEM`, a restart number.
    pub fn resize(&self, bytes: usize) -> Result<usize> {
        let slots = slots_for(bytes)?;
        let reading = self.lock_reading()?;
        let more = limits::charge_more(&self.queue, slots)?;
        let resized = self.queue.resize(&reading, slots, |state| {
            state.slots = slots;
            if let Some(charge) = &mut state.charge {
                charge.set_things(slots);
            }
        })?;
        drop(more);
        if !resized {
            return Err(Errno::EBUSY);
        }
        self.writers.wake_all();
        Ok(slots * PAGE_SIZE)
    }
}
