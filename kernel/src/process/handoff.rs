//! A value that one thread hands to another, which sleeps until it comes.

use nucleus::{
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue, Woken},
};

/// A place for one value, and the sleep until it is there.
pub struct Handoff<T> {
    value: SpinLock<Option<T>>,
    /// Woken with the value.
    pub(super) given: WaitQueue,
}

impl<T> Default for Handoff<T> {
    fn default() -> Handoff<T> {
        Handoff {
            value: SpinLock::new(Rank::Leaf, None),
            given: WaitQueue::new(),
        }
    }
}

impl<T> Handoff<T> {
    pub fn give(&self, value: T) {
        *self.value.lock() = Some(value);
        self.given.wake_all();
    }

    /// Takes the value, if it has come.
    pub fn take(&self) -> Option<T> {
        self.value.lock().take()
    }

    /// Sleeps until the value comes, and takes it.
    ///
    /// # Errors
    /// The other reason that ended the sleep; the value may have come all the same.
    pub fn wait(&self, how: Sleep) -> Result<T, Woken> {
        self.given.wait(how, || self.take())
    }
}
