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

/// A thread waits for one word at most, so waiters and owners form trees.
static LINKS: SpinLock<Vec<Link>> = SpinLock::new(crate::rank::PRIORITY_INHERITANCE, Vec::new());

/// How many there are: a thread that ends mostly has nothing to look for.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Records that `waiter` is about to wait for `owner`, which inherits its priority from now on.
///
/// # Errors
/// `EDEADLK` if `owner` waits for `waiter`, however indirectly; `EAGAIN` if `owner` ends just now;
/// `ENOMEM`.
pub(super) fn wait_for(waiter: &Arc<Thread>, owner: &Arc<Thread>, key: Key) -> Result<()> {
    let mut links = LINKS.lock();
    if owner.gives_nothing_up.load(Relaxed) {
        return Err(Errno::EAGAIN);
    }
    let mut at = owner;
    while !Arc::ptr_eq(at, waiter) {
        match links.iter().find(|link| Arc::ptr_eq(&link.waiter, at)) {
            Some(link) => at = &link.owner,
            None => break,
        }
    }
    if Arc::ptr_eq(at, waiter) {
        return Err(Errno::EDEADLK);
    }
    links.try_reserve(1)?;
    links.push(Link {
        waiter: waiter.clone(),
        owner: owner.clone(),
        key,
    });
    COUNT.store(links.len(), SeqCst);
    lend(&links, owner);
    Ok(())
}

/// `waiter` no longer waits.
pub(super) fn stop(waiter: &Arc<Thread>) {
    let mut links = LINKS.lock();
    let at = links
        .iter()
        .position(|link| Arc::ptr_eq(&link.waiter, waiter));
    let gone = at.map(|at| links.swap_remove(at));
    COUNT.store(links.len(), SeqCst);
    if let Some(gone) = &gone {
        lend(&links, &gone.owner);
    }
    drop(links);
    drop(gone);
}

/// Hands the word of `key` to `to`, which waited for it: the others wait for `to` now. The former
/// owner keeps their priority until it calls [`give_back`].
pub(super) fn pass_on(key: Key, to: &Arc<Thread>) {
    let mut links = LINKS.lock();
    let at = links.iter().position(|link| Arc::ptr_eq(&link.waiter, to));
    let gone = at.map(|at| links.swap_remove(at));
    COUNT.store(links.len(), SeqCst);
    for link in links.iter_mut().filter(|link| link.key == key) {
        // The last handle of none: the caller has both.
        link.owner = to.clone();
    }
    lend(&links, to);
    drop(links);
    drop(gone);
}

/// `owner` has given up a word. It calls this when it holds no lock any more: with its own priority
/// it may not run for long.
pub(super) fn give_back(owner: &Arc<Thread>) {
    lend(&LINKS.lock(), owner);
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
    let link = links.iter().find(|link| Arc::ptr_eq(&link.owner, owner));
    link.map(|link| link.key)
}

/// Gives `owner`, and the owners that it waits for in turn, the best priority of their waiters.
fn lend(links: &[Link], owner: &Arc<Thread>) {
    let mut at = owner;
    // Trees are finite; a look at each link once is enough.
    for _ in 0..=links.len() {
        let best = links
            .iter()
            .filter(|link| Arc::ptr_eq(&link.owner, at))
            .map(|link| link.waiter.priority())
            .min();
        if !at.set_lent(best) {
            return;
        }
        match links.iter().find(|link| Arc::ptr_eq(&link.waiter, at)) {
            Some(link) => at = &link.owner,
            None => return,
        }
    }
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
    let link = links
        .iter()
        .find(|link| core::ptr::eq(Arc::as_ptr(&link.waiter), thread));
    if let Some(link) = link {
        lend(&links, &link.owner);
    }
}
