//! The machine-independent virtual-memory system (`uvm.txt`).
//!
//! An address space is a [`Map`] of entries. An entry has an amap of anons above and an object
//! below; either may be absent. An [`Object`] is embedded in what it represents and is reached
//! through [`Pager`] operations. One fault routine serves all.
//!
//! From the bottom up; a module uses only what stands above it in this list:
//!
//! - `chunks`: the sparse array under amaps and objects, and the registry through which the pagedaemon finds its chunks.
//! - `supply`: waiting for memory.
//! - [`swap`]: the swap space, where a page is that has no other backing store, and the ways there and back.
//! - `object`: memory objects and their pagers, pages being read in, writing them back.
//! - `amap`: anonymous memory.
//! - `map`: requests and the entries of an address space; mapping, unmapping, protection, fork, `brk`, `mremap`, `mlock`.
//! - `fault`: the fault routine, and what is mapped with a page.
//! - `reclaim`: the pagedaemon, and what programs say of memory that they do not need (`madvise`).
//! - `movement`: pages held for a device; other address spaces.
//! - `inspect`: counting pages for `/proc`.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod amap;
mod chunks;
mod fault;
mod inspect;
mod map;
mod movement;
mod object;
mod reclaim;
mod supply;
pub mod swap;

pub use amap::{AmapForm, amap_form, set_amap_form};
pub use fault::{fault_ahead, set_fault_ahead};
pub use inspect::{MappedPage, PageCounts};
pub use map::{
    Advice, Backing, Entry, Fault, Inherit, LargeAdvice, LargePages, Layout, Limits, Lock, Map,
    MapError, MapRequest, Overcommit, Place, Sizes, large_pages, locked_pages, max_entries,
    overcommit, set_large_pages, set_max_entries, set_overcommit, set_shared_tables,
};
pub use movement::PinnedPages;
pub use object::{Anonymous, BusyPages, Description, HasObject, Object, Pager, PagerError};
pub use reclaim::{
    Cache, Fate, Scan, SwapAudit, Tally, Urgency, active_in_objects, audit_swap,
    inactive_anonymous, register_cache, set_swap_cluster, start_pagedaemon, stop_pagedaemon,
    swap_cluster, swap_off,
};
pub use supply::{Supply, alloc_frame, wait_for_memory};
