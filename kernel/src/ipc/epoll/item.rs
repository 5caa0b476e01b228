//! One watch of an epoll.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};

use core::{
    any::Any,
    sync::atomic::{
        AtomicBool, AtomicU64, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use abi::{
    Result,
    raw::general::{EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, EPOLLWAKEUP},
};
use fs::{File, Ready as Bits};
use nucleus::{
    sync::{Mutex, Rank, SpinLock},
    task::{Observation, Observer},
};
use vm::account::Charge;

use super::{
    Epoll,
    nesting::{Nesting, Node},
    ready::Ready,
};
use crate::process::files::{Attached, AttachedList, OpenFile, attach};

/// How an item is triggered, rather than by what.
const MODES: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;

/// The events that a program is interested in, and the data that it gets with them (`struct
/// epoll_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// `EPOLL*`: readiness, and how it triggers.
    pub events: u32,
    /// Handed back with each event.
    pub data: u64,
}

impl Interest {
    pub(super) fn ready(self) -> Bits {
        Bits::from_bits_truncate(self.events & !MODES)
    }

    pub(super) fn has(self, mode: u32) -> bool {
        self.events & mode != 0
    }

    /// The interest of a one-shot watch after it fired: nothing until it is changed.
    pub(super) fn spent(self) -> Interest {
        Interest {
            events: self.events & MODES,
            ..self
        }
    }

    pub(super) fn is_spent(self) -> bool {
        self.events & !MODES == 0
    }
}

/// Which of an epoll's watches: the open file description and the descriptor by which it was added.
pub(super) type Key = (usize, i32);

/// The key of a description under a descriptor.
pub(super) fn key(open: &Arc<OpenFile>, fd: i32) -> Key {
    (Arc::as_ptr(open).addr(), fd)
}

/// A watch. What it owns besides memory is taken out by [`retire`](Item::retire).
pub(super) struct Item {
    pub key: Key,
    /// Where it stands in the ready list.
    pub place: u32,
    ready: Arc<Ready>,
    /// The epoll among those that watch each other.
    pub node: Arc<Node>,
    /// Whether the epoll that is watched knows of this watch.
    nested: AtomicBool,
    epoll: Weak<Epoll>,
    pub open: Weak<OpenFile>,
    /// The watches of the description, this one among them.
    pub watches: Arc<AttachedList>,
    /// Taken away when the description or the watch ends.
    file: Mutex<Option<Arc<dyn File>>>,
    observations: SpinLock<Vec<Observation>>,
    /// How many queues are observed.
    queues: AtomicUsize,
    /// Its place among what is attached to the description; [`NOWHERE`] until it has one.
    attached: AtomicUsize,
    /// The round of a check in which its file was seen [changed under `NESTING`].
    pub checked: AtomicU64,
    charge: SpinLock<Option<Charge>>,
}

const NOWHERE: usize = usize::MAX;

impl Item {
    /// A watch by `epoll` of `open`; `key` and `place` as in the fields.
    pub fn new(
        key: Key,
        place: u32,
        epoll: &Epoll,
        open: &Arc<OpenFile>,
        charge: Charge,
    ) -> Arc<Item> {
        Arc::new(Item {
            key,
            place,
            ready: epoll.ready.clone(),
            node: epoll.node.clone(),
            nested: AtomicBool::new(false),
            epoll: epoll.me.clone(),
            open: Arc::downgrade(open),
            watches: open.attached().clone(),
            file: Mutex::new(crate::rank::EPOLL, Some(open.file().clone())),
            observations: SpinLock::new(Rank::Leaf, Vec::new()),
            queues: AtomicUsize::new(0),
            attached: AtomicUsize::new(NOWHERE),
            checked: AtomicU64::new(0),
            charge: SpinLock::new(Rank::Leaf, Some(charge)),
        })
    }

    /// Returns the readiness of the file now; nothing once it is closed.
    pub fn poll(&self) -> Bits {
        let file = self.file.lock_nested();
        file.as_ref().map_or(Bits::empty(), |file| file.poll(None))
    }

    /// Keeps what makes wake-ups come.
    pub fn observe(&self, observations: Vec<Observation>) {
        self.queues.store(observations.len(), Relaxed);
        *self.observations.lock() = observations;
    }

    /// Has the watch told when the description goes away.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn attach(self: &Arc<Self>) -> Result<()> {
        self.attached
            .store(attach(&self.watches, self.clone())?, SeqCst);
        Ok(())
    }

    /// Takes back an [`attach`](Item::attach); once.
    pub fn detach(&self) {
        let place = self.attached.swap(NOWHERE, SeqCst);
        if place != NOWHERE {
            let own = self.watches.lock().remove(place);
            drop(own);
        }
    }

    /// Tells `inner`, the epoll that is watched, until the watch is retired.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn nest(&self, nesting: &Nesting, inner: &Epoll) -> Result<()> {
        inner.node.watched_by(nesting, &self.node)?;
        self.nested.store(true, SeqCst);
        Ok(())
    }

    /// Calls `f` with the epoll that is watched, if it is one and not closed.
    pub fn with_inner<R>(&self, f: impl FnOnce(&Epoll) -> R) -> Option<R> {
        let file = self.file.lock_nested();
        let file: &dyn Any = file.as_deref()?;
        file.downcast_ref().map(f)
    }

    /// Whether a wake-up of this one of the file's queues may be news for `interest`: a file that
    /// has two is read when the first is woken, and written when the second is.
    fn is_news(&self, queue: u8, interest: Interest) -> bool {
        const WRITING: Bits = Bits::OUT.union(Bits::WRNORM).union(Bits::WRBAND);
        let ends = Bits::ERR | Bits::HUP | Bits::NVAL;
        let wanted = interest.ready() - ends;
        let queues = self.queues.load(Relaxed);
        match queue {
            _ if queues != 2 || wanted.is_empty() => true,
            0 => !(wanted - WRITING).is_empty(),
            _ => wanted.intersects(WRITING),
        }
    }

    /// The watch is over: ends wake-ups and gives everything back but memory.
    pub fn retire(&self) {
        let observations = core::mem::take(&mut *self.observations.lock());
        drop(observations);
        let charge = self.charge.lock().take();
        drop(charge);
        // Under the lock: after a description has been through here, no other handle of the file
        // exists in a watch. The description still holds its own, so this is not the last.
        let mut file = self.file.lock_nested();
        let any = file.as_deref().map(|file| file as &dyn Any);
        if let Some(inner) = any.and_then(|any| any.downcast_ref::<Epoll>())
            && self.nested.swap(false, SeqCst)
        {
            inner.node.unwatched_by(&self.node);
        }
        *file = None;
    }
}

impl Observer for Item {
    fn woken(&self, queue: u8) -> bool {
        self.ready
            .note(self, |interest| self.is_news(queue, interest))
    }
}

impl Attached for Item {
    fn released(&self) {
        // First, so that no other handle of the file outlives the description's.
        self.retire();
        if let Some(epoll) = self.epoll.upgrade() {
            epoll.forget(self);
        }
    }
}
