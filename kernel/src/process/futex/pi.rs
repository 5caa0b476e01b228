//! Words that hold the id of the thread that owns them (`FUTEX_LOCK_PI` and related operations).
//!
//! A program takes a free word, and releases one without waiters, without the kernel. Otherwise the
//! kernel sets `FUTEX_WAITERS` in it, so that the owner comes here to release it; then it is handed
//! to the waiter with the best priority. While they wait, the owner has the best of their
//! priorities.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, task::Woken, user};

use super::{
    Key,
    bucket::{Pi, QueuedWaiter, with_both},
    priority_inheritance::{self, Refusal},
    table::{enter, load},
    waiter::{Outcome, Ownership},
};
use crate::{
    counters::Counter,
    process::{Pid, Thread, pid_table, signal},
    wall_clock::Deadline,
};

fn exchange(address: VirtAddr, old: u32, new: u32) -> Result<bool> {
    let found = user::compare_exchange_u32(address, old, new)?;
    Ok(found == old)
}

/// The place of the waiter with the best priority, the longest waiting one among equals; and
/// whether there are more.
fn best(bucket: &VecDeque<QueuedWaiter>, key: Key) -> Option<(usize, bool)> {
    let waiters = || {
        bucket
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.key == key)
            .filter_map(|(at, entry)| Some((at, entry.pi.as_ref()?.thread.priority())))
    };
    Counter::futex_pi_looks.add(bucket.len() as u64);
    let (at, _) = waiters().min_by_key(|(_, priority)| *priority)?;
    Some((at, waiters().nth(1).is_some()))
}

/// The result of an attempt to take a word.
enum Claim {
    Mine,
    /// The thread with this id owns it, and the word says that there are waiters.
    Of(Pid),
}

/// Makes the thread `own` the word's owner if it has none, or the one that died; `others_wait` says
/// whether there are more waiters for it. The word's bucket is locked.
fn claim(
    address: VirtAddr,
    own: Pid,
    dead: Option<Pid>,
    others_wait: impl Fn() -> bool,
) -> Result<Claim> {
    loop {
        let value = load(address)?;
        let owner = value & raw::FUTEX_TID_MASK;
        if owner == own {
            return Err(Errno::EDEADLK);
        }
        if owner == 0 || dead == Some(owner) {
            let mut new = own | value & raw::FUTEX_OWNER_DIED;
            if owner != 0 {
                new |= raw::FUTEX_OWNER_DIED;
            }
            if others_wait() {
                new |= raw::FUTEX_WAITERS;
            }
            if exchange(address, value, new)? {
                return Ok(Claim::Mine);
            }
        } else if value & raw::FUTEX_WAITERS != 0
            || exchange(address, value, value | raw::FUTEX_WAITERS)?
        {
            return Ok(Claim::Of(owner));
        }
    }
}

/// `FUTEX_TRYLOCK_PI`.
///
/// # Errors
/// `EAGAIN` if the word has an owner, `EDEADLK` if that is the thread, `EFAULT`.
pub fn try_lock(thread: &Thread, key: Key, address: VirtAddr) -> Result<()> {
    let bucket = key.bucket().lock();
    let owner = load(address)? & raw::FUTEX_TID_MASK;
    if owner != 0 && owner != thread.tid() {
        return Err(Errno::EAGAIN);
    }
    match claim(address, thread.tid(), None, || best(&bucket, key).is_some())? {
        Claim::Mine => Ok(()),
        Claim::Of(_) => Err(Errno::EAGAIN),
    }
}

/// The error of a wait for a word that ended without it.
fn interrupted(why: Woken) -> Errno {
    match why {
        Woken::TimedOut => Errno::ETIMEDOUT,
        Woken::Interrupted => signal::ERESTARTNOINTR,
    }
}

/// `FUTEX_LOCK_PI`: the thread becomes the owner of the word, after a sleep if the word has another
/// owner than `dead`, a thread that died.
///
/// # Errors
/// `EDEADLK` if the thread would wait for itself; `ESRCH` if there is no such thread as the word's
/// owner; `ETIMEDOUT`; a restart number if a signal came; `ENOMEM`, `EFAULT`.
pub fn lock(
    thread: &Arc<Thread>,
    key: Key,
    address: VirtAddr,
    deadline: Option<Deadline>,
    mut dead: Option<Pid>,
) -> Result<()> {
    let waiter = &thread.futex;
    loop {
        {
            let mut bucket = key.bucket().lock();
            let owner = match claim(address, thread.tid(), dead, || best(&bucket, key).is_some())? {
                Claim::Mine => return Ok(()),
                Claim::Of(owner) => owner,
            };
            let found = pid_table::find_thread(owner).ok_or(Refusal::Errno(Errno::ESRCH));
            match found.and_then(|owner| priority_inheritance::wait_for(thread, &owner, key)) {
                Ok(()) => {}
                Err(Refusal::Ending(owner)) => {
                    drop(bucket);
                    let slept = owner.futex.sleep_while_ending(deadline);
                    slept.map_err(interrupted)?;
                    continue;
                }
                // It marks its words before it has ended.
                Err(Refusal::Errno(Errno::ESRCH))
                    if load(address)? & raw::FUTEX_TID_MASK != owner =>
                {
                    if thread.signals.needs_attention() {
                        return Err(signal::ERESTARTNOINTR);
                    }
                    continue;
                }
                Err(Refusal::Errno(error)) => return Err(error),
            }
            let pi = Pi {
                thread: thread.clone(),
                moves_to: None,
            };
            if let Err(error) = enter(&mut bucket, key, u32::MAX, waiter, Some(pi)) {
                priority_inheritance::stop(thread);
                return Err(error);
            }
        }
        let slept = waiter.sleep(deadline);
        if let Err(why) = slept
            && waiter.withdraw()
        {
            return Err(interrupted(why));
        }
        match waiter.outcome() {
            Outcome::OwnerDied(owner) => dead = Some(owner),
            _ => return Ok(()),
        }
    }
}

/// `FUTEX_UNLOCK_PI`: gives the word to the best waiter, or makes it free.
///
/// # Errors
/// `EPERM` if it is not the thread's, `EFAULT`.
pub fn unlock(thread: &Arc<Thread>, key: Key, address: VirtAddr) -> Result<()> {
    let mut bucket = key.bucket().lock();
    loop {
        let value = load(address)?;
        if value & raw::FUTEX_TID_MASK != thread.tid() {
            return Err(Errno::EPERM);
        }
        let Some((at, more)) = best(&bucket, key) else {
            if exchange(address, value, 0)? {
                return Ok(());
            }
            continue;
        };
        let next = bucket[at].pi.as_ref().map_or(0, |pi| pi.thread.tid());
        let waiters = if more { raw::FUTEX_WAITERS } else { 0 };
        if exchange(address, value, next | waiters)? {
            hand_over(&mut bucket, at, Outcome::Owner);
            drop(bucket);
            priority_inheritance::give_back(thread);
            return Ok(());
        }
    }
}

/// Wakes the waiter at `at`, whom the others wait for from now on.
fn hand_over(bucket: &mut VecDeque<QueuedWaiter>, at: usize, outcome: Outcome) {
    let Some(entry) = bucket.remove(at) else {
        return;
    };
    if let Some(pi) = &entry.pi {
        priority_inheritance::pass_on(entry.key, &pi.thread);
    }
    entry.waiter.wake(outcome);
}

/// The thread owns nothing any more: the best waiter for each of its words is told that the owner
/// is no more. `for_good`: it ends; else it runs another program.
///
/// Any thread may be named as a word's owner, by strangers too. There is one step for each word
/// that is waited for when it begins: later waiters sleep until the thread has given up all.
pub(super) fn give_up_all(thread: &Arc<Thread>, for_good: bool) {
    if priority_inheritance::refuse_waiters(thread) {
        while let Some(key) = priority_inheritance::owed_by(thread) {
            let mut bucket = key.bucket().lock();
            // If there is none, the waiter has given up meanwhile.
            if let Some((at, _)) = best(&bucket, key) {
                hand_over(&mut bucket, at, Outcome::OwnerDied(thread.tid()));
            }
        }
        priority_inheritance::give_back(thread);
    }
    thread.futex.set_ownership(match for_good {
        true => Ownership::Ended,
        false => Ownership::Allowed,
    });
}

/// `FUTEX_CMP_REQUEUE_PI`: of the waiters for the word of `from` that are to move to that of `to`,
/// the best becomes its owner if it has none, and up to `moves` others wait for it. Returns how
/// many were woken or moved. The waiters are sorted once, and each has one turn.
///
/// # Errors
/// `EAGAIN` if the word of `from` is not `expected`, `EINVAL` if one waits for anything else,
/// `ESRCH`, `EDEADLK`, `EFAULT`; `ENOMEM`, and nothing was done.
pub fn requeue(
    from: Key,
    to: Key,
    (address, expected): (VirtAddr, u32),
    target_address: VirtAddr,
    moves: usize,
) -> Result<usize> {
    if from == to {
        return Err(Errno::EINVAL);
    }
    with_both(from, to, |source, mut target| {
        if load(address)? != expected {
            return Err(Errno::EAGAIN);
        }
        let fits =
            |entry: &QueuedWaiter| entry.pi.as_ref().is_some_and(|pi| pi.moves_to == Some(to));
        if source.iter().any(|entry| entry.key == from && !fits(entry)) {
            return Err(Errno::EINVAL);
        }
        let count = source.iter().filter(|entry| entry.key == from).count();
        let mut waiters = Vec::new();
        waiters.try_reserve_exact(count)?;
        if let Some(target) = &mut target {
            target.try_reserve(count)?;
        }
        let others = target.as_deref().unwrap_or(&*source);
        let mut others_wait = others.iter().any(|entry| entry.key == to);
        for place in 0..source.len() {
            match source.pop_front() {
                Some(QueuedWaiter {
                    key,
                    bits,
                    waiter,
                    pi: Some(pi),
                }) if key == from => waiters.push((pi.thread.priority(), place, bits, waiter, pi)),
                entry => source.extend(entry),
            }
        }
        waiters.sort_unstable_by_key(|&(priority, place, ..)| (priority, place));
        let (mut done, mut outcome) = (0, Ok(()));
        for (left, (.., bits, waiter, mut pi)) in (0..count).rev().zip(waiters) {
            let turn = match outcome.is_ok() && done <= moves {
                true => take_turn(&pi.thread, to, target_address, others_wait || left > 0),
                false => Ok(Turn::Stays),
            };
            let key = match turn {
                Ok(Turn::Owns) => {
                    done += 1;
                    waiter.wake(Outcome::Owner);
                    continue;
                }
                Ok(Turn::Waits) => {
                    done += 1;
                    others_wait = true;
                    waiter.settle(to);
                    pi.moves_to = None;
                    to
                }
                Ok(Turn::Stays) => from,
                Err(error) => {
                    outcome = Err(error);
                    from
                }
            };
            let entry = QueuedWaiter {
                key,
                bits,
                waiter,
                pi: Some(pi),
            };
            match &mut target {
                Some(target) if key == to => target.push_back(entry),
                _ => source.push_back(entry),
            }
        }
        outcome.map(|()| done)
    })
}

/// What [`requeue`] makes of a waiter.
enum Turn {
    Owns,
    Waits,
    Stays,
}

/// Makes a waiter the owner of the word of `to`, or lets its owner inherit from the waiter.
fn take_turn(waiter: &Arc<Thread>, to: Key, address: VirtAddr, others_wait: bool) -> Result<Turn> {
    match claim(address, waiter.tid(), None, || others_wait)? {
        Claim::Mine => Ok(Turn::Owns),
        Claim::Of(owner) => {
            let owner = pid_table::find_thread(owner).ok_or(Errno::ESRCH)?;
            match priority_inheritance::wait_for(waiter, &owner, to) {
                Ok(()) => Ok(Turn::Waits),
                Err(Refusal::Ending(_)) => Err(Errno::EAGAIN),
                Err(Refusal::Errno(error)) => Err(error),
            }
        }
    }
}

/// `FUTEX_WAIT_REQUEUE_PI`: sleeps while the word of `from` is `expected`, until [`requeue`] has
/// made the thread the owner of that of `to`.
///
/// # Errors
/// `EAGAIN` if the word is another, or if a signal came when the thread waited for the second word;
/// `ETIMEDOUT`; a restart number if a signal came before.
pub fn wait_requeue(
    thread: &Arc<Thread>,
    from: Key,
    (address, expected): (VirtAddr, u32),
    (to, target_address): (Key, VirtAddr),
    deadline: Option<Deadline>,
) -> Result<()> {
    if from == to {
        return Err(Errno::EINVAL);
    }
    let waiter = &thread.futex;
    {
        let mut bucket = from.bucket().lock();
        if load(address)? != expected {
            return Err(Errno::EAGAIN);
        }
        let pi = Pi {
            thread: thread.clone(),
            moves_to: Some(to),
        };
        enter(&mut bucket, from, u32::MAX, waiter, Some(pi))?;
    }
    let slept = waiter.sleep(deadline);
    if let Err(why) = slept
        && waiter.withdraw()
    {
        let moved = waiter.home() == to;
        return Err(match why {
            Woken::Interrupted if moved => Errno::EAGAIN,
            why => interrupted(why),
        });
    }
    match waiter.outcome() {
        Outcome::OwnerDied(owner) => lock(thread, to, target_address, deadline, Some(owner)),
        _ => Ok(()),
    }
}
