//! Errors of writeback: each open file is told of each once.

use core::sync::atomic::{AtomicU32, Ordering};

use abi::{Errno, Result};

/// The newest error was reported.
const SEEN: u32 = 1;
/// One error.
const STEP: u32 = 2;

/// Counts the failed writes of a file's pages. An error that was not reported yet is also reported
/// to files that are opened after it.
#[derive(Default)]
pub struct ErrorCount(AtomicU32);

/// The errors that an open file has been told of.
#[derive(Default)]
pub struct ErrorMark(AtomicU32);

impl ErrorCount {
    /// No errors.
    pub const fn new() -> ErrorCount {
        ErrorCount(AtomicU32::new(SEEN))
    }

    /// One more.
    pub fn note(&self) {
        let more = |count: u32| Some((count & !SEEN).wrapping_add(STEP));
        // The closure always has an answer.
        let _ = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }

    /// For a file that is opened now.
    pub fn mark(&self) -> ErrorMark {
        let now = self.0.load(Ordering::Acquire);
        ErrorMark(AtomicU32::new(match now & SEEN {
            // One less than the newest, so that it is reported.
            0 => now.wrapping_sub(STEP) | SEEN,
            _ => now,
        }))
    }

    /// A number that changes with each.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !SEEN
    }

    /// Reports to the holder of `mark` an error since the last report.
    ///
    /// # Errors
    /// `EIO` if so.
    pub fn tell(&self, mark: &ErrorMark) -> Result<()> {
        let now = self.0.load(Ordering::Acquire);
        if mark.0.load(Ordering::Acquire) == now | SEEN {
            return Ok(());
        }
        // An error in between stays untold.
        let _ = self
            .0
            .compare_exchange(now, now | SEEN, Ordering::AcqRel, Ordering::Relaxed);
        Errno::EIO.unless(mark.0.swap(now | SEEN, Ordering::AcqRel) == now | SEEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_open_file_is_told_once() {
        let errors = ErrorCount::new();
        let (a, b) = (errors.mark(), errors.mark());
        assert_eq!(errors.tell(&a), Ok(()));
        errors.note();
        errors.note();
        assert_eq!(errors.tell(&a), Err(Errno::EIO));
        assert_eq!(errors.tell(&a), Ok(()));
        let after = errors.mark();
        assert_eq!(errors.tell(&after), Ok(()), "it was told already");
        assert_eq!(errors.tell(&b), Err(Errno::EIO));
        errors.note();
        let late = errors.mark();
        assert_eq!(errors.tell(&late), Err(Errno::EIO), "it was not told yet");
        assert_eq!(errors.tell(&late), Ok(()));
        assert_eq!(errors.tell(&a), Err(Errno::EIO));
    }
}
