//! One sleeper in a list: the node that wait queues, wait sets and the parking lot share.

use core::{
    cell::UnsafeCell,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, Ordering},
};

use super::{Task, placement};
use crate::arch::machine;

/// A task's place in a [`WaiterList`]. It lives in the sleeper's own frame (or set), so sleeping
/// allocates nothing.
pub(crate) struct Waiter {
    /// The sleeper, who outlives its waiter.
    task: *const Task,
    /// What it waits for, among those that share the list.
    key: usize,
    woken: AtomicBool,
    /// The lock of the list.
    links: UnsafeCell<Links>,
}

struct Links {
    next: *const Waiter,
    prev: *const Waiter,
    listed: bool,
}

impl Waiter {
    /// A waiter for the current task, in no list.
    pub(crate) fn new(key: usize) -> Waiter {
        Waiter {
            task: super::current_raw(),
            key,
            woken: AtomicBool::new(false),
            links: UnsafeCell::new(Links {
                next: ptr::null(),
                prev: ptr::null(),
                listed: false,
            }),
        }
    }

    /// Whether it was woken since the last [`rearm`](Waiter::rearm).
    pub(crate) fn is_woken(&self) -> bool {
        machine::point();
        self.woken.load(Ordering::SeqCst)
    }

    /// Forgets a wake-up; gives whether there was one.
    pub(crate) fn rearm(&self) -> bool {
        self.woken.swap(false, Ordering::SeqCst)
    }

    /// Ends the sleep. Any context.
    ///
    /// The caller holds the lock of the list it was in: the sleeper takes that lock
    /// before its frame goes away.
    pub(crate) fn wake(&self) {
        self.woken.store(true, Ordering::SeqCst);
        machine::point();
        // SAFETY: the sleeper can't end while it has yet to take the lock that the caller holds.
        unsafe { placement::wake(&*self.task, false) };
    }
}

/// Waiters, the longest waiting first. The lock around it is its owner's.
pub(crate) struct WaiterList {
    first: *const Waiter,
    last: *const Waiter,
}

// SAFETY: waiters are reached only by whoever has the list, under the lock around it; `push`'s
// contract keeps them alive.
unsafe impl Send for WaiterList {}

impl WaiterList {
    pub(crate) const fn new() -> WaiterList {
        WaiterList {
            first: ptr::null(),
            last: ptr::null(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Adds a waiter at the end.
    ///
    /// # Safety
    /// It is in no list, and stays alive and in place until it is out of this one.
    pub(crate) unsafe fn push(&mut self, waiter: NonNull<Waiter>) {
        // SAFETY: alive by contract; links of this list's waiters are ours while we have the list.
        unsafe {
            *waiter.as_ref().links.get() = Links {
                next: ptr::null(),
                prev: self.last,
                listed: true,
            };
            match self.last.as_ref() {
                Some(last) => (*last.links.get()).next = waiter.as_ptr(),
                None => self.first = waiter.as_ptr(),
            }
        }
        self.last = waiter.as_ptr();
    }

    /// Takes a waiter out if it is in; gives whether it was.
    ///
    /// # Safety
    /// It is in this list or in none.
    pub(crate) unsafe fn remove(&mut self, waiter: NonNull<Waiter>) -> bool {
        // SAFETY: neighbours of a listed waiter are listed, hence alive.
        unsafe {
            let links = &mut *waiter.as_ref().links.get();
            if !links.listed {
                return false;
            }
            links.listed = false;
            match links.prev.as_ref() {
                Some(prev) => (*prev.links.get()).next = links.next,
                None => self.first = links.next,
            }
            match links.next.as_ref() {
                Some(next) => (*next.links.get()).prev = links.prev,
                None => self.last = links.prev,
            }
        }
        true
    }

    /// Takes out the first.
    pub(crate) fn take(&mut self) -> Option<NonNull<Waiter>> {
        let first = NonNull::new(self.first.cast_mut())?;
        // SAFETY: it is in this list.
        unsafe { self.remove(first) };
        Some(first)
    }

    /// Takes out the first that waits for `key`.
    pub(crate) fn take_key(&mut self, key: usize) -> Option<NonNull<Waiter>> {
        let mut at = self.first;
        // SAFETY: listed waiters are alive.
        while let Some(waiter) = unsafe { at.as_ref() } {
            if waiter.key == key {
                let found = NonNull::from(waiter);
                // SAFETY: it is in this list.
                unsafe { self.remove(found) };
                return Some(found);
            }
            // SAFETY: the links of listed waiters are the list owner's.
            at = unsafe { (*waiter.links.get()).next };
        }
        None
    }
}
