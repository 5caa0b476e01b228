//! The carrier of messages to a server and of its answers.

use alloc::boxed::Box;

use abi::Result;
use fbuf::View;
use nucleus::task::{Sleep, Woken};

/// A way to a server. Messages may be under way together; the server answers in any order.
pub trait Transport: Send + Sync {
    /// The most slices that one message can carry, those of its data there and back together.
    fn max_slices(&self) -> usize;

    /// Sends `message` followed by the bytes of `data`. The first `reply` bytes of the answer are
    /// kept for [`Flight::take`], the rest goes into `receive`. The slices' frames are held until
    /// the answer is there.
    ///
    /// # Errors
    /// `EIO` if the server is gone, `ENOMEM`.
    fn send(
        &self,
        message: &[u8],
        data: &[View],
        reply: usize,
        receive: &[View],
    ) -> Result<Box<dyn Flight>>;

    /// Whether a waiter should cancel after a signal: its process is being killed.
    fn gives_up(&self) -> bool {
        false
    }
}

/// A message under way. Dropping it before it has completed discards the answer.
pub trait Flight: Send {
    /// Whether the answer is there.
    fn has_landed(&self) -> bool;

    /// Sleeps until the answer is there.
    ///
    /// # Errors
    /// [`Woken`] where `how` allows it.
    fn wait(&self, how: Sleep) -> core::result::Result<(), Woken>;

    /// Copies the first bytes of the answer, which is there; returns how many bytes the server sent
    /// in all.
    ///
    /// # Errors
    /// `EIO` if the server is gone.
    fn take(&mut self, to: &mut [u8]) -> Result<usize>;
}
