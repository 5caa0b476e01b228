//! Signals that wait to be taken.

use alloc::collections::VecDeque;

use abi::{Errno, Result, raw::general as raw};

use super::{Fields, Info, SignalSet};

/// Pending signals. One of each standard signal, any number of each real-time signal.
pub struct Queue {
    set: SignalSet,
    infos: VecDeque<Info>,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue::new()
    }
}

impl Queue {
    /// Nothing pending. No allocation.
    pub const fn new() -> Queue {
        Queue {
            set: SignalSet::EMPTY,
            infos: VecDeque::new(),
        }
    }

    /// What is pending.
    pub fn set(&self) -> SignalSet {
        self.set
    }

    /// Adds a signal. A standard signal that is pending already is not added again, and one for whose
    /// details there is no room loses them, not itself.
    ///
    /// # Errors
    /// `EAGAIN`: `limit` or the memory is exhausted, and the signal is a real-time one.
    pub fn push(&mut self, info: Info, limit: u64) -> Result<()> {
        let standard = info.signal < raw::SIGRTMIN;
        if standard && self.set.has(info.signal) {
            return Ok(());
        }
        // Each standard signal of the kernel's stands here once at most.
        let exempt = standard && info.is_from_kernel();
        let room = exempt || (self.infos.len() as u64) < limit;
        if room && self.infos.try_reserve(1).is_ok() {
            self.infos.push_back(info);
        } else if !standard {
            return Err(Errno::EAGAIN);
        }
        self.set = self.set.union(SignalSet::one(info.signal));
        Ok(())
    }

    /// Takes the next signal of `wanted`.
    pub fn take(&mut self, wanted: SignalSet) -> Option<Info> {
        let signal = self.set.and(wanted).first()?;
        let mut found = None;
        let mut more = false;
        for (at, info) in self.infos.iter().enumerate() {
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
        Some(found.and_then(|at| self.infos.remove(at)).unwrap_or(Info {
            signal,
            code: raw::SI_USER as i32,
            errno: 0,
            fields: Fields::User { pid: 0, uid: 0 },
        }))
    }

    /// Drops all pending signals of `set`.
    pub fn remove(&mut self, set: SignalSet) {
        if !self.set.and(set).is_empty() {
            self.set = self.set.without(set);
            self.infos.retain(|info| !set.has(info.signal));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(signal: u32, value: u64) -> Info {
        Info {
            signal,
            code: raw::SI_QUEUE,
            errno: 0,
            fields: Fields::Value {
                pid: 1,
                uid: 0,
                value,
            },
        }
    }

    #[test]
    fn standard_signals_collapse_and_real_time_signals_queue() {
        let mut queue = Queue::new();
        for value in 0..3 {
            queue.push(queued(raw::SIGUSR1, value), 10).unwrap();
            queue.push(queued(40, value), 10).unwrap();
        }
        let all = SignalSet(!0);
        assert_eq!(queue.take(all), Some(queued(raw::SIGUSR1, 0)));
        for value in 0..3 {
            assert_eq!(queue.take(all), Some(queued(40, value)));
        }
        assert_eq!(queue.take(all), None);
    }

    #[test]
    fn a_full_queue_refuses_real_time_signals_only() {
        let mut queue = Queue::new();
        queue.push(queued(40, 0), 1).unwrap();
        assert_eq!(queue.push(queued(40, 1), 1), Err(Errno::EAGAIN));
        queue.push(queued(raw::SIGTERM, 1), 1).unwrap();
        assert_eq!(
            queue.take(SignalSet(!0)).map(|i| (i.signal, i.code)),
            Some((raw::SIGTERM, raw::SI_USER as i32))
        );
    }

    #[test]
    fn removal_leaves_the_rest() {
        let mut queue = Queue::new();
        queue.push(queued(raw::SIGCONT, 0), 9).unwrap();
        queue.push(queued(raw::SIGHUP, 0), 9).unwrap();
        queue.remove(SignalSet::one(raw::SIGCONT));
        assert_eq!(queue.set(), SignalSet::one(raw::SIGHUP));
        assert_eq!(queue.take(SignalSet::one(raw::SIGCONT)), None);
    }
}
