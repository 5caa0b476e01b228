//! One watch of an epoll.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};

use abi::raw::general::{EPOLLET, EPOLLEXCLUSIVE, EPOLLONESHOT, EPOLLWAKEUP};
use fs::{File, Ready as Bits};
use nucleus::{
    sync::{Mutex, Rank, SpinLock},
    task::{Observation, Observer},
};

use super::{Epoll, ready::Ready};
use crate::{
    ipc::quota::Charge,
    process::files::{Attached, OpenFile},
};

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
    epoll: Weak<Epoll>,
    pub open: Weak<OpenFile>,
    /// Taken away when the description or the watch ends.
    file: Mutex<Option<Arc<dyn File>>>,
    observations: SpinLock<Vec<Observation>>,
    charge: SpinLock<Option<Charge>>,
}

impl Item {
    pub fn new(
        key: Key,
        place: u32,
        ready: Arc<Ready>,
        epoll: Weak<Epoll>,
        open: &Arc<OpenFile>,
        charge: Charge,
    ) -> Arc<Item> {
        Arc::new(Item {
            key,
            place,
            ready,
            epoll,
            open: Arc::downgrade(open),
            file: Mutex::new(crate::rank::EPOLL, Some(open.file().clone())),
            observations: SpinLock::new(Rank::Leaf, Vec::new()),
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
        *self.observations.lock() = observations;
    }

    /// The watch is over: ends wake-ups and gives everything back but memory.
    pub fn retire(&self) {
        let observations = core::mem::take(&mut *self.observations.lock());
        drop(observations);
        let charge = self.charge.lock().take();
        drop(charge);
        // Under the lock: after a description has been through here, no other handle of the file
        // exists in a watch. The description still holds its own, so this is not the last.
        *self.file.lock_nested() = None;
    }

    /// Calls `f` with the file; true if it is closed.
    pub fn with_file(&self, f: impl FnOnce(&dyn File) -> bool) -> bool {
        self.file.lock_nested().as_deref().is_none_or(f)
    }
}

impl Observer for Item {
    fn woken(&self) -> bool {
        self.ready.note(self)
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
