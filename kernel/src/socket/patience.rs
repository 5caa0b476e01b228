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
pub enum Patience {
    /// Not at all (`O_NONBLOCK`, `MSG_DONTWAIT`): `EAGAIN`.
    None,
    /// Until this time since boot (`SO_RCVTIMEO`, `SO_SNDTIMEO`): `EAGAIN` then, `EINTR` after a
    /// signal.
    Until(Duration),
    /// For ever; after a signal the call is restarted if the handler allows it.
    Forever,
}

impl Patience {
    /// Of a call that must not wait, or may for `timeout`, if there is one.
    pub fn new(waits: bool, timeout: Option<Duration>) -> Patience {
        match timeout {
            _ if !waits => Patience::None,
            None => Patience::Forever,
            Some(timeout) => match time::since_boot().checked_add(timeout) {
                Some(end) => Patience::Until(end),
                None => Patience::Forever,
            },
        }
    }

    /// Whether it may wait.
    pub fn waits(self) -> bool {
        self != Patience::None
    }

    /// Waits until `ready`, which runs first and after each wake-up of `queue`, gives a value.
    ///
    /// # Errors
    /// `EAGAIN` when the time is over, `EINTR` or a restart number for a signal.
    #[track_caller]
    pub fn wait<T>(self, queue: &WaitQueue, mut ready: impl FnMut() -> Option<T>) -> Result<T> {
        let deadline = match self {
            Patience::None => return ready().ok_or(Errno::EAGAIN),
            Patience::Until(end) => Some(end),
            Patience::Forever => None,
        };
        let sleep = Sleep {
            interruptible: true,
            deadline,
        };
        queue.wait(sleep, ready).map_err(|why| self.woken(why))
    }

    /// Returns the answer of a call whose sleep ended without its condition.
    pub fn woken(self, why: Woken) -> Errno {
        match why {
            Woken::TimedOut => Errno::EAGAIN,
            Woken::Interrupted if self == Patience::Forever => ERESTARTSYS,
            Woken::Interrupted => Errno::EINTR,
        }
    }
}
