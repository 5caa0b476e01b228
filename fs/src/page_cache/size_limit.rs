//! How large a caller may make a file (`RLIMIT_FSIZE`).

use core::cell::Cell;

use abi::{Errno, Result};

/// The largest size to which a caller may make a file grow, and whether that stopped it. It is
/// compared under the lock under which a file's size changes.
#[derive(Debug)]
pub struct SizeLimit {
    bytes: u64,
    refused: Cell<bool>,
}

impl SizeLimit {
    /// A limit in bytes, or `u64::MAX` for none.
    #[inline]
    pub const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            refused: Cell::new(false),
        }
    }

    /// No limit.
    #[inline]
    pub const fn none() -> Self {
        Self::new(u64::MAX)
    }

    /// Returns how many bytes may be written from byte `start` on.
    ///
    /// # Errors
    /// `EFBIG` if none.
    #[inline]
    pub fn room(&self, start: u64) -> Result<u64> {
        match self.bytes.saturating_sub(start) {
            0 => Err(self.refuse()),
            room => Ok(room),
        }
    }

    /// Checks that the size may change from `old` to `new`: a file beyond the limit may shrink.
    ///
    /// # Errors
    /// `EFBIG`.
    #[inline]
    pub fn check(&self, old: u64, new: u64) -> Result<()> {
        match new > old && new > self.bytes {
            true => Err(self.refuse()),
            false => Ok(()),
        }
    }

    /// Returns whether this limit refused something.
    pub fn has_refused(&self) -> bool {
        self.refused.get()
    }

    #[cold]
    fn refuse(&self) -> Errno {
        self.refused.set(true);
        Errno::EFBIG
    }
}
