//! The backing of a swap device: a block device, a file, or memory.

use alloc::{boxed::Box, vec::Vec};
use nucleus::Frame;

/// The error of a read or write of a swap device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreFailed;

/// The completion of a read or write: runs in a kernel task, may take sleeping locks briefly, and
/// does no I/O.
pub type Done = Box<dyn FnOnce(Result<(), StoreFailed>) + Send>;

/// Space for pages in slots of one page each. Several operations may be under way at a time, but
/// never two on one slot. Neither operation waits: `done` is called once, later or before the call
/// returns, and without any lock that the caller of `read` or `write` may hold. No lock is held on
/// entry.
pub trait SwapStore: Send + Sync {
    /// The number of slots; they are numbered from 0.
    fn slots(&self) -> u64;

    /// The slots that cannot be used.
    fn bad_slots(&self) -> &[u64] {
        &[]
    }

    /// Reads the slots from `slot` on into `frames`, one each, which are not accessed before
    /// `done`.
    fn read(&self, slot: u64, frames: &[Frame], done: Done);

    /// Writes `frames` to the slots from `slot` on. Their bytes may change meanwhile; the content
    /// of the slots does not matter then. Drops all its references to the frames before `done`,
    /// which checks for other references.
    fn write(&self, slot: u64, frames: Vec<Frame>, done: Done);
}
