//! What the kernel gives for pages to go to: a block device, a file, or memory.

use alloc::{boxed::Box, vec::Vec};
use nucleus::Frame;

/// A read or a write of a swap device did not succeed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreFailed;

/// What is to be done when pages were read or written: runs in a kernel task, may take sleeping locks for short, waits for no
/// I/O.
pub type Done = Box<dyn FnOnce(Result<(), StoreFailed>) + Send>;

/// A place for pages, in slots of one page each. Several operations may be under way at a time, never two on one slot.
/// Neither call waits: `done` is called once, later or before the call returns, with no lock held that the caller of
/// `read` or `write` has. They may be called with no lock held.
pub trait SwapStore: Send + Sync {
    /// How many slots there are, from 0 on.
    fn slots(&self) -> u64;

    /// Those that can't be used.
    fn bad_slots(&self) -> &[u64] {
        &[]
    }

    /// Reads the slots from `slot` on into `frames`, one each, which nobody else looks at until `done`.
    fn read(&self, slot: u64, frames: &[Frame], done: Done);

    /// Writes `frames` to the slots from `slot` on. Their bytes may change meanwhile; what the slots have then is of no
    /// interest. All its handles of them are given up before `done`, which looks whether anybody has some.
    fn write(&self, slot: u64, frames: Vec<Frame>, done: Done);
}
