//! The ready list: a place for every watch, and those that may be ready in a chain through the
//! places.
//!
//! Places are made when a watch is added, so that a wake-up links without an allocation and
//! a watch anywhere in the chain is unlinked in a few steps.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::mem;

use abi::Result;
use nucleus::{
    sync::{SpinIrqGuard, SpinLock},
    task::WaitQueue,
};

use super::item::{Interest, Item};

/// Places that are made together: the largest number that the heap's slabs hold.
const CHUNK: usize = 51;

const NONE: u32 = u32::MAX;

/// The state that the watches of an epoll share with it, and that a wake-up needs.
pub(super) struct Ready {
    list: SpinLock<List>,
    /// Threads in `epoll_wait`.
    pub waiters: WaitQueue,
    /// Waiters of the epoll itself.
    pub pollers: WaitQueue,
}

struct List {
    /// Boxed: the list of chunks grows without moving them.
    #[allow(clippy::vec_box)]
    chunks: Vec<Box<[Place; CHUNK]>>,
    /// Places below are in use or in the chain of free ones.
    made: u32,
    free: u32,
    first: u32,
    last: u32,
    /// Places from `first` to `last`.
    len: usize,
}

struct Place {
    item: Option<Arc<Item>>,
    interest: Interest,
    listed: bool,
    prev: u32,
    /// The next of the chain, or of the free places.
    next: u32,
}

/// A watch taken off the list, and its interest.
pub(super) struct Taken {
    pub item: Arc<Item>,
    pub interest: Interest,
}

const EMPTY: Place = Place {
    item: None,
    interest: Interest { events: 0, data: 0 },
    listed: false,
    prev: NONE,
    next: NONE,
};

impl Ready {
    pub fn new() -> Arc<Ready> {
        Arc::new(Ready {
            list: SpinLock::new(
                crate::rank::READY,
                List {
                    chunks: Vec::new(),
                    made: 0,
                    free: NONE,
                    first: NONE,
                    last: NONE,
                    len: 0,
                },
            ),
            waiters: WaitQueue::new(),
            pollers: WaitQueue::new(),
        })
    }

    fn lock(&self) -> SpinIrqGuard<'_, List> {
        self.list.lock_irq()
    }

    /// A place for a new watch.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&self) -> Result<u32> {
        let mut list = self.lock();
        if list.free != NONE {
            let at = list.free;
            list.free = list.at(at).next;
            return Ok(at);
        }
        let at = list.made;
        if at as usize == list.chunks.len() * CHUNK {
            // Wake-ups wait while this is made: 2 KiB, out of the CPU's own cache.
            list.chunks.try_reserve(1)?;
            list.chunks.push(Box::new([EMPTY; CHUNK]));
        }
        list.made += 1;
        Ok(at)
    }

    /// Puts a watch into its place: from now on wake-ups count.
    pub fn enter(&self, item: &Arc<Item>, interest: Interest) {
        let mut list = self.lock();
        let place = list.at(item.place);
        place.item = Some(item.clone());
        place.interest = interest;
    }

    /// Gives a place back, and what stood in it.
    pub fn leave(&self, at: u32) -> Option<Arc<Item>> {
        let mut list = self.lock();
        list.unlink(at);
        let item = list.at(at).item.take();
        let free = mem::replace(&mut list.free, at);
        list.at(at).next = free;
        item
    }

    /// Returns the interest of the watch in this place.
    pub fn interest(&self, at: u32) -> Interest {
        self.lock().at(at).interest
    }

    /// Changes the interest of the watch in this place.
    pub fn set_interest(&self, at: u32, interest: Interest) {
        self.lock().at(at).interest = interest;
    }

    /// The watch may be ready: puts it at the end of the list and wakes a thread that waits for
    /// events. Not in interrupt context. Returns whether there was one that had nothing to look at
    /// before, and the wake-up is news for the watch's interest.
    pub fn note(&self, item: &Item, is_news: impl FnOnce(Interest) -> bool) -> bool {
        let (interest, was_empty) = {
            let mut list = self.lock();
            let place = list.at(item.place);
            let current = place
                .item
                .as_ref()
                .is_some_and(|own| core::ptr::eq(&**own, item));
            // The place may be another watch's by now, and one that fired once waits for a change.
            if !current || place.interest.is_spent() {
                return false;
            }
            let interest = place.interest;
            let was_empty = list.len == 0;
            list.link(item.place, false);
            (interest, was_empty)
        };
        let woken = self.waiters.wake_one();
        self.pollers.wake_all();
        // A thread that is about to look at the list, rather than asleep, counts once: an earlier
        // event is what it finds.
        woken && was_empty && is_news(interest)
    }

    /// Puts a watch that is still ready back at the end.
    pub fn put_back(&self, item: &Item) {
        self.lock().link(item.place, false);
    }

    /// Puts a watch back in front.
    pub fn put_back_first(&self, item: &Item) {
        self.lock().link(item.place, true);
    }

    /// Takes off the first of the list.
    pub fn take(&self) -> Option<Taken> {
        let mut list = self.lock();
        while list.first != NONE {
            let at = list.first;
            list.unlink(at);
            let place = list.at(at);
            if let Some(item) = &place.item {
                return Some(Taken {
                    item: item.clone(),
                    interest: place.interest,
                });
            }
        }
        None
    }

    pub fn len(&self) -> usize {
        self.lock().len
    }
}

impl List {
    fn at(&mut self, place: u32) -> &mut Place {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    /// Puts a place in front of the list or at its end, unless it is listed.
    fn link(&mut self, at: u32, in_front: bool) {
        if mem::replace(&mut self.at(at).listed, true) {
            return;
        }
        let (prev, next) = match in_front {
            true => (NONE, self.first),
            false => (self.last, NONE),
        };
        let place = self.at(at);
        (place.prev, place.next) = (prev, next);
        match prev {
            NONE => self.first = at,
            prev => self.at(prev).next = at,
        }
        match next {
            NONE => self.last = at,
            next => self.at(next).prev = at,
        }
        self.len += 1;
    }

    fn unlink(&mut self, at: u32) {
        let place = self.at(at);
        if !mem::replace(&mut place.listed, false) {
            return;
        }
        let (prev, next) = (place.prev, place.next);
        match prev {
            NONE => self.first = next,
            prev => self.at(prev).next = next,
        }
        match next {
            NONE => self.last = prev,
            next => self.at(next).prev = prev,
        }
        self.len -= 1;
    }
}
