//! The ready list: a place for every watch, and those that may be ready in a chain through the
//! places.
//!
//! Places are made when a watch is added, so that a wake-up links without an allocation and
//! a watch anywhere in the chain is unlinked in a few steps.

use alloc::sync::Arc;
use core::mem;

use abi::Result;
use nucleus::{
    Slots,
    sync::{SpinIrqGuard, SpinLock},
    task::WaitQueue,
};

use super::item::{Interest, Item};

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
    places: Slots<Place>,
    first: u32,
    last: u32,
    /// Places from `first` to `last`.
    len: usize,
}

struct Place {
    /// The watch, once it is entered.
    item: Option<Arc<Item>>,
    /// The two of [`Interest`].
    events: u32,
    data: u64,
    listed: bool,
    prev: u32,
    next: u32,
}

// Several stand in one block of the heap, of at most half a frame.
const _: () = assert!(size_of::<Place>() == 32);

/// A watch taken off the list, and its interest.
pub(super) struct Taken {
    pub item: Arc<Item>,
    pub interest: Interest,
}

const EMPTY: Place = Place {
    item: None,
    events: 0,
    data: 0,
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
                    places: Slots::new(),
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
        let place = Slots::add_with(EMPTY, |empty, spare| self.lock().places.add(empty, spare))?;
        Ok(place as u32)
    }

    /// Puts a watch into its place: from now on wake-ups count.
    pub fn enter(&self, item: &Arc<Item>, interest: Interest) {
        let mut list = self.lock();
        let place = list.at(item.place);
        place.item = Some(item.clone());
        place.set_interest(interest);
    }

    /// Gives a place back, and what stood in it.
    pub fn leave(&self, at: u32) -> Option<Arc<Item>> {
        let mut list = self.lock();
        list.unlink(at);
        list.places.remove(at as usize)?.item
    }

    /// Returns the interest of the watch in this place.
    pub fn interest(&self, at: u32) -> Interest {
        self.lock().at(at).interest()
    }

    /// Changes the interest of the watch in this place.
    pub fn set_interest(&self, at: u32, interest: Interest) {
        self.lock().at(at).set_interest(interest);
    }

    /// The watch may be ready: puts it at the end of the list and wakes a thread that waits for
    /// events. Not in interrupt context. Returns whether there was one that had nothing to look at
    /// before, and the wake-up is news for the watch's interest.
    pub fn note(&self, item: &Item, is_news: impl FnOnce(Interest) -> bool) -> bool {
        let (interest, was_empty) = {
            let mut list = self.lock();
            // The place may be another watch's by now, and one that fired once waits for a change.
            let place = list.places.get_mut(item.place as usize);
            let Some(place) = place.filter(|place| place.is_of(item)) else {
                return false;
            };
            let interest = place.interest();
            if interest.is_spent() {
                return false;
            }
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
                    interest: place.interest(),
                });
            }
        }
        None
    }

    pub fn len(&self) -> usize {
        self.lock().len
    }
}

impl Place {
    fn interest(&self) -> Interest {
        Interest {
            events: self.events,
            data: self.data,
        }
    }

    fn set_interest(&mut self, interest: Interest) {
        (self.events, self.data) = (interest.events, interest.data);
    }

    fn is_of(&self, item: &Item) -> bool {
        let own = self.item.as_deref();
        own.is_some_and(|own| core::ptr::eq(own, item))
    }
}

impl List {
    /// The place with a number, which is reserved.
    fn at(&mut self, place: u32) -> &mut Place {
        let place = self.places.get_mut(place as usize);
        place.expect("a place is reserved while a watch or the chain names it")
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
