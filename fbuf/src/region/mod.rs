//! Fbufs (`fbufs.txt` 3): memory at one address in every domain, written by its originator and read
//! by the receivers of its path.
//!
//! ```text
//!   region   64 GiB at REGION_START in each address space that has entered (a Domain)
//!    └─ chunk   2 MiB; a path gets Runs of contiguous chunks, mapped over the empty region
//!        └─ fbuf   pages that the originator's own allocator divides chunks into
//! ```
//!
//! - [`Domain`]: an address space that has entered. The empty region in it reads as zeros, which
//!   are empty leaves.
//! - [`Path`]: an originator and its receivers, with the chunks that it has. Its [`Mode`] says when
//!   receivers get to read a chunk (*cached*: as long as they are members; *uncached*: while a
//!   message includes the page) and whether the originator may write what it has sent (*volatile*)
//!   or not (*secured*).
//! - A message: the address of a root node. The kernel walks the aggregate (`dag`), so that each
//!   page it reaches has a reference until the last receiver frees the message, or ends. The page
//!   is then noted for the originator, which may use it again.
//!
//! The kernel finds pages by its own table and the run's object, never by mappings: what a program
//! does to its own mappings harms itself only. Mappings stay at their place
//! ([`MapRequest::stays`](vm::MapRequest::stays)), so removing a run's addresses removes all of
//! them.
//!
//! - [`Pool`]: a path whose originator is the kernel: what devices and the kernel write is read by
//!   the receivers where it lies.
//!
//! # Locks
//!
//! `table` (the region's) and each path have one sleeping lock; two paths are never locked
//! together. The lock of a path is held while mappings of its runs change. Sending on a path takes
//! no other of these unless the aggregate reaches other paths' chunks. Memory of programs is read,
//! and pages are brought back from swap, without these locks.

mod bits;
mod domain;
mod idle;
mod kernel;
mod kernel_pages;
mod listing;
mod message;
mod mode;
mod path;
mod reading;
mod run;
mod shares;
mod steps;
mod table;
mod taking;
mod transfer;

pub use domain::Domain;
pub use idle::reclaim_idle;
pub use kernel::Pool;
pub use kernel_pages::{LONGEST_PACKET, Part};
pub use listing::{PathStatus, statuses};
pub use message::MOST_MESSAGES;
pub use mode::{Mode, default_mode, set_default_mode};
pub use path::{Path, Role};
pub use reading::Source;
pub use transfer::{Readiness, Received};

use nucleus::VirtAddr;

/// Where the region starts in every domain.
pub const REGION_START: VirtAddr = VirtAddr(0x6000_0000_0000);
/// Bytes of the region.
pub const REGION_SIZE: usize = 64 << 30;
/// Bytes of a chunk: what a page table maps, so that no two paths share one.
pub const CHUNK: usize = 2 << 20;
/// The most receivers of a path.
pub const MOST_MEMBERS: usize = 15;
/// The most chunks of one run.
pub const MOST_RUN_CHUNKS: usize = 32;
/// The chunks that a path may have unless it asks for another limit.
pub const DEFAULT_LIMIT: usize = 32;
/// The largest limit of a path.
pub const MOST_PATH_CHUNKS: usize = 1024;
/// The most chunks of all paths of one user: an eighth of the region.
pub const MOST_USER_CHUNKS: usize = REGION_SIZE / CHUNK / 8;
/// The most messages in the queue of one receiver.
pub const MOST_QUEUED: usize = 64;
/// Pages with notices from which on the originator's descriptor reports `POLLPRI`.
pub const MANY_NOTICES: usize = 256;
