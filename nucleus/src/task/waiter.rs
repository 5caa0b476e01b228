//! One sleeper in a list: the node that wait queues, wait sets and the parking lot share.
//!
//! # Waking
//!
//! A waiter is taken out of its list under the list's lock, but its task is woken after that lock
//! has been let go: the interrupt to another CPU takes long, and the CPU that it wakes wants the
//! same lock next. From the moment when `woken` is set the sleeper may go on by itself, leave the
//! frame in which its waiter stands, or wait with the same one for another lock, and even end. So
//! nothing touches the waiter any more, and the task is kept by a count of its own
//! ([`Task::claim`]): the reaper does not free a task while a waker is about to use it.

use core::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    placement,
    task::{Task, current_raw},
};
use crate::{cpu::percpu::Pinned, hw::machine, lock::SpinLock};

/// Tasks that are woken together after one hold of the list's lock.
const BATCH: usize = 8;
/// Batches between which the waker is not preempted: a task that it wakes runs after the last of
/// them, which spares switches where few are woken.
const BATCHES: usize = 4;

/// A task's place in a [`WaiterList`]. It lives in the sleeper's own frame (or set), or for
/// sleeping locks in its task, so sleeping allocates nothing.
pub(crate) struct Waiter {
    /// The sleeper, which outlives its waiter.
    task: *const Task,
    /// What it waits for, among those that share the list.
    key: usize,
    woken: AtomicBool,
    /// Set after `woken`: what one sleeper looks at that stands in several lists.
    any: *const AtomicBool,
    /// The lock of the list.
    links: UnsafeCell<Links>,
}

struct Links {
    next: *const Waiter,
    prev: *const Waiter,
    listed: bool,
}

/// The waiter with which a task waits for a sleeping lock, on a cache line of its own. On the
/// task's stack, wakers on other CPUs would take the line away from what comes to lie there later.
#[repr(align(64))]
pub(super) struct Parked(UnsafeCell<MaybeUninit<Waiter>>);

impl Parked {
    pub const fn new() -> Parked {
        Parked(UnsafeCell::new(MaybeUninit::uninit()))
    }
}

impl Waiter {
    /// The waiter of the current task for sleeping locks, in no list.
    ///
    /// # Safety
    /// The last one that this gave to the task is in no list and is not used any more.
    pub(crate) unsafe fn for_lock<'a>(key: usize) -> &'a Waiter {
        // SAFETY: the task runs, so it is alive; the waiter is the task's own by contract.
        unsafe { (*(*current_raw()).parked.0.get()).write(Waiter::new(key)) }
    }

    /// A waiter for the current task, in no list.
    pub(crate) fn new(key: usize) -> Waiter {
        Waiter {
            task: current_raw(),
            key,
            woken: AtomicBool::new(false),
            any: ptr::null(),
            links: UnsafeCell::new(Links {
                next: ptr::null(),
                prev: ptr::null(),
                listed: false,
            }),
        }
    }

    /// A waiter for the current task, in no list, whose wake-ups set `any` too.
    ///
    /// # Safety
    /// `any` outlives every hold of the list's lock in which the waiter is woken.
    pub(crate) unsafe fn with_flag(any: *const AtomicBool) -> Waiter {
        Waiter {
            any,
            ..Waiter::new(0)
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
}

/// Tasks to wake when the list's lock has been let go. Interrupts stay off while it holds any:
/// the reaper waits for it.
struct Wakes {
    tasks: [*const Task; BATCH],
    count: usize,
}

impl Wakes {
    /// Ends the sleep of a waiter that was taken out of its list, whose lock is held still.
    ///
    /// # Safety
    /// The waiter is alive.
    unsafe fn add(&mut self, waiter: NonNull<Waiter>) {
        // SAFETY: alive by contract.
        let waiter = unsafe { waiter.as_ref() };
        self.tasks[self.count] = waiter.task;
        self.count += 1;
        // SAFETY: the sleeper has not been told yet, so it is alive.
        unsafe { (*waiter.task).claim() };
        let any = waiter.any;
        // The last touch of the waiter.
        waiter.woken.store(true, Ordering::SeqCst);
        machine::point();
        // After `woken`: the sleeper clears the flag before it looks which of its waiters were
        // woken.
        // SAFETY: null, or alive as long as the list's lock is held (`with_flag`).
        if let Some(any) = unsafe { any.as_ref() } {
            any.store(true, Ordering::SeqCst);
        }
    }

    /// Wakes them. No lock is held.
    fn send(&mut self) {
        for &task in &self.tasks[..self.count] {
            // SAFETY: the claim keeps the task.
            let task = unsafe { &*task };
            placement::wake(task, false);
            task.unclaim();
        }
        self.count = 0;
    }
}

/// Wakes up to `most` waiters, and no more than the list has at first, as `take` chooses them.
/// Any context; interrupts and preemption are disabled for a bounded number of them at a time.
/// Gives how many.
pub(crate) fn wake_from(
    list: &SpinLock<WaiterList>,
    most: usize,
    mut take: impl FnMut(&mut WaiterList) -> Option<NonNull<Waiter>>,
) -> usize {
    let mut wakes = Wakes {
        tasks: [ptr::null(); BATCH],
        count: 0,
    };
    let mut pinned = Pinned::new();
    let mut left = most;
    let mut woken = 0;
    for batch in 1.. {
        let irqs = machine::irqs_disable();
        {
            let mut list = list.lock_irq();
            // Later ones saw the new state when they joined.
            if woken == 0 {
                left = left.min(list.len());
            }
            while left > 0
                && wakes.count < BATCH
                && let Some(waiter) = take(&mut list)
            {
                left -= 1;
                // SAFETY: it was in the list, hence alive, and its task takes the lock that is
                // held here, or sees `woken`, before it goes away.
                unsafe { wakes.add(waiter) };
            }
        }
        let sent = wakes.count;
        woken += sent;
        wakes.send();
        machine::irqs_restore(irqs);
        if sent < BATCH || left == 0 {
            break;
        }
        if batch % BATCHES == 0 {
            drop(pinned);
            pinned = Pinned::new();
        }
    }
    drop(pinned);
    woken
}

/// Waiters, the longest waiting first. The lock around it is its owner's.
pub(crate) struct WaiterList {
    first: *const Waiter,
    last: *const Waiter,
    len: usize,
}

// SAFETY: waiters are reached only by the holder of the list, under the lock around it; `push`'s
// contract keeps them alive.
unsafe impl Send for WaiterList {}

impl WaiterList {
    pub(crate) const fn new() -> WaiterList {
        WaiterList {
            first: ptr::null(),
            last: ptr::null(),
            len: 0,
        }
    }

    fn len(&self) -> usize {
        self.len
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
        self.len += 1;
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
        self.len -= 1;
        true
    }

    /// Takes out the first.
    pub(crate) fn take(&mut self) -> Option<NonNull<Waiter>> {
        let first = NonNull::new(self.first.cast_mut())?;
        // SAFETY: it is in this list.
        unsafe { self.remove(first) };
        Some(first)
    }

    /// Takes out the first if `wanted` says so of its task.
    pub(crate) fn take_if(
        &mut self,
        wanted: impl FnOnce(&Task) -> bool,
    ) -> Option<NonNull<Waiter>> {
        // SAFETY: listed waiters are alive, and so are their tasks.
        let wanted = unsafe { wanted(&*self.first.as_ref()?.task) };
        if wanted { self.take() } else { None }
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
