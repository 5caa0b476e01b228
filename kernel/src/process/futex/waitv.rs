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
    table::{enter, load},
    waiter::Outcome,
};
use crate::process::signal;

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
    let mut waiters: Vec<Arc<Waiter>> = nucleus::try_vec(words.len())?;
    waiters.extend(words.iter().map(|_| Waiter::new()));
    let woken = || {
        let is_woken = |waiter: &Arc<Waiter>| waiter.outcome() != Outcome::Waiting;
        waiters.iter().position(is_woken)
    };
    let mut set = WaitSet::new();
    for waiter in &waiters {
        set.add(&waiter.queue);
    }
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
