//! Taking pending signals without a handler.

use super::{Info, SignalSet, timer};
use crate::process::Thread;

impl Thread {
    /// Takes a pending signal of `set`, blocked or not (`sigtimedwait`).
    pub fn take_pending(&self, set: SignalSet) -> Option<Info> {
        let mut state = self.process().signals.lock();
        let mut inner = self.signals.inner.lock();
        let taken = inner.pending.take(set);
        let taken = taken.or_else(|| state.pending.take(set));
        taken.map(|mut info| {
            timer::taken(self.process(), &mut info);
            info
        })
    }
}
