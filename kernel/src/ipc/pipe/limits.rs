//! The sizes that pipes may have: each one, and all of a user's together.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use abi::{Errno, Result};
use fbuf::queue::Queue;
use nucleus::{PAGE_SIZE, frame};
use vm::account::{Account, Charge, Kind};

use super::state::PipeState;
use crate::process::thread;

/// Slices that a new pipe takes: 64 KiB in whole pages, as on Linux.
pub const DEFAULT_SLOTS: usize = 16;
/// Slices that a new pipe takes beyond the soft limit of its maker's user, as on Linux.
const LEAST_SLOTS: usize = 2;
/// The most slices that `F_SETPIPE_SZ` allows: at first 1 MiB, Linux's `pipe-max-size`.
static MAX_SLOTS: AtomicUsize = AtomicUsize::new(256);
/// The most that this can be set to: 128 MiB.
const SLOTS_LIMIT: usize = 1 << 15;
/// What a pipe without data is charged with, in bytes: its queue, and two open files.
const PIPE_BYTES: usize = 2048;

/// Limits of the slots of a user's pipes together. 0 is none.
static SOFT: AtomicUsize = AtomicUsize::new(DEFAULT);
static HARD: AtomicUsize = AtomicUsize::new(0);
/// [`SOFT`] has not been set.
const DEFAULT: usize = usize::MAX;
/// Linux's soft limit: 64 MiB.
const SOFT_MOST: usize = 16_384;
/// The part of memory that the soft limit is at most: an eighth.
const SOFT_PART: usize = 8;

/// Returns the largest size in bytes that a pipe may be given.
pub fn max_size() -> usize {
    MAX_SLOTS.load(Relaxed) * PAGE_SIZE
}

/// Sets [`max_size`], rounded up to a power of two of pages.
///
/// # Errors
/// `EINVAL` for less than a page, or more than a pipe can ever have.
pub fn set_max_size(bytes: usize) -> Result<()> {
    let slots = bytes.div_ceil(PAGE_SIZE).next_power_of_two();
    if bytes < PAGE_SIZE || slots > SLOTS_LIMIT {
        return Err(Errno::EINVAL);
    }
    MAX_SLOTS.store(slots, Relaxed);
    Ok(())
}

/// Returns the slots that an ordinary user's pipes may have before new ones get the least
/// (`pipe-user-pages-soft`), 0 for no limit: Linux's, or an eighth of a small machine's memory.
pub fn soft() -> usize {
    match SOFT.load(Relaxed) {
        DEFAULT => SOFT_MOST.min(frame::total() / SOFT_PART),
        slots => slots,
    }
}

/// Sets [`soft`].
pub fn set_soft(slots: usize) {
    SOFT.store(slots, Relaxed);
}

/// Returns the slots beyond which an ordinary user gets no pipe (`pipe-user-pages-hard`); 0 is no
/// limit.
pub fn hard() -> usize {
    HARD.load(Relaxed)
}

/// Sets [`hard`].
pub fn set_hard(slots: usize) {
    HARD.store(slots, Relaxed);
}

/// Returns the slots of a pipe of at least `bytes`: a power of two.
///
/// # Errors
/// `EINVAL` for more than 2 GiB, `EPERM` above [`max_size`].
pub(super) fn slots_for(bytes: usize) -> Result<usize> {
    if bytes > 1 << 31 {
        return Err(Errno::EINVAL);
    }
    let slots = bytes.div_ceil(PAGE_SIZE).max(1).next_power_of_two();
    if slots > MAX_SLOTS.load(Relaxed) {
        return Err(Errno::EPERM);
    }
    Ok(slots)
}

/// Charges a new pipe to `account`: a thing for each slot that it gets.
///
/// # Errors
/// `ENFILE` beyond the hard limit.
pub(super) fn charge(account: &Arc<Account>) -> Result<Charge> {
    let mut charge = account.charge(Kind::Pipes, DEFAULT_SLOTS, PIPE_BYTES);
    let user = account.user();
    let used = user.things(Kind::Pipes);
    if is_within(used, soft()) && is_within(used, hard()) || is_privileged() {
        return Ok(charge);
    }
    if !is_within(used, soft()) {
        charge.set_things(LEAST_SLOTS);
    }
    match is_within(user.things(Kind::Pipes), hard()) {
        true => Ok(charge),
        false => Err(Errno::ENFILE),
    }
}

/// Charges what a pipe of `slots` slots has more than now, for the time of the change.
///
/// # Errors
/// `EPERM` if the pipe grows, and its maker's user is beyond a limit then.
pub(super) fn charge_more(queue: &Queue<PipeState>, slots: usize) -> Result<Option<Charge>> {
    let (account, now) = {
        let chain = queue.lock();
        let Some(charge) = &chain.state.charge else {
            return Ok(None);
        };
        (charge.account().clone(), charge.things())
    };
    if slots <= now {
        return Ok(None);
    }
    let more = account.charge_if(Kind::Pipes, slots - now, 0, |user| {
        let used = user.things(Kind::Pipes);
        is_within(used, soft()) && is_within(used, hard()) || is_privileged()
    });
    more.map(Some).ok_or(Errno::EPERM)
}

fn is_within(used: usize, limit: usize) -> bool {
    limit == 0 || used <= limit
}

/// Whether the limits of users do not hold for the current thread.
fn is_privileged() -> bool {
    match thread::with_current(|thread| thread.credentials()) {
        // The kernel's own.
        None => true,
        Some(who) => who.is_some_and(|who| who.may_exceed_limits()),
    }
}
