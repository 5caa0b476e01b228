//! The machine-independent virtual-memory system (`uvm.txt`).
//!
//! An address space is a [`Map`] of entries. An entry has an amap of anons above and an object
//! below; either may be absent. An [`Object`] is embedded in what it represents and is reached
//! through [`Pager`] operations. One fault routine serves all.
//!
//! # Modules
//!
//! From the bottom up; a module uses only modules above it in this list:
//!
//! - [`account`]: for whom memory is used.
//! - [`page_bits`]: sets of page numbers.
//! - `chunks`: the sparse array of amaps and objects, and the registry of chunks for the
//!   pagedaemon.
//! - `memory_wait`: waiting for memory.
//! - [`swap`]: the swap space, where a page is, page-in and clustered page-out.
//! - `object`: memory objects, their pagers, busy pages, writeback.
//! - `amap`: anonymous memory.
//! - `map`: requests, and the entries of an address space: map, unmap, protect, fork, `brk`,
//!   `mremap`, `mlock`.
//! - `fault`: the fault routine, fault-ahead, large pages, populating.
//! - `reclaim`: the pagedaemon; `madvise`, `msync` and `mincore`; removal of swap devices.
//! - `movement`: page loanout, page transfer, map entry passing; pages pinned for a device; access
//!   to other address spaces.
//! - `inspect`: page counts for `/proc`, places of shared memory for futexes.
//! - `switches`: the settings of this floor's mechanisms.
//!
//! # Lock order
//!
//! Outermost first; the names are those of [`nucleus::sync::Rank`].
//!
//! ```text
//!   Map                   the entries of an address space
//!    └─ Amap              one chunk of an amap, or the parts of a shared amap
//!        └─ Object        one chunk of an object
//!            ├─ Anon      where the page of a counted anon is
//!            │   └─ Swap  the table of swap devices and slots
//!            ├─ Enrolled  a shard of the registry
//!            └─ pmap      the page tables of an address space, then the mappings of one frame
//! ```
//! - Faults and queries read-lock the map, by per-CPU counts that share no cache line. Operations
//!   that change entries or take rights away write-lock it and *flush before they unlock*: no
//!   fault, new mapping or copy happens while a TLB holds an old translation of the map, with the
//!   exception below.
//! - `munmap` and `mprotect` of private anonymous memory are the exception: they change entries
//!   and translations with the map write-locked, and flush after that. Until then the range is
//!   noted as unflushed (`map/unflushed.rs`). Nothing is mapped there, and code that takes absent
//!   entries, or read-only ones, for flushed waits: `MADV_DONTNEED`, loans, and calls that
//!   change the map (`Map::change`), of which `mmap`, `munmap` and `mprotect` wait for their own
//!   range only. Faults do not wait, those that write-lock the map neither.
//! - `MADV_DONTNEED` changes no entry. For anons in at most two chunks that no other amap shares,
//!   it read-locks the map; with each chunk locked it removes the mappings, flushes, and empties
//!   the slots. A private entry without an amap has only pages of its object mapped, read-only,
//!   which faults find again, and adding an amap takes the write lock: its mappings need no
//!   chunk's lock. Shared mappings, more pages, and page tables that a fork shares take the write
//!   lock: code that narrows rights under the read lock relies on absent entries being flushed.
//! - Two maps are locked together to pass entries between them only, the one at the lower address
//!   first.
//! - References to amaps, anons and objects are dropped without the map lock, after the flush;
//!   `MADV_DONTNEED` alone drops anons with it held.
//! - Two chunks of one kind are never locked together, with one exception: a large page of shared
//!   memory try-locks all the chunks of its span.
//! - Page-in, [`Pager::page_in`] and waiting for memory happen with none of these locks held.
//! - The pagedaemon takes no map lock and only try-locks chunks to inspect their pages.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod account;
mod amap;
mod chunks;
pub mod counters;
mod fault;
mod inspect;
mod map;
mod memory_wait;
mod movement;
mod object;
pub mod page_bits;
pub mod rank;
mod reclaim;
pub mod swap;
mod switches;

pub use amap::{AmapForm, amap_form, set_amap_form};
pub use fault::{fault_ahead, set_fault_ahead};
pub use inspect::{MappedPage, PageCounts};
pub use map::{
    Advice, Backing, Entry, Fault, History, Inherit, LargeAdvice, LargePages, Layout, Limits, Lock,
    Map, MapError, MapRequest, Overcommit, Place, Randomness, Sizes, audit_page_tables,
    large_pages, locked_pages, max_entries, overcommit, set_large_pages, set_max_entries,
    set_overcommit, set_shared_tables,
};
pub use memory_wait::{MemoryWait, alloc_frame, retry_for_memory, wait_for_memory, wait_for_more};
pub use movement::{
    CopyReason, HandedOver, Handing, MOVED_NAMES, Moved, Movement, Overwriting, PASSED_TOGETHER,
    Passing, PinnedPages, TransferCall, count_moved, is_dying, least_direct, least_large,
    least_move, least_pages, least_stable, lends_pages, may_move, moved_bytes, movement,
    reason_to_copy, set_current_map, set_dying, set_least_pages, set_movement, takes_pages,
    with_current,
};
pub use object::{
    Anonymous, BusyPages, Description, DeviceObject, GivenPages, HasObject, Lookup, Object, Pager,
    PagerError, ShownPages,
};
pub use reclaim::{
    Cache, Fate, Scan, SwapAudit, Tally, Urgency, active_in_objects, audit_swap,
    inactive_anonymous, register_cache, set_swap_cluster, start_pagedaemon, stop_pagedaemon,
    swap_cluster, swap_off,
};
pub use switches::SWITCHES;
