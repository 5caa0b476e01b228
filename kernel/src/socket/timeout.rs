//! How long a call on a socket may wait.

use core::time::Duration;

use abi::{Errno, Result};
use nucleus::{
    task::{Sleep, WaitQueue, Woken},
    time,
};

use crate::process::signal::ERESTARTSYS;

/// How long a call may wait, and so its answer if it waited in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// Not at all (`O_NONBLOCK`, `MSG_DONTWAIT`): `EAGAIN`.
    None,
    /// Until this time since boot (`SO_RCVTIMEO`, `SO_SNDTIMEO`): `EAGAIN` then, `EINTR` after a
    /// signal.
    Until(Duration),
    /// For ever; after a signal the call is restarted if the handler allows it.
    Forever,
}

impl Timeout {
    /// Of a call that must not wait, or may for `timeout`, if there is one.
    pub fn new(waits: bool, timeout: Option<Duration>) -> Timeout {
        match timeout {
            _ if !waits => Timeout::None,
            None => Timeout::Forever,
            Some(timeout) => match time::since_boot().checked_add(timeout) {
                Some(end) => Timeout::Until(end),
                None => Timeout::Forever,
            },
        }
    }

    /// Whether it may wait.
    pub fn waits(self) -> bool {
        self != Timeout::None
    }

    /// Waits until `ready`, which runs first and after each wake-up of `queue`, gives a value.
    ///
    /// # Errors
    /// `EAGAIN` when the time is over, `EINTR` or a restart number for a signal.
    #[track_caller]
    pub fn wait<T>(self, queue: &WaitQueue, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
        let deadline = match self {
            Timeout::None => return ready().ok_or(Errno::EAGAIN),
            Timeout::Until(end) => Some(end),
            Timeout::Forever => None,
        };
        let sleep = Sleep {
            interruptible: true,
            deadline,
        };
        queue.wait(sleep, ready).map_err(|why| self.woken(why))
    }

    /// As [`wait`](Timeout::wait), until `ready` holds.
    #[inline]
    #[track_caller]
    pub fn wait_until(self, queue: &WaitQueue, mut ready: impl FnMut() -> bool) -> Result<()> {
        self.wait(queue, || ready().then_some(()))
    }

    /// Returns the answer of a call whose sleep ended without its condition.
    pub fn woken(self, why: Woken) -> Errno {
        match why {
            Woken::TimedOut => Errno::EAGAIN,
            Woken::Interrupted if self == Timeout::Forever => ERESTARTSYS,
            Woken::Interrupted => Errno::EINTR,
        }
    }
}
