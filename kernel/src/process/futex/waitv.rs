//! Waiting for any of several words (`futex_waitv`).

use alloc::{sync::Arc, vec::Vec};
use core::time::Duration;

use abi::{Errno, Result};
use nucleus::{
    VirtAddr,
    task::{Sleep, WaitSet, Watch},
};

use super::{
    Key, Waiter,
    bucket::QueuedWaiter,
    table::{enter, load},
    waiter::Outcome,
};
use crate::process::{charge_waits, signal};

/// Memory for a word that is waited for: its waiter, the place in that one's queue, the entry in a
/// bucket.
const WORD_BYTES: usize = size_of::<Wanted>()
    + size_of::<Arc<Waiter>>()
    + size_of::<Waiter>()
    + WaitSet::PLACE_BYTES
    + size_of::<QueuedWaiter>();

#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub key: Key,
    pub address: VirtAddr,
    pub expected: u32,
}

/// Sleeps while all words are as expected, until one of them is woken, whose place it returns, or
/// `deadline`.
///
/// # Errors
/// `EAGAIN` if one is another, `ETIMEDOUT`, a restart number if a signal came, `ENOMEM`, `EFAULT`.
pub fn wait_for_any(words: &[Wanted], deadline: Option<Duration>) -> Result<usize> {
    let _charge = charge_waits(words.len(), words.len() * WORD_BYTES)?;
    let mut waiters: Vec<Arc<Waiter>> = nucleus::try_vec(words.len())?;
    // The reserve has room for those of one call.
    waiters.extend(words.iter().map(|_| Waiter::new()));
    let woken = || {
        let is_woken = |waiter: &Arc<Waiter>| waiter.outcome() != Outcome::Waiting;
        waiters.iter().position(is_woken)
    };
    let mut set = WaitSet::new();
    for waiter in &waiters {
        set.add(&waiter.queue);
    }
    set.check()?;
    let mut answer = Ok(());
    let mut entered = 0;
    for (word, waiter) in words.iter().zip(&waiters) {
        let mut bucket = word.key.bucket().lock();
        answer = load(word.address).and_then(|value| {
            if value != word.expected {
                return Err(Errno::EAGAIN);
            }
            enter(&mut bucket, word.key, u32::MAX, waiter, None)
        });
        if answer.is_err() {
            break;
        }
        entered += 1;
    }
    while answer.is_ok() && woken().is_none() {
        let how = Sleep {
            interruptible: true,
            deadline,
        };
        answer = set.wait(how).map_err(signal::woken);
    }
    for waiter in &waiters[..entered] {
        waiter.withdraw();
    }
    // A counted wake-up is never lost, even if a signal or timeout came at the same time.
    match woken() {
        Some(place) => Ok(place),
        None => answer.and(Err(Errno::EAGAIN)),
    }
}
