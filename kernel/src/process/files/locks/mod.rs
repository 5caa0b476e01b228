//! Advisory locks: `flock` on whole files, and the record locks of `fcntl`, of processes or of open
//! files.
//!
//! A table finds a file's locks by device and inode; they have a lock and a queue of waiters of
//! their own. Record locks stand in three trees (`tree`): those that share and those that exclude
//! by first byte, to find what conflicts, and all of them by owner, to change an owner's. Each
//! operation takes logarithmic time for each lock that it changes. Programs without locks never
//! come here.
//!
//! Lock order: the table, or the waiters for record locks; then one file's locks.

mod deadlock;
mod fcntl;
mod file_locks;
mod flock;
mod listing;
mod owner;
mod records;
mod tree;

use abi::{Errno, Result};
use nucleus::frame;

pub use fcntl::{For, conflicting_record, lock_record, unlock_record};
pub(super) use file_locks::release_all;
pub use flock::{lock_whole, unlock_whole};
pub use listing::{Listed, all};
pub(super) use owner::Ownership;
pub use records::Record;

/// The sharing that a lock allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Others may read.
    Shared,
    /// Others may do nothing.
    Exclusive,
}

/// Locks that a user may have: two for each frame of memory, a tenth of it. Linux has no
/// limit.
fn most_locks() -> usize {
    frame::total() * 2
}

fn may_allocate() -> Result<()> {
    if frame::is_scarce() {
        return Err(Errno::ENOLCK);
    }
    Ok(())
}
