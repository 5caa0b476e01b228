//! The pagedaemon: frames for those who need them (`uvm.txt` 6).
//!
//! Programs take frames as they please, and files fill what is left. When few frames are free, a task looks for pages that
//! were not used for long, and gives their frames back: pages of files that are as their disk has them go at once, others
//! are written first. In the order in which a page meets it:
//!
//! - `scan`: what the mappings of a page say about its use, and what becomes of it.
//! - `anonymous`: pages that go to swap; `caches`: pages that file systems keep.
//! - `daemon`: the task; how much it frees, when, from whom.
//! - `advise`, `cold`, `page_out`: what programs say of memory that they do not need.

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
