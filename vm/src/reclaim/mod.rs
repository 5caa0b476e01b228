//! Reclaim: the pagedaemon and swap-off (`uvm.txt` 6), and what programs say of memory that they do
//! not need.
//!
//! Programs allocate frames freely, and page caches fill what is left. When few frames are free,
//! the pagedaemon finds pages that were not used recently and frees them: clean pages at once,
//! dirty ones after they are written.
//!
//! - `scan`: second chance: whether a page was used, and what happens to it.
//! - `anonymous`: swap-backed pages; `caches`: the page caches of file systems.
//! - `daemon`: the task: when it reclaims, how much, and from which of the two.
//! - `advise`: `madvise`, `mincore`, `msync`; `deactivate`: `MADV_COLD` and `MADV_FREE`;
//!   `page_out`: `MADV_PAGEOUT`.
//! - `swap_off`: removal of a swap device; `swap_audit`: a check that no slot leaks.

mod advise;
mod anonymous;
mod caches;
mod daemon;
mod deactivate;
mod page_out;
mod scan;
mod swap_audit;
mod swap_off;

pub use anonymous::{inactive_anonymous, set_swap_cluster, swap_cluster};
pub use caches::{Cache, register_cache};
pub use daemon::{start_pagedaemon, stop_pagedaemon};
pub use scan::{Fate, Scan, Tally, Urgency, active_in_objects};
pub use swap_audit::{SwapAudit, audit_swap};
pub use swap_off::swap_off;
