//! Threads that wait for words in a path's memory, which its originator writes: the end of the
//! originator wakes them.

use alloc::{boxed::Box, vec::Vec};

use abi::{Errno, Result};
use nucleus::sync::{OnceBox, Rank, SpinLock};

use super::MOST_PATH_CHUNKS;

/// Wakes all threads that wait for words in the object with this address.
static WAKER: OnceBox<fn(usize)> = OnceBox::new();

/// Sets how threads are woken that wait for words in the object with an address. The first one
/// stays.
pub fn set_waker(waker: fn(usize)) {
    WAKER.get_or_insert(|| Box::new(waker));
}

/// The objects with words that were waited for, by address. Some may be gone.
pub(super) struct Waited(SpinLock<Vec<usize>>);

impl Waited {
    /// The most bytes of memory of its list.
    pub const MOST_BYTES: usize = MOST_PATH_CHUNKS * size_of::<usize>();

    pub const fn new() -> Waited {
        Waited(SpinLock::new(Rank::Leaf, Vec::new()))
    }

    /// Adds an object.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC` for too many.
    pub fn add(&self, object: usize) -> Result<()> {
        let mut objects = self.0.lock();
        if objects.contains(&object) {
            return Ok(());
        }
        if objects.len() >= MOST_PATH_CHUNKS {
            return Err(Errno::ENOSPC);
        }
        objects.try_reserve(1)?;
        objects.push(object);
        Ok(())
    }

    /// Wakes all waiters. No lock is held.
    pub fn wake(&self) {
        let objects = core::mem::take(&mut *self.0.lock());
        if let Some(waker) = WAKER.get() {
            objects.into_iter().for_each(waker);
        }
    }
}
