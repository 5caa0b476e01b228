//! Commands to a disk: one request, or several neighbours.

use alloc::{boxed::Box, sync::Arc};
use core::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use abi::{Errno, Result};
use nucleus::{
    dma::Part,
    sync::{Rank, SpinLock},
    task::WaitQueue,
};

use super::{Done, Operation, Request, worker::Core};

/// The receiver of a request's completion.
pub(super) enum Completion {
    /// A sleeping task; woken in any context.
    Wake(Arc<Sleeper>),
    /// Called in the device's task.
    Call(Done),
    /// One of several pieces of a request.
    Piece(Arc<Pieces>),
}

/// A task that waits for its request.
pub(crate) struct Sleeper {
    result: SpinLock<Option<Result<()>>>,
    woken: WaitQueue,
}

impl Sleeper {
    pub(crate) fn new() -> Arc<Sleeper> {
        Arc::new(Sleeper {
            result: SpinLock::new(Rank::Leaf, None),
            woken: WaitQueue::new(),
        })
    }

    #[track_caller]
    pub(crate) fn wait(&self) -> Result<()> {
        self.woken.wait_soundly(|| *self.result.lock())
    }

    pub(crate) fn tell(&self, result: Result<()>) {
        *self.result.lock() = Some(result);
        self.woken.wake_all();
    }
}

/// A request that was too large for one command.
pub(super) struct Pieces {
    left: AtomicUsize,
    /// The first error, and the receiver of the completion.
    state: SpinLock<(Result<()>, Option<Completion>)>,
}

impl Pieces {
    pub(super) fn new(count: usize, completion: Completion) -> Arc<Pieces> {
        Arc::new(Pieces {
            left: AtomicUsize::new(count),
            state: SpinLock::new(Rank::Leaf, (Ok(()), Some(completion))),
        })
    }

    /// Ends one piece. For the last one, returns the result of all and the receiver.
    fn done(&self, result: Result<()>) -> Option<(Result<()>, Completion)> {
        if result.is_err() {
            let mut state = self.state.lock();
            state.0 = state.0.and(result);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return None;
        }
        let mut state = self.state.lock();
        let completion = state.1.take()?;
        Some((state.0, completion))
    }
}

/// A request, or a piece of one, in the queue, in a command, or done.
pub(super) struct Entry {
    pub(super) request: Request,
    pub(super) completion: Option<Completion>,
    pub(super) result: Result<()>,
    /// When it came.
    pub(super) since: Duration,
    /// It failed together with others: it is tried again without them.
    pub(super) alone: bool,
    next: Option<Box<Entry>>,
}

impl Entry {
    pub(super) fn new(request: Request, completion: Completion, since: Duration) -> Box<Entry> {
        Box::new(Entry {
            request,
            completion: Some(completion),
            result: Ok(()),
            since,
            alone: false,
            next: None,
        })
    }

    /// The sector after it.
    pub(super) fn end(&self) -> u64 {
        self.request.sector + self.request.sectors
    }

    /// Wakes a sleeping caller, and returns the entry if it is to be called in the device's task.
    pub(super) fn settle(mut self: Box<Entry>, result: Result<()>) -> Option<Box<Entry>> {
        let mut outcome = (result, self.completion.take()?);
        // Before the completion: after it all frames are the caller's again, those of other pieces,
        // too.
        self.request.parts.clear();
        while let Completion::Piece(pieces) = outcome.1 {
            outcome = pieces.done(outcome.0)?;
        }
        match outcome.1 {
            Completion::Wake(sleeper) => {
                sleeper.tell(outcome.0);
                None
            }
            completion => {
                self.result = outcome.0;
                self.completion = Some(completion);
                Some(self)
            }
        }
    }
}

/// Entries in a row; putting one in takes no memory.
#[derive(Default)]
pub(super) struct Entries {
    first: Option<Box<Entry>>,
    /// Those after `first`, last one first, so that both ends are near.
    reversed: Option<Box<Entry>>,
    count: usize,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn push(&mut self, mut entry: Box<Entry>) {
        self.count += 1;
        entry.next = self.reversed.take();
        self.reversed = Some(entry);
    }

    pub(super) fn pop(&mut self) -> Option<Box<Entry>> {
        self.turn();
        let mut entry = self.first.take()?;
        self.first = entry.next.take();
        self.count -= 1;
        Some(entry)
    }

    /// Reverses the pushed entries into their order when the others are used up.
    fn turn(&mut self) {
        if self.first.is_none() {
            let mut rest = self.reversed.take();
            while let Some(mut entry) = rest {
                rest = entry.next.take();
                entry.next = self.first.take();
                self.first = Some(entry);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Entry> {
        core::iter::successors(self.first.as_deref(), |entry| entry.next.as_deref())
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // One after the other, not one inside the other.
        while self.pop().is_some() {}
    }
}

/// A command to a disk. Dropped without [`finish`](Command::finish) it has failed.
pub struct Command {
    core: Arc<Core>,
    operation: Operation,
    sector: u64,
    sectors: u64,
    entries: Entries,
    /// When it left the queue.
    started: Duration,
}

impl Command {
    /// Makes one command of `entries`: neighbours with the same operation, or flushes.
    pub(super) fn new(core: Arc<Core>, mut entries: Entries, started: Duration) -> Command {
        entries.turn();
        let first = entries.iter().next().expect("a command has a request");
        Command {
            core,
            operation: first.request.operation,
            sector: first.request.sector,
            sectors: entries.iter().map(|entry| entry.request.sectors).sum(),
            entries,
            started,
        }
    }

    /// The operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The first sector; 0 for a flush.
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// How many sectors; 0 for a flush.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// The memory that is read or written, in the order of the sectors.
    pub fn parts(&self) -> impl Iterator<Item = &Part> {
        self.entries.iter().flat_map(|entry| &entry.request.parts)
    }

    /// When the disk got it, since boot.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// It is done. Any task, with no lock held that a request's [`Done`] or a sleeper may want.
    pub fn finish(mut self, result: Result<()>) {
        self.conclude(result);
    }

    fn conclude(&mut self, result: Result<()>) {
        let entries = core::mem::take(&mut self.entries);
        if !entries.is_empty() {
            self.core.conclude(self.operation, entries, result);
        }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        self.conclude(Err(Errno::EIO));
    }
}
