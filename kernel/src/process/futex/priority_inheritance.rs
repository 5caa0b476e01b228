//! The owner that each waiter waits for, and the priority that an owner inherits from its waiters.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use abi::Errno;
use nucleus::{frame, sync::Mutex};

use super::{Key, waiter::Ownership};
use crate::counters::Counter;
use crate::process::{Scheduling, Thread, scheduling::Rank};

/// Owners of a chain, each of which waits for the next, at most: as on Linux.
const LONGEST: usize = 1024;

/// A thread that waits for a word.
struct Waiter {
    /// Its address is no other thread's meanwhile.
    _thread: Arc<Thread>,
    key: Key,
    /// Under which it stands in the word's line.
    rank: Rank,
}

/// A word that threads wait for.
struct Word {
    owner: Arc<Thread>,
    /// Most urgent first; threads by their address.
    line: BTreeSet<(Rank, usize)>,
}

impl Word {
    fn best(&self) -> Option<Rank> {
        self.line.first().map(|(rank, _)| *rank)
    }

    /// Its entry among the words that are owed.
    fn debt(&self, key: Key) -> Option<(usize, Rank, Key)> {
        Some((address(&self.owner), self.best()?, key))
    }
}

/// All that wait. A thread waits for one word at most, so waiters and owners form trees.
///
/// Programs decide how many there are. Each step takes time in their number's logarithm, and as
/// many steps are taken as a chain has owners: the lock sleeps, since these are not few.
struct Links {
    /// By the waiter's address.
    waiters: BTreeMap<usize, Waiter>,
    words: BTreeMap<Key, Word>,
    /// The owner of each word, by address, with the rank of the word's most urgent waiter.
    owed: BTreeSet<(usize, Rank, Key)>,
}

static LINKS: Mutex<Links> = Mutex::new(crate::rank::PRIORITY_INHERITANCE, Links::new());

/// How many wait: a thread that ends mostly has nothing to look for.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn address(thread: &Thread) -> usize {
    core::ptr::from_ref(thread).addr()
}

impl Links {
    const fn new() -> Links {
        Links {
            waiters: BTreeMap::new(),
            words: BTreeMap::new(),
            owed: BTreeSet::new(),
        }
    }

    /// Changes the word of `key`, and what is said about it.
    fn change<R>(&mut self, key: Key, change: impl FnOnce(&mut Word) -> R) -> Option<R> {
        let word = self.words.get_mut(&key)?;
        let before = word.debt(key);
        let result = change(word);
        let after = word.debt(key);
        if before != after {
            if let Some(before) = before {
                self.owed.remove(&before);
            }
            self.owed.extend(after);
        }
        Some(result)
    }

    /// Makes a thread wait for the word of `key`; the word has this owner if it had no waiter.
    fn add(&mut self, thread: &Arc<Thread>, owner: &Arc<Thread>, key: Key) {
        // Before the look at the rank: a later change of it is told to the owner.
        COUNT.store(self.waiters.len() + 1, SeqCst);
        let rank = thread.priority();
        self.words.entry(key).or_insert_with(|| Word {
            owner: owner.clone(),
            line: BTreeSet::new(),
        });
        self.change(key, |word| word.line.insert((rank, address(thread))));
        let waiter = Waiter {
            _thread: thread.clone(),
            key,
            rank,
        };
        self.waiters.insert(address(thread), waiter);
    }

    /// Makes a thread wait no longer; gives what is dropped without the lock: the waiter, the
    /// word's owner, and the word with its last waiter.
    fn remove(&mut self, thread: &Thread) -> Option<(Waiter, Arc<Thread>, Option<Word>)> {
        let waiter = self.waiters.remove(&address(thread))?;
        COUNT.store(self.waiters.len(), SeqCst);
        let own = (waiter.rank, address(thread));
        let (owner, is_last) = self.change(waiter.key, |word| {
            word.line.remove(&own);
            (word.owner.clone(), word.line.is_empty())
        })?;
        let word = if is_last {
            self.words.remove(&waiter.key)
        } else {
            None
        };
        Some((waiter, owner, word))
    }

    /// Gives the word of `key` another owner, if any thread waits for it; returns the former one.
    fn give(&mut self, key: Key, owner: &Arc<Thread>) -> Option<Arc<Thread>> {
        self.change(key, |word| {
            core::mem::replace(&mut word.owner, owner.clone())
        })
    }

    /// The words of an owner that threads wait for, that of the most urgent one first.
    fn owed_by(&self, owner: &Thread) -> Option<(Rank, Key)> {
        let owner = address(owner);
        let first = (owner, Rank::FIRST, Key::NONE);
        let (of, rank, key) = self.owed.range(first..).next()?;
        (*of == owner).then_some((*rank, *key))
    }

    /// Gives `owner`, and the owners that it waits for in turn, the best priority of their waiters.
    fn lend(&mut self, owner: &Arc<Thread>) {
        let mut at = owner.clone();
        for _ in 0..=LONGEST {
            Counter::futex_pi_looks.add(1);
            let best = self.owed_by(&at).map(|(rank, _)| rank);
            if !at.set_lent(best) {
                return;
            }
            match self.refresh(&at) {
                Some(next) => at = next,
                None => return,
            }
        }
    }

    /// The priority of a thread may have changed, and its place in the line for a word with it.
    /// Returns the word's owner.
    fn refresh(&mut self, thread: &Thread) -> Option<Arc<Thread>> {
        let own = address(thread);
        let waiter = self.waiters.get_mut(&own)?;
        let key = waiter.key;
        let new = thread.priority();
        let old = core::mem::replace(&mut waiter.rank, new);
        self.change(key, |word| {
            if old != new {
                word.line.remove(&(old, own));
                word.line.insert((new, own));
            }
            word.owner.clone()
        })
    }

    /// Whether a thread that waits for `owner` could be `waiter`, or wait for the word of `key`:
    /// then none would ever go on. As much is said of a chain that is too long.
    fn is_cycle(&self, waiter: &Thread, owner: &Arc<Thread>, key: Key) -> bool {
        let mut at = owner;
        for _ in 0..LONGEST {
            Counter::futex_pi_looks.add(1);
            if core::ptr::eq(&raw const **at, waiter) {
                return true;
            }
            let Some(link) = self.waiters.get(&address(at)) else {
                return false;
            };
            match self.words.get(&link.key) {
                Some(word) if link.key != key => at = &word.owner,
                _ => return true,
            }
        }
        true
    }
}

/// Why a thread can't wait for a word.
pub(super) enum Refusal {
    /// The owner is giving up its words: the waiter may ask again
    /// [afterwards](super::Waiter::sleep_while_ending).
    Ending(Arc<Thread>),
    Errno(Errno),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Refusal {
        Refusal::Errno(error)
    }
}

/// Records that `waiter` is about to wait for the word of `key`, which `owner` has: it inherits
/// the waiter's priority from now on. A word that others wait for has the owner that it was
/// [passed on](pass_on) to, which may not have entered itself yet. The word's bucket is locked.
///
/// # Errors
/// `EDEADLK` if `owner` waits for `waiter`, however indirectly, or more than [`LONGEST`] threads
/// wait for each other in turn; `ESRCH` if `owner` has ended; `ENOMEM`.
pub(super) fn wait_for(
    waiter: &Arc<Thread>,
    owner: &Arc<Thread>,
    key: Key,
) -> core::result::Result<(), Refusal> {
    let mut links = LINKS.lock();
    let known = links.words.get(&key).map(|word| word.owner.clone());
    let known = known.filter(|known| !Arc::ptr_eq(known, waiter));
    let owner = known.as_ref().unwrap_or(owner);
    // Before the look at the owner: an owner that ends after the look finds the waiter counted.
    COUNT.store(links.waiters.len() + 1, SeqCst);
    let outcome = match owner.futex.ownership() {
        Ownership::Ending => Err(Refusal::Ending(owner.clone())),
        Ownership::Ended => Err(Errno::ESRCH.into()),
        Ownership::Allowed if links.is_cycle(waiter, owner, key) => Err(Errno::EDEADLK.into()),
        Ownership::Allowed => frame::check_not_scarce().map_err(|error| Errno::from(error).into()),
    };
    let mut former = None;
    if outcome.is_ok() {
        // It was passed on to the waiter, and another thread has entered itself.
        former = links.give(key, owner);
        links.add(waiter, owner, key);
        links.lend(owner);
    } else {
        COUNT.store(links.waiters.len(), SeqCst);
    }
    drop(links);
    drop(former);
    outcome
}

/// `waiter` no longer waits. The word's bucket is locked, so that what waits by the bucket and by
/// the links is the same.
pub(super) fn stop(waiter: &Arc<Thread>) {
    let mut links = LINKS.lock();
    let gone = links.remove(waiter);
    if let Some((_, owner, _)) = &gone {
        links.lend(owner);
    }
    drop(links);
    drop(gone);
}

/// Hands the word of `key` to `to`, which waited for it: the others wait for `to` now. The former
/// owner keeps their priority until it calls [`give_back`].
pub(super) fn pass_on(key: Key, to: &Arc<Thread>) {
    let mut links = LINKS.lock();
    let gone = links.remove(to);
    let former = links.give(key, to);
    links.lend(to);
    drop(links);
    drop((gone, former));
}

/// `owner` has given up a word. It calls this when it holds no lock any more: with its own priority
/// it may not run for long.
pub(super) fn give_back(owner: &Arc<Thread>) {
    LINKS.lock().lend(owner);
}

/// Begins to give up all words of `owner`, the caller: no thread begins to wait for one of them
/// until its [`Ownership`] changes again. Returns whether threads may wait for some.
pub(super) fn refuse_waiters(owner: &Thread) -> bool {
    owner.futex.set_ownership(Ownership::Ending);
    COUNT.load(SeqCst) != 0
}

/// Returns a word that others wait for `owner` to release.
pub(super) fn owed_by(owner: &Thread) -> Option<Key> {
    LINKS.lock().owed_by(owner).map(|(_, key)| key)
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
    let mut links = LINKS.lock();
    let owner = links.refresh(thread);
    if let Some(owner) = &owner {
        links.lend(owner);
    }
    drop(links);
    drop(owner);
}
