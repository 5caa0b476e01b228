//! The machine-independent virtual-memory system (`uvm.txt`).
//!
//! An address space is a [`Map`] of entries. An entry has an amap of anons above and an object
//! below; either may be absent. An [`Object`] is embedded in what it represents and is reached
//! through [`Pager`] operations. One fault routine serves all.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod map;
mod object;

pub use map::{
    Advice, Backing, Entry, Fault, Inherit, Limits, Map, MapError, MapRequest, Place, Sizes,
};
pub use object::{Anonymous, Description, Object, Pager, PagerError};
