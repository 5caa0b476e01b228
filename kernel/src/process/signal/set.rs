//! Sets of signals.

use abi::raw::general as raw;

/// Signals 1 to 64; signal n is bit n - 1, as in Linux's `sigset_t`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SignalSet(pub u64);

impl SignalSet {
    pub const EMPTY: SignalSet = SignalSet(0);
    /// The two that can be neither caught, blocked nor ignored.
    pub const UNSTOPPABLE: SignalSet = SignalSet::of(&[raw::SIGKILL, raw::SIGSTOP]);
    /// Those that stop a process by default.
    pub const STOPS: SignalSet =
        SignalSet::of(&[raw::SIGSTOP, raw::SIGTSTP, raw::SIGTTIN, raw::SIGTTOU]);
    /// Those that an instruction causes; they are delivered before others.
    pub const SYNCHRONOUS: SignalSet = SignalSet::of(&[
        raw::SIGSEGV,
        raw::SIGBUS,
        raw::SIGILL,
        raw::SIGTRAP,
        raw::SIGFPE,
        raw::SIGSYS,
    ]);
    /// Those that are ignored by default.
    pub const IGNORED: SignalSet =
        SignalSet::of(&[raw::SIGCONT, raw::SIGCHLD, raw::SIGWINCH, raw::SIGURG]);
    /// Those that would leave a core file by default.
    pub const CORE: SignalSet = SignalSet::of(&[
        raw::SIGQUIT,
        raw::SIGILL,
        raw::SIGTRAP,
        raw::SIGABRT,
        raw::SIGFPE,
        raw::SIGSEGV,
        raw::SIGBUS,
        raw::SIGSYS,
        raw::SIGXCPU,
        raw::SIGXFSZ,
    ]);

    /// The set of these signals.
    pub const fn of(signals: &[u32]) -> SignalSet {
        let mut set = 0;
        let mut i = 0;
        while i < signals.len() {
            set |= 1 << (signals[i] - 1);
            i += 1;
        }
        SignalSet(set)
    }

    /// The set of one signal, 1 to 64.
    pub const fn one(signal: u32) -> SignalSet {
        SignalSet(1 << (signal - 1))
    }

    /// Whether `signal`, 1 to 64, is in the set.
    pub const fn has(self, signal: u32) -> bool {
        self.0 & (1 << (signal - 1)) != 0
    }

    pub const fn union(self, other: SignalSet) -> SignalSet {
        SignalSet(self.0 | other.0)
    }

    /// In this one but not in `other`.
    pub const fn without(self, other: SignalSet) -> SignalSet {
        SignalSet(self.0 & !other.0)
    }

    pub const fn and(self, other: SignalSet) -> SignalSet {
        SignalSet(self.0 & other.0)
    }

    /// Whether no signal is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The signal to deliver first: a synchronous one if there is any, else the lowest.
    pub const fn first(self) -> Option<u32> {
        let urgent = self.and(SignalSet::SYNCHRONOUS);
        let from = if urgent.is_empty() { self.0 } else { urgent.0 };
        if from == 0 {
            None
        } else {
            Some(from.trailing_zeros() + 1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synchronous_signals_come_first() {
        let set = SignalSet::of(&[raw::SIGHUP, raw::SIGSEGV, raw::SIGTERM]);
        assert_eq!(set.first(), Some(raw::SIGSEGV));
        assert_eq!(
            set.without(SignalSet::SYNCHRONOUS).first(),
            Some(raw::SIGHUP)
        );
        assert_eq!(SignalSet::EMPTY.first(), None);
        assert!(SignalSet::one(64).has(64));
    }
}
