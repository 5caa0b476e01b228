//! The urgent place of a stream (`MSG_OOB`): a read ends before it, and the next one passes it.
//!
//! There is one at a time: the next one takes its place. Whether a byte of the stream stands at it
//! or one is kept beside the stream, and whether that is read in line, is the kind's.

use abi::Result;

use super::{Chain, State, fill::BATCH};
use crate::slice::Slice;

impl<S: State> Chain<S> {
    /// Returns whether the first byte is at the urgent place.
    #[inline]
    pub fn is_at_urgent(&self) -> bool {
        self.urgent == Some(self.taken)
    }

    /// Passes the urgent place if the first byte is at it; returns whether it was. `None` if the
    /// read `has_taken` bytes, and so ends here.
    #[inline]
    pub fn pass_urgent(&mut self, has_taken: bool) -> Option<bool> {
        let is_at = self.is_at_urgent();
        if is_at {
            if has_taken {
                return None;
            }
            self.urgent = None;
        }
        Some(is_at)
    }

    /// Returns the position at which the urgent place ends a read that begins at `at`.
    #[inline]
    pub fn urgent_after(&self, at: u64) -> u64 {
        self.urgent.filter(|&place| place > at).unwrap_or(u64::MAX)
    }

    /// Takes the byte at the urgent place out of the stream; those behind it move up.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn cut_urgent(&mut self) -> Result<Option<Slice>> {
        let Some(at) = self.urgent else {
            return Ok(None);
        };
        // The byte may split a slice, or be the last one, which a writer is about to continue. What
        // a writer has reserved stays.
        self.data.reserve(1 + BATCH)?;
        self.urgent = None;
        self.data.take_byte((at - self.taken) as usize)
    }
}
