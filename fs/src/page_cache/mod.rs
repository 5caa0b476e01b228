//! The pages of files on disks: one cache for read, write and mappings (`uvm.txt` 4, 6).
//!
//! In the order in which a page meets it:
//!
//! - `backing_store`: what a file system does for a file, [`BackingStore`]; `cache`: a file's pages,
//!   [`PageCache`], the vnode's pager; `cached`: the operations that need no store, [`Cached`].
//! - `read`: pages come in, in clusters; `readahead`: how much is read before it is wanted.
//! - `write`: bytes go into pages; `truncate`: truncation and holes; `page_set`: which pages are
//!   dirty, under writeback, or have blocks.
//! - `dirty`: the limits on dirty pages; `writeback`: writes them, in clusters; `flusher`: starts
//!   writeback in time; `errors`: reports its failures to open files.
//! - `inode_cache`: inodes in memory, used and unused; `reclaim`: evicts pages; `pressure`: the
//!   pagedaemon's way in. `daemons`: the tasks.
//!
//! ```text
//!              absent ── busy ───> resident, clean ── evict ──> absent
//!                │                   │        ^
//!                │ write of all      │ write  │ flusher, fsync, msync: in `writing` until the device has it
//!                v                   v        │
//!              resident, dirty <─────┴── resident, clean, being written
//! ```

mod backing_store;
mod cache;
mod cached;
mod daemons;
pub mod dirty;
mod errors;
mod flusher;
mod inode_cache;
mod page_set;
mod pressure;
mod read;
mod readahead;
mod reclaim;
mod truncate;
mod write;
mod writeback;

use nucleus::OutOfMemory;

pub use backing_store::{BackingStore, Done};
pub use cache::PageCache;
pub use cached::{Cached, Counts};
#[cfg(not(target_os = "none"))]
pub use daemons::stop;
pub use errors::{ErrorCount, ErrorMark};
pub use flusher::write_all;
pub use inode_cache::{InCore, InUse, InodeCache};
pub use page_set::PageSet;
pub use readahead::Access;
pub use reclaim::{count, reclaim, reclaim_clean};

/// Starts the tasks that write pages back and end removed files.
///
/// # Errors
/// No memory for them.
pub fn start() -> Result<(), OutOfMemory> {
    pressure::register();
    flusher::start()?;
    inode_cache::start()
}

/// Forgets what an earlier simulated machine left behind.
#[cfg(not(target_os = "none"))]
pub fn reset() {
    daemons::reset();
    dirty::reset();
    reclaim::reset();
    flusher::reset();
    pressure::reset();
    inode_cache::reset();
}
