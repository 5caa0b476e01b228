//! Waiting on a word, waking its waiters, moving them to another word.

use alloc::{collections::VecDeque, sync::Arc};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user};

use super::{
    bucket::{Pi, QueuedWaiter, with_both},
    key::Key,
    waiter::{Outcome, Waiter},
};
use crate::{
    process::{Thread, signal},
    wall_clock::Deadline,
};

pub(super) fn load(address: VirtAddr) -> Result<u32> {
    user::load_u32(address).map_err(|_| Errno::EFAULT)
}

/// `FUTEX_WAIT_BITSET`: sleeps while the word is `expected`, until a wake-up with one of `bits` or
/// `deadline`.
///
/// # Errors
/// `EAGAIN` if the word is another, `ETIMEDOUT`, a restart number if a signal came.
pub fn wait(
    thread: &Thread,
    key: Key,
    address: VirtAddr,
    expected: u32,
    bits: u32,
    deadline: Option<Deadline>,
) -> Result<()> {
    if bits == 0 {
        return Err(Errno::EINVAL);
    }
    let waiter = &thread.futex;
    {
        let mut bucket = key.bucket().lock();
        if load(address)? != expected {
            return Err(Errno::EAGAIN);
        }
        enter(&mut bucket, key, bits, waiter, None)?;
    }
    let Err(why) = waiter.sleep(deadline) else {
        return Ok(());
    };
    if !waiter.withdraw() {
        // Woken in the last moment, and the waker counted it.
        return Ok(());
    }
    Err(signal::woken(why))
}

/// Enters a waiter into the bucket of `key`.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn enter(
    bucket: &mut VecDeque<QueuedWaiter>,
    key: Key,
    bits: u32,
    waiter: &Arc<Waiter>,
    pi: Option<Pi>,
) -> Result<()> {
    bucket.try_reserve(1)?;
    waiter.begin(key);
    bucket.push_back(QueuedWaiter {
        key,
        bits,
        waiter: waiter.clone(),
        pi,
    });
    Ok(())
}

/// Wakes up to `count` waiters with one of `bits`; returns how many.
///
/// # Errors
/// `EINVAL` if one of them waits to own the word.
pub fn wake(key: Key, count: usize, bits: u32) -> Result<usize> {
    let mut bucket = key.bucket().lock();
    wake_in(&mut bucket, key, count, bits)
}

pub(super) fn wake_in(
    bucket: &mut VecDeque<QueuedWaiter>,
    key: Key,
    count: usize,
    bits: u32,
) -> Result<usize> {
    let mut woken = 0;
    let mut at = 0;
    while woken < count && at < bucket.len() {
        let entry = &bucket[at];
        if entry.key != key || entry.bits & bits == 0 {
            at += 1;
            continue;
        }
        if entry.pi.is_some() {
            return Err(Errno::EINVAL);
        }
        if let Some(entry) = bucket.remove(at) {
            woken += 1;
            entry.waiter.wake(Outcome::Woken);
        }
    }
    Ok(woken)
}

/// `FUTEX_REQUEUE` and `FUTEX_CMP_REQUEUE`: wakes up to `wakes` waiters of `from` and moves up to
/// `moves` others to `to`. Returns those woken and those moved.
///
/// # Errors
/// `EAGAIN` if the word is not `expected`; `EINVAL` if one of them waits to own a word.
pub fn requeue(
    from: Key,
    to: Key,
    wakes: usize,
    moves: usize,
    expected: Option<(VirtAddr, u32)>,
) -> Result<(usize, usize)> {
    with_both(from, to, |source, mut target| {
        if let Some((address, value)) = expected
            && load(address)? != value
        {
            return Err(Errno::EAGAIN);
        }
        let woken = wake_in(source, from, wakes, u32::MAX)?;
        if from == to {
            return Ok((
                woken,
                source.iter().filter(|e| e.key == from).take(moves).count(),
            ));
        }
        let mut moved = 0;
        let mut at = 0;
        while at < source.len() && moved < moves {
            if source[at].key != from {
                at += 1;
                continue;
            }
            if source[at].pi.is_some() {
                return Err(Errno::EINVAL);
            }
            moved += 1;
            match &mut target {
                None => {
                    source[at].key = to;
                    source[at].waiter.settle(to);
                    at += 1;
                }
                Some(target) => {
                    target.try_reserve(1)?;
                    if let Some(mut entry) = source.remove(at) {
                        entry.key = to;
                        entry.waiter.settle(to);
                        target.push_back(entry);
                    }
                }
            }
        }
        Ok((woken, moved))
    })
}

/// `FUTEX_WAKE_OP`: changes the word of `two` as `operation` says, wakes waiters of `one`, and
/// those of `two` if the old value compares as it says.
///
/// # Errors
/// `EFAULT`, `ENOSYS` for an unknown operation.
pub fn wake_op(
    one: Key,
    two: Key,
    address: VirtAddr,
    wakes_one: usize,
    wakes_two: usize,
    operation: u32,
) -> Result<usize> {
    let sign_extend = |value: u32| ((value << 20) as i32) >> 20;
    let mut argument = sign_extend(operation >> 12 & 0xfff) as u32;
    let compare_to = sign_extend(operation & 0xfff);
    let kind = operation >> 28;
    if kind & raw::FUTEX_OP_OPARG_SHIFT != 0 {
        argument = 1 << (argument & 31);
    }
    with_both(one, two, |first, second| {
        let old = loop {
            let old = load(address)?;
            let new = match kind & 7 {
                raw::FUTEX_OP_SET => argument,
                raw::FUTEX_OP_ADD => old.wrapping_add(argument),
                raw::FUTEX_OP_OR => old | argument,
                raw::FUTEX_OP_ANDN => old & !argument,
                raw::FUTEX_OP_XOR => old ^ argument,
                _ => return Err(Errno::ENOSYS),
            };
            if user::compare_exchange_u32(address, old, new)? == old {
                break old as i32;
            }
        };
        let holds = match operation >> 24 & 15 {
            raw::FUTEX_OP_CMP_EQ => old == compare_to,
            raw::FUTEX_OP_CMP_NE => old != compare_to,
            raw::FUTEX_OP_CMP_LT => old < compare_to,
            raw::FUTEX_OP_CMP_LE => old <= compare_to,
            raw::FUTEX_OP_CMP_GT => old > compare_to,
            raw::FUTEX_OP_CMP_GE => old >= compare_to,
            _ => return Err(Errno::ENOSYS),
        };
        let mut woken = wake_in(first, one, wakes_one, u32::MAX)?;
        if holds {
            woken += wake_in(second.unwrap_or(first), two, wakes_two, u32::MAX)?;
        }
        Ok(woken)
    })
}
