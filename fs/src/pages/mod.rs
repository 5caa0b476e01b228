//! The pages of files on disks: one cache for read, write and mappings (`uvm.txt` 4, 6).
//!
//! In the order in which a page meets it:
//!
//! - `store`: what a file system says and does for a file, [`Store`]; `file`: its pages, [`FilePages`], the vnode's pager;
//!   `cached`: what others ask of them, [`Cached`].
//! - `reading`: pages come in, in clusters; `ahead`: how much is read before it is wanted.
//! - `writing`: bytes go into pages; `cut`: truncation and holes; `set`: which pages are dirty, written, or have blocks.
//! - `dirty`: how many pages may be dirty; `writeback`: writing them, in clusters; `flusher`: who does so in time;
//!   `errors`: who is told when it fails.
//! - `table`: inodes in memory, and files that nobody uses; `files`: giving pages up; `pressure`: what the pagedaemon asks. `daemons`: the
//!   tasks.
//!
//! ```text
//!              absent ── Claim ──> resident, clean ── evict ──> absent
//!                │                   │        ^
//!                │ write of all      │ write  │ flusher, fsync, msync: in `writing` until the device has it
//!                v                   v        │
//!              resident, dirty <─────┴── resident, clean, being written
//! ```

mod ahead;
mod cached;
mod cut;
mod daemons;
pub mod dirty;
mod errors;
mod file;
mod files;
mod flusher;
mod pressure;
mod reading;
mod set;
mod store;
mod table;
mod writeback;
mod writing;

use nucleus::OutOfMemory;

pub use ahead::Access;
pub use cached::{Cached, Counts};
#[cfg(not(target_os = "none"))]
pub use daemons::stop;
pub use errors::{ErrorCount, ErrorMark};
pub use file::FilePages;
pub use files::{count, reclaim, reclaim_clean};
pub use flusher::write_all;
pub use set::PageSet;
pub use store::Store;
pub use table::{InCore, InUse, Table};

/// Starts the tasks that write pages back and end removed files.
///
/// # Errors
/// No memory for them.
pub fn start() -> Result<(), OutOfMemory> {
    pressure::register();
    flusher::start()?;
    table::start()
}

/// Forgets what an earlier simulated machine left behind.
#[cfg(not(target_os = "none"))]
pub fn reset() {
    daemons::reset();
    dirty::reset();
    files::reset();
    flusher::reset();
    pressure::reset();
    table::reset();
}
