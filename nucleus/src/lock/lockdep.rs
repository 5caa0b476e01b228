//! The lock-order checker: which locks the current task holds, in the order in which it took them.
//!
//! Only builds with `debug_assertions` carry it; in others the functions here are empty or absent.
//! The list is the task's own, so it follows a task that sleeps with a lock to another CPU. An
//! interrupt handler borrows the list of the task that it interrupted and sees only its own part
//! ([`InterruptScope`]): what the task holds can't wait for what the handler takes, because a
//! handler takes no lock that is ever held with interrupts on.

#[cfg(debug_assertions)]
use crate::hw::handlers;
#[cfg(debug_assertions)]
use crate::hw::machine;

use super::rank::Rank;

/// Locks that one task may hold at a time; the deepest path in the tree holds seven.
#[cfg(debug_assertions)]
const DEPTH: usize = 32;

/// What a task holds. Lives in the task.
#[cfg(debug_assertions)]
pub(crate) struct Held {
    locks: [(Rank, usize); DEPTH],
    len: usize,
    /// Where the part of the current interrupt handler begins.
    base: usize,
}

#[cfg(debug_assertions)]
impl Held {
    pub(crate) const fn new() -> Held {
        Held {
            locks: [(Rank::Leaf, 0); DEPTH],
            len: 0,
            base: 0,
        }
    }
}

#[cfg(debug_assertions)]
fn with_held<R>(f: impl FnOnce(&mut Held) -> R) -> Option<R> {
    let irqs = machine::irqs_disable();
    // SAFETY: the list belongs to the task that runs on this CPU, and with interrupts off nothing
    // else runs on this CPU until the closure, which calls nothing outside this file, has returned.
    let result = unsafe { handlers::held_locks().cast::<Held>().as_mut() }.map(f);
    // The simulated machine would take this for a chance to deliver interrupts.
    #[cfg(not(target_os = "none"))]
    machine::irqs_restore_quietly(irqs);
    #[cfg(target_os = "none")]
    machine::irqs_restore(irqs);
    result
}

/// Panics if a lock of `rank` at `address` may not be taken now.
#[inline]
#[track_caller]
pub(crate) fn check(rank: Rank, address: usize) {
    #[cfg(debug_assertions)]
    refuse(rank, address, |held, _| held >= rank);
    #[cfg(not(debug_assertions))]
    let _ = (rank, address);
}

/// As [`check`], where other locks of the same rank may be held.
#[cfg(debug_assertions)]
#[track_caller]
pub(crate) fn check_nested(rank: Rank, address: usize) {
    refuse(rank, address, |held, at| held > rank || at == address);
}

/// Panics if a lock is held that is `wrong`, by its rank and address, beside the one to be taken.
#[cfg(debug_assertions)]
#[track_caller]
fn refuse(rank: Rank, address: usize, wrong: impl Fn(Rank, usize) -> bool) {
    let worst = with_held(|held| {
        let locks = held.locks[held.base..held.len].iter().copied();
        locks.filter(|&(held, at)| wrong(held, at)).max()
    });
    if let Some(Some((other, other_address))) = worst {
        panic!(
            "lock order: {rank:?} ({address:#x}) is taken while {other:?} \
             ({other_address:#x}) is held"
        );
    }
}

/// Notes that the current task holds the lock.
#[cfg(debug_assertions)]
#[inline]
pub(crate) fn acquired(rank: Rank, address: usize) {
    let fits = with_held(|held| {
        if held.len < DEPTH {
            held.locks[held.len] = (rank, address);
            held.len += 1;
            true
        } else {
            false
        }
    });
    assert!(fits != Some(false), "a task holds more than {DEPTH} locks");
}

/// Notes that it holds the lock no more.
#[cfg(debug_assertions)]
pub(crate) fn released(address: usize) {
    with_held(|held| {
        if let Some(at) = (held.base..held.len)
            .rev()
            .find(|&i| held.locks[i].1 == address)
        {
            held.locks.copy_within(at + 1..held.len, at);
            held.len -= 1;
        }
    });
}

/// Panics if the current task may not sleep here: a spin lock is held or interrupts are off.
#[inline]
pub(crate) fn may_sleep() {
    is_preemptible("sleeps");
}

/// Panics where what takes long would keep its CPU from all others, as [`may_sleep`] does.
#[inline]
pub(crate) fn may_take_long() {
    is_preemptible("tells observers, as many as there may be,");
}

#[inline]
fn is_preemptible(does: &str) {
    #[cfg(not(debug_assertions))]
    let _ = does;
    #[cfg(debug_assertions)]
    {
        if !handlers::held_locks().is_null() {
            assert!(
                machine::preempt_count() == 0,
                "a task {does} with preemption disabled, holding {:?}",
                with_held(|held| held.len.checked_sub(1).map(|last| held.locks[last].0)).flatten()
            );
            assert!(
                machine::irqs_enabled(),
                "a task {does} with interrupts disabled"
            );
        }
    }
}

/// Lives while an interrupt handler runs: the handler's locks are checked among themselves.
pub(crate) struct InterruptScope {
    #[cfg(debug_assertions)]
    base: Option<usize>,
}

impl InterruptScope {
    #[inline]
    pub(crate) fn enter() -> InterruptScope {
        InterruptScope {
            #[cfg(debug_assertions)]
            base: with_held(|held| core::mem::replace(&mut held.base, held.len)),
        }
    }
}

impl Drop for InterruptScope {
    #[inline]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        with_held(|held| {
            assert!(
                held.len == held.base,
                "an interrupt handler kept {:?}",
                held.locks[held.len - 1].0
            );
            held.base = self.base.unwrap_or(0);
        });
    }
}
