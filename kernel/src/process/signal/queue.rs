//! Signals that wait to be taken.
//!
//! A target's user may have thousands waiting, so no operation walks over them: each signal has its
//! own list, by the order of arrival, and a timer's signal is found by the timer. The locks of
//! signals are held meanwhile. A lone signal, the usual case, takes no memory.

use alloc::{collections::BTreeMap, sync::Arc};

use abi::{Errno, Result, raw::general as raw};
use nucleus::frame;
use vm::account::{Account, Kind};

use super::{Fields, Info, SignalSet};

/// Pending signals. One of each standard signal, any number of each real-time signal.
#[derive(Default)]
pub struct Queue {
    set: SignalSet,
    /// One that came while no other waited; older than those of its signal in `lists`.
    lone: Option<Waiting>,
    /// By signal; none of them is empty.
    lists: BTreeMap<u32, List>,
}

/// With the charge on the target's user.
type Waiting = (Info, Option<Charged>);

/// Waiting signals of one number.
#[derive(Default)]
struct List {
    /// By arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// The places of POSIX timers' signals in `waiting`, by timer.
    timers: BTreeMap<i32, u64>,
    /// The place of the next one.
    next: u64,
}

/// Signals that were removed, any number of them. To be dropped without locks.
#[derive(Default)]
#[must_use]
pub struct Removed {
    _lone: Option<Waiting>,
    _lists: BTreeMap<u32, List>,
}

/// Returns the timer whose expiry `info` reports.
fn timer(info: &Info) -> Option<i32> {
    match info.fields {
        Fields::Timer { id, .. } => Some(id),
        _ => None,
    }
}

impl Queue {
    /// Returns the set of pending signals.
    pub fn set(&self) -> SignalSet {
        self.set
    }

    /// Adds a signal. A standard signal that is pending already is not added again, and one for
    /// whose details there is no room loses them, not itself. It is charged to the user of
    /// `account`, the target's, who may have `limit` signals waiting.
    ///
    /// # Errors
    /// `EAGAIN`: `limit` or the memory is exhausted, and the signal is a real-time one that `kill`
    /// did not send.
    pub fn push(&mut self, info: Info, account: &Arc<Account>, limit: u64) -> Result<()> {
        let standard = info.signal < raw::SIGRTMIN;
        if standard && self.set.has(info.signal) {
            return Ok(());
        }
        // Each standard signal of the kernel's, or of `kill`, stands here once at most.
        let exempt = standard && info.code >= 0;
        let limit = if exempt { u64::MAX } else { limit };
        let charge = charge(account, limit);
        let has_details = charge.is_some() && self.put((info, charge));
        if !has_details && !standard && info.code != raw::SI_USER as i32 {
            return Err(Errno::EAGAIN);
        }
        self.set = self.set.union(SignalSet::one(info.signal));
        Ok(())
    }

    /// Puts a signal behind those of its number; returns whether there was memory. A tree takes a
    /// node for each of its levels at most.
    fn put(&mut self, waiting: Waiting) -> bool {
        if self.lone.is_none() && self.lists.is_empty() {
            self.lone = Some(waiting);
            return true;
        }
        if frame::is_scarce() {
            return false;
        }
        let list = self.lists.entry(waiting.0.signal).or_default();
        if let Some(id) = timer(&waiting.0) {
            list.timers.insert(id, list.next);
        }
        list.waiting.insert(list.next, waiting);
        list.next += 1;
        true
    }

    /// Adds a POSIX timer's signal. It is charged to the timer; while it waits, a further expiry is
    /// only counted in it.
    pub fn push_expiry(&mut self, info: Info) {
        if let (Some((waiting, _)), Fields::Timer { overrun, .. }) =
            (self.waiting_expiry(&info), info.fields)
        {
            if let Fields::Timer { overrun: total, .. } = &mut waiting.fields {
                *total = total.saturating_add(overrun).saturating_add(1);
            }
            return;
        }
        // Without memory it loses its details.
        self.put((info, None));
        self.set = self.set.union(SignalSet::one(info.signal));
    }

    /// Returns the waiting signal of the timer whose expiry `info` reports.
    fn waiting_expiry(&mut self, info: &Info) -> Option<&mut Waiting> {
        let id = timer(info)?;
        if let Some(lone) = &mut self.lone
            && lone.0.signal == info.signal
            && timer(&lone.0) == Some(id)
        {
            return self.lone.as_mut();
        }
        let list = self.lists.get_mut(&info.signal)?;
        list.waiting.get_mut(list.timers.get(&id)?)
    }

    /// Takes the first signal of `wanted`: the oldest one of the lowest number.
    #[inline]
    pub fn take(&mut self, wanted: SignalSet) -> Option<Info> {
        let signal = self.set.and(wanted).first()?;
        Some(self.take_first(signal))
    }

    /// Takes the oldest one of `signal`, which is pending.
    fn take_first(&mut self, signal: u32) -> Info {
        let taken = match self.lone.take_if(|(info, _)| info.signal == signal) {
            Some(lone) => Some(lone),
            None => self.take_listed(signal),
        };
        if !self.lists.contains_key(&signal) {
            self.set = self.set.without(SignalSet::one(signal));
        }
        taken.map_or(Info::user(signal, 0, 0), |(info, _)| info)
    }

    /// Takes the first one of a signal's list.
    fn take_listed(&mut self, signal: u32) -> Option<Waiting> {
        let list = self.lists.get_mut(&signal)?;
        let (_, first) = list.waiting.pop_first()?;
        if let Some(id) = timer(&first.0) {
            list.timers.remove(&id);
        }
        if list.waiting.is_empty() {
            self.lists.remove(&signal);
        }
        Some(first)
    }

    /// Removes the signals of a set.
    pub fn remove(&mut self, set: SignalSet) -> Removed {
        let mut removed = Removed::default();
        if self.set.and(set).is_empty() {
            return removed;
        }
        self.set = self.set.without(set);
        removed._lone = self.lone.take_if(|(info, _)| set.has(info.signal));
        // At most one list for each signal.
        for signal in (1..=u64::BITS).filter(|&signal| set.has(signal)) {
            if let Some(list) = self.lists.remove(&signal) {
                removed._lists.insert(signal, list);
            }
        }
        removed
    }
}

/// A signal that waits, or a timer's, as it counts in the account of a user; the drop takes it
/// back. As small as it can be, since it moves through the queue with each signal. It refers to the
/// target's account, whose count only it and its senders change: that of the user would be shared
/// by all of the user's processes.
pub struct Charged(Arc<Account>);

/// Charges one more signal that waits, or a timer's, to the user of `account`; `None` if that one
/// has `limit` already (`RLIMIT_SIGPENDING`). The limit is one of a few hundred KiB, too little to
/// weigh, so it counts for no process.
pub fn charge(account: &Arc<Account>, limit: u64) -> Option<Charged> {
    let user = account.user();
    user.add(Kind::Signals, 1, 0);
    let charged = Charged(account.clone());
    (user.things(Kind::Signals) as u64 <= limit).then_some(charged)
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.0.user().take_back(Kind::Signals, 1, 0);
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
        drop(queue.remove(SignalSet::one(raw::SIGCONT)));
        assert_eq!(queue.set(), SignalSet::one(raw::SIGHUP));
        assert_eq!(queue.take(SignalSet::one(raw::SIGCONT)), None);
    }

    #[test]
    fn a_long_queue_costs_no_walk() {
        const MANY: u64 = 100_000;
        let mut queue = Queue::default();
        let user = user::find(80_004);
        for value in 0..MANY {
            queue.push(queued(40, value), &user, MANY * 2).unwrap();
        }
        for value in 0..MANY {
            queue.push(queued(41, value), &user, MANY * 2).unwrap();
        }
        // Behind all of the others, or a look at each of them for each one.
        for value in 0..MANY {
            assert_eq!(queue.take(SignalSet::one(41)), Some(queued(41, value)));
        }
        assert_eq!(queue.set(), SignalSet::one(40));
        let removed = queue.remove(SignalSet::one(40));
        assert_eq!(user.things(Kind::Signals) as u64, MANY);
        drop(removed);
        assert_eq!(user.things(Kind::Signals), 0);
        assert_eq!(queue.take(SignalSet(!0)), None);
    }
}
