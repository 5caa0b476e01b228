//! Signals that wait to be taken.

use alloc::{collections::VecDeque, sync::Arc};

use abi::{Errno, Result, raw::general as raw};
use vm::account::{Account, Kind};

use super::{Fields, Info, SignalSet};

/// Pending signals. One of each standard signal, any number of each real-time signal.
#[derive(Default)]
pub struct Queue {
    set: SignalSet,
    /// With the charge on the target's user.
    infos: VecDeque<(Info, Option<Charged>)>,
}

impl Queue {
    /// Returns the set of pending signals.
    pub fn set(&self) -> SignalSet {
        self.set
    }

    /// Adds a signal. A standard signal that is pending already is not added again, and one for
    /// whose details there is no room loses them, not itself. It is charged to `user`, the
    /// target's, which may have `limit` signals waiting.
    ///
    /// # Errors
    /// `EAGAIN`: `limit` or the memory is exhausted, and the signal is a real-time one that `kill`
    /// did not send.
    pub fn push(&mut self, info: Info, user: &Arc<Account>, limit: u64) -> Result<()> {
        let standard = info.signal < raw::SIGRTMIN;
        if standard && self.set.has(info.signal) {
            return Ok(());
        }
        // Each standard signal of the kernel's, or of `kill`, stands here once at most.
        let exempt = standard && info.code >= 0;
        let limit = if exempt { u64::MAX } else { limit };
        let charge = charge(user, limit);
        if charge.is_some() && self.infos.try_reserve(1).is_ok() {
            self.infos.push_back((info, charge));
        } else if !standard && info.code != raw::SI_USER as i32 {
            return Err(Errno::EAGAIN);
        }
        self.set = self.set.union(SignalSet::one(info.signal));
        Ok(())
    }

    /// Adds a POSIX timer's signal. It is charged to the timer; while it waits, a further expiry is
    /// only counted in it.
    pub fn push_expiry(&mut self, info: Info) {
        let same = |other: &Info| match (other.fields, info.fields) {
            (Fields::Timer { id: a, .. }, Fields::Timer { id: b, .. }) => {
                a == b && other.signal == info.signal
            }
            _ => false,
        };
        let waiting = self.infos.iter_mut().find(|(other, _)| same(other));
        if let Some((waiting, _)) = waiting {
            if let (Fields::Timer { overrun: total, .. }, Fields::Timer { overrun, .. }) =
                (&mut waiting.fields, info.fields)
            {
                *total = total.saturating_add(overrun).saturating_add(1);
            }
            return;
        }
        // Without memory it loses its details.
        if self.infos.try_reserve(1).is_ok() {
            self.infos.push_back((info, None));
        }
        self.set = self.set.union(SignalSet::one(info.signal));
    }

    pub fn take(&mut self, wanted: SignalSet) -> Option<Info> {
        let signal = self.set.and(wanted).first()?;
        let mut found = None;
        let mut more = false;
        for (at, (info, _)) in self.infos.iter().enumerate() {
            if info.signal == signal {
                if found.is_some() {
                    more = true;
                    break;
                }
                found = Some(at);
            }
        }
        if !more {
            self.set = self.set.without(SignalSet::one(signal));
        }
        let taken = found.and_then(|at| self.infos.remove(at));
        Some(taken.map_or(Info::user(signal, 0, 0), |(info, _)| info))
    }

    pub fn remove(&mut self, set: SignalSet) {
        if !self.set.and(set).is_empty() {
            self.set = self.set.without(set);
            self.infos.retain(|(info, _)| !set.has(info.signal));
        }
    }
}

/// A signal that waits, or a timer's, as it counts in the account of a user; the drop takes it
/// back. As small as it can be, since it moves through the queue with each signal.
pub struct Charged(Arc<Account>);

/// Charges one more signal that waits, or a timer's, to the user of `account`; `None` if that one
/// has `limit` already (`RLIMIT_SIGPENDING`). The limit is one of a few hundred KiB, too little to
/// weigh, so it counts for no process.
pub fn charge(account: &Arc<Account>, limit: u64) -> Option<Charged> {
    let user = account.user();
    user.add(Kind::Signals, 1, 0);
    let charged = Charged(user.clone());
    (user.things(Kind::Signals) as u64 <= limit).then_some(charged)
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.0.take_back(Kind::Signals, 1, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::user;

    fn queued(signal: u32, value: u64) -> Info {
        let (pid, uid) = (1, 0);
        Info::new(signal, raw::SI_QUEUE, Fields::Value { pid, uid, value })
    }

    #[test]
    fn standard_signals_collapse_and_real_time_signals_queue() {
        let mut queue = Queue::default();
        let user = user::find(80_001);
        for value in 0..3 {
            queue.push(queued(raw::SIGUSR1, value), &user, 10).unwrap();
            queue.push(queued(40, value), &user, 10).unwrap();
        }
        let all = SignalSet(!0);
        assert_eq!(queue.take(all), Some(queued(raw::SIGUSR1, 0)));
        for value in 0..3 {
            assert_eq!(queue.take(all), Some(queued(40, value)));
        }
        assert_eq!(queue.take(all), None);
        assert_eq!(user.things(Kind::Signals), 0);
    }

    #[test]
    fn a_timer_waits_once_and_counts() {
        let expiry = |id, overrun| {
            let value = 5;
            Info::new(40, raw::SI_TIMER, Fields::Timer { id, overrun, value })
        };
        let mut queue = Queue::default();
        queue.push_expiry(expiry(1, 0));
        queue.push_expiry(expiry(2, 3));
        queue.push_expiry(expiry(1, 0));
        queue.push_expiry(expiry(1, 4));
        let all = SignalSet(!0);
        assert_eq!(queue.take(all), Some(expiry(1, 6)));
        assert_eq!(queue.take(all), Some(expiry(2, 3)));
        assert_eq!(queue.take(all), None);
    }

    #[test]
    fn a_full_queue_refuses_real_time_signals_only() {
        let mut queue = Queue::default();
        let user = user::find(80_002);
        queue.push(queued(40, 0), &user, 1).unwrap();
        assert_eq!(queue.push(queued(40, 1), &user, 1), Err(Errno::EAGAIN));
        queue.push(queued(raw::SIGTERM, 1), &user, 1).unwrap();
        assert_eq!(
            queue.take(SignalSet(!0)).map(|i| (i.signal, i.code)),
            Some((raw::SIGTERM, raw::SI_USER as i32))
        );
    }

    #[test]
    fn removal_leaves_the_rest() {
        let mut queue = Queue::default();
        let user = user::find(80_003);
        queue.push(queued(raw::SIGCONT, 0), &user, 9).unwrap();
        queue.push(queued(raw::SIGHUP, 0), &user, 9).unwrap();
        queue.remove(SignalSet::one(raw::SIGCONT));
        assert_eq!(queue.set(), SignalSet::one(raw::SIGHUP));
        assert_eq!(queue.take(SignalSet::one(raw::SIGCONT)), None);
    }
}
