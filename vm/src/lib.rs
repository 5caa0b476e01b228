//! The machine-independent virtual-memory system (`uvm.txt`).
//!
//! An address space is a [`Map`] of entries. An entry has an amap of anons above and an object
//! below; either may be absent. An [`Object`] is embedded in what it represents and is reached
//! through [`Pager`] operations. One fault routine serves all.
//!
//! In the order in which a page of data meets it:
//!
//! - `request`: what callers ask of a map; `map`: mapping, unmapping, protection; `layout`: where
//!   things go; `space`, `entries`, `entry`: the entries that the map's lock guards; `heap`: what grows.
//! - `fault`: the fault routine; `ahead`: neighbours that are mapped with it; `large`: 2 MiB at once.
//! - `amap`, `anon`: anonymous memory; `object`, `pager`: everything else, `claim` and `writeback`: reading pages in
//!   and writing them back; `chunks`: the sparse array under all of them.
//! - `pagedaemon`: what happens when frames run short.
//! - `location`: where a page is that has no home but the swap space; [`swap`]: that space, and the ways there and back.
//! - `fork`: copy-on-write; `share`: private memory that children share; `remap`, `advise`, `cold`, `detach`: `mremap`, `madvise`, `shmdt` and their like;
//!   `wire`: `mlock`; `hold`: pages for a device; `access`: other address spaces.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod advise;
mod ahead;
mod amap;
mod anon;
mod census;
mod chunks;
mod claim;
mod cold;
mod detach;
mod entries;
mod entry;
mod fault;
mod fork;
mod heap;
mod hold;
mod large;
mod layout;
mod location;
mod map;
mod object;
mod page_out;
mod pagedaemon;
mod pager;
mod policy;
mod remap;
mod request;
mod share;
mod space;
pub mod swap;
mod wire;
mod writeback;

pub use ahead::{fault_ahead, set_fault_ahead};
pub use amap::{AmapForm, amap_form, set_amap_form};
pub use census::{Census, MappedPage};
pub use claim::{Claim, HasObject};
pub use fork::set_shared_tables;
pub use hold::Held;
pub use large::{LargeAdvice, LargePages, large_pages, set_large_pages};
pub use layout::Layout;
pub use map::Map;
pub use object::Object;
pub use pagedaemon::{
    Cache, Fate, Scan, Supply, Tally, Urgency, active_in_objects, alloc_frame, inactive_anonymous,
    register_cache, set_swap_cluster, start_pagedaemon, stop_pagedaemon, swap_cluster,
    wait_for_memory,
};
pub use pager::{Anonymous, Description, Pager, PagerError};
pub use policy::{Overcommit, max_entries, overcommit, set_max_entries, set_overcommit};
pub use request::{
    Advice, Backing, Entry, Fault, Inherit, Limits, Lock, MapError, MapRequest, Place, Sizes,
};
pub use wire::locked_pages;
