//! The page cache: one for read, write and mappings, whatever the backing store (`uvm.txt` 4, 6).
//!
//! In the order in which a page meets it:
//!
//! - `backing_store`: what differs between stores, [`BackingStore`]; `cache`: a file's pages,
//!   [`PageCache`], the vnode's pager.
//! - `read`, `write`, `truncate`: the same for all stores: bytes go out of and into pages;
//!   truncation, holes, allocation; [`SizeLimit`]: how large a caller may make a file.
//! - `block_store`: a file's blocks, [`BlockStore`]; `block_backed`: the store that writes pages
//!   back to blocks, [`WriteBack`]; `cached`: the operations that need not know the file system,
//!   [`Cached`]. tmpfs and 9P have their stores beside their vnodes.
//! - `direct`: bytes go between the blocks and a program's memory, past the pages (`O_DIRECT`).
//! - `in_place`: the pages are pages of a medium that is memory (`-o dax`).
//! - `page_in`: pages come in, in clusters; `readahead`: how much is read beyond a miss;
//!   `page_set`: which pages are dirty, under writeback, or have blocks.
//! - `dirty`: the limits on dirty pages; `writeback`: writes them, in clusters; `flusher`: starts
//!   writeback in time; `errors`: reports its failures to open files.
//! - `inode_cache`: inodes in memory, used and unused; `reclaim`: evicts pages; `pressure`: the
//!   pagedaemon's way in. `daemons`: the tasks.
//!
//! ```text
//!              absent ── busy ───> resident, clean ── evict ──> absent
//!                │                   │        ^
//!                │ write of all      │ write  │ writeback: in `writing` until the device has it
//!                v                   v        │
//!              resident, dirty <─────┴── resident, clean, being written
//! ```

mod backing_store;
mod block_backed;
mod block_store;
mod cache;
mod cached;
mod daemons;
mod direct;
pub mod dirty;
mod errors;
mod flusher;
mod in_place;
mod inode_cache;
mod page_in;
mod page_set;
mod pressure;
mod read;
mod readahead;
mod reclaim;
mod size_limit;
mod truncate;
mod write;
mod writeback;

use nucleus::OutOfMemory;

pub use backing_store::{BackingStore, Mapping, Properties};
pub use block_backed::WriteBack;
pub use block_store::BlockStore;
pub use cache::PageCache;
pub(crate) use cache::{PAGE, errno, new_page, pager_error, pages_with};
pub use cached::{Cached, Counts};
pub use errors::{ErrorCount, ErrorMark};
pub use flusher::write_all;
pub use inode_cache::{InCore, InUse, InodeCache};
pub use page_set::PageSet;
pub use readahead::{Access, Streams};
pub(crate) use reclaim::SHORTAGE;
pub use reclaim::{Evictable, Listing, Rereadable, count, reclaim, reclaim_clean};
pub use size_limit::SizeLimit;

/// Starts the tasks that write pages back and end removed files.
///
/// # Errors
/// No memory for them.
pub fn start() -> Result<(), OutOfMemory> {
    pressure::register();
    flusher::start()?;
    inode_cache::start()
}

/// Ends the tasks that [`start`] started, and waits for it.
#[cfg(not(target_os = "none"))]
pub fn stop() {
    daemons::stop(|| {
        flusher::end();
        inode_cache::end();
    });
}

/// Resets the state that an earlier simulated machine left.
#[cfg(not(target_os = "none"))]
pub fn reset() {
    daemons::reset();
    dirty::reset();
    reclaim::reset();
    flusher::reset();
    pressure::reset();
    inode_cache::reset();
}
