//! The owner that each waiter waits for, and the priority that an owner inherits from its waiters.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};

use abi::{Errno, Result};
use nucleus::sync::SpinLock;

use super::Key;
use crate::process::{Scheduling, Thread};

/// `waiter` waits for `owner` to give up the word of `key`.
struct Link {
    waiter: Arc<Thread>,
    owner: Arc<Thread>,
    key: Key,
}

/// Owners of a chain, each of which waits for the next, at most: as on Linux.
const LONGEST: usize = 1024;

/// All that wait. A thread waits for one word at most, so waiters and owners form trees.
///
/// Programs decide how many there are, and a spin lock is held meanwhile: what is done for a thread
/// looks at its own waiters and at the owners above it, and at no other thread.
struct Links {
    /// By the waiter's address.
    links: Vec<Link>,
    /// The waiters of each owner, by the owner's address.
    waiters: Vec<(usize, Arc<Thread>)>,
}

static LINKS: SpinLock<Links> = SpinLock::new(
    crate::rank::PRIORITY_INHERITANCE,
    Links {
        links: Vec::new(),
        waiters: Vec::new(),
    },
);

/// How many there are: a thread that ends mostly has nothing to look for.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn address(thread: &Thread) -> usize {
    core::ptr::from_ref(thread).addr()
}

impl Links {
    /// The place of a waiter's link, or the one where it would be.
    fn place(&self, waiter: &Thread) -> core::result::Result<usize, usize> {
        let wanted = address(waiter);
        self.links
            .binary_search_by_key(&wanted, |link| address(&link.waiter))
    }

    fn of(&self, waiter: &Thread) -> Option<&Link> {
        self.place(waiter).ok().map(|at| &self.links[at])
    }

    /// The waiters of an owner.
    fn waiters_of(&self, owner: &Thread) -> &[(usize, Arc<Thread>)] {
        let wanted = address(owner);
        let first = self.waiters.partition_point(|it| it.0 < wanted);
        let rest = &self.waiters[first..];
        &rest[..rest.partition_point(|it| it.0 == wanted)]
    }

    /// # Errors
    /// `ENOMEM`.
    fn add(&mut self, link: Link) -> Result<()> {
        self.links.try_reserve(1)?;
        self.waiters.try_reserve(1)?;
        let owner = address(&link.owner);
        let at = self.waiters.partition_point(|it| it.0 < owner);
        self.waiters.insert(at, (owner, link.waiter.clone()));
        let (Ok(at) | Err(at)) = self.place(&link.waiter);
        self.links.insert(at, link);
        COUNT.store(self.links.len(), SeqCst);
        Ok(())
    }

    /// Gives the link, whose handles are dropped without the lock.
    #[must_use]
    fn remove(&mut self, waiter: &Thread) -> Option<Link> {
        let link = self.links.remove(self.place(waiter).ok()?);
        let owner = address(&link.owner);
        let first = self.waiters.partition_point(|it| it.0 < owner);
        let own = |it: &(usize, Arc<Thread>)| core::ptr::eq(&*it.1, waiter);
        if let Some(at) = self.waiters[first..].iter().position(own) {
            // The link has another handle.
            self.waiters.remove(first + at);
        }
        COUNT.store(self.links.len(), SeqCst);
        Some(link)
    }

    /// Makes all that wait for the word of `key` wait for `owner`.
    fn give(&mut self, key: Key, owner: &Arc<Thread>) {
        let mut any = false;
        for link in self.links.iter_mut().filter(|link| link.key == key) {
            // The last handle of none: the caller has both.
            link.owner = owner.clone();
            any = true;
        }
        if !any {
            return;
        }
        for (link, (owner, waiter)) in self.links.iter().zip(&mut self.waiters) {
            *owner = address(&link.owner);
            waiter.clone_from(&link.waiter);
        }
        self.waiters.sort_unstable_by_key(|it| it.0);
    }

    /// Gives `owner`, and the owners that it waits for in turn, the best priority of their waiters.
    fn lend(&self, owner: &Arc<Thread>) {
        let mut at = owner;
        for _ in 0..=LONGEST {
            let waiters = self.waiters_of(at).iter();
            let best = waiters.map(|(_, waiter)| waiter.priority()).min();
            if !at.set_lent(best) {
                return;
            }
            match self.of(at) {
                Some(link) => at = &link.owner,
                None => return,
            }
        }
    }
}

/// Records that `waiter` is about to wait for `owner`, which inherits its priority from now on.
///
/// # Errors
/// `EDEADLK` if `owner` waits for `waiter`, however indirectly, or more than [`LONGEST`] threads
/// wait for each other in turn; `EAGAIN` if `owner` ends just now; `ENOMEM`.
pub(super) fn wait_for(waiter: &Arc<Thread>, owner: &Arc<Thread>, key: Key) -> Result<()> {
    let mut links = LINKS.lock();
    if owner.gives_nothing_up.load(Relaxed) {
        return Err(Errno::EAGAIN);
    }
    let mut at = owner;
    for length in 0.. {
        if Arc::ptr_eq(at, waiter) || length == LONGEST {
            return Err(Errno::EDEADLK);
        }
        match links.of(at) {
            Some(link) => at = &link.owner,
            None => break,
        }
    }
    links.add(Link {
        waiter: waiter.clone(),
        owner: owner.clone(),
        key,
    })?;
    links.lend(owner);
    Ok(())
}

/// `waiter` no longer waits.
pub(super) fn stop(waiter: &Arc<Thread>) {
    let mut links = LINKS.lock();
    let gone = links.remove(waiter);
    if let Some(gone) = &gone {
        links.lend(&gone.owner);
    }
    drop(links);
    drop(gone);
}

/// Hands the word of `key` to `to`, which waited for it: the others wait for `to` now. The former
/// owner keeps their priority until it calls [`give_back`].
pub(super) fn pass_on(key: Key, to: &Arc<Thread>) {
    let mut links = LINKS.lock();
    let gone = links.remove(to);
    links.give(key, to);
    links.lend(to);
    drop(links);
    drop(gone);
}

/// `owner` has given up a word. It calls this when it holds no lock any more: with its own priority
/// it may not run for long.
pub(super) fn give_back(owner: &Arc<Thread>) {
    LINKS.lock().lend(owner);
}

/// Returns a word that others wait for `owner` to release. With `for_good` no thread will wait for
/// it any more.
pub(super) fn owed_by(owner: &Arc<Thread>, for_good: bool) -> Option<Key> {
    if for_good {
        // Before the look: `wait_for` refuses later waiters.
        let _links = LINKS.lock();
        owner.gives_nothing_up.store(true, Relaxed);
    }
    if COUNT.load(SeqCst) == 0 {
        return None;
    }
    let links = LINKS.lock();
    let (_, waiter) = links.waiters_of(owner).first()?;
    links.of(waiter).map(|link| link.key)
}

impl Thread {
    /// Changes how the thread is scheduled; the owner that it waits for gets its new priority, too.
    pub fn set_scheduling(&self, change: impl FnOnce(&mut Scheduling)) {
        self.change_scheduling(change);
        priority_changed(self);
    }
}

/// Lends the changed priority of `thread` to the owner that it waits for.
fn priority_changed(thread: &Thread) {
    if COUNT.load(SeqCst) == 0 {
        return;
    }
    let links = LINKS.lock();
    if let Some(link) = links.of(thread) {
        links.lend(&link.owner);
    }
}
