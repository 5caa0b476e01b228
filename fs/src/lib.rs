//! Vnodes and file systems. From the bottom up; a module uses only those above its line:
//!
//! - [`block`]: block devices, their queues and the drivers' side;
//! - [`page_cache`]: the one cache of files' pages, whatever their backing store;
//! - [`vnode`]: the interface of file systems, open files, locations and mounts, credentials;
//! - [`notify`]: observers of vnodes (`inotify`);
//! - [`device`]: the drivers behind device nodes and FIFOs, block devices as files;
//!   [`mod@file`]: open files over vnodes;
//! - [`namespace`]: the tree of mounts, the walk along a path, and the calls with paths;
//! - [`ramfs`]: the in-memory file system; [`cpio`]: the root archive unpacked into it;
//! - [`ext2`]: the file system of disks; [`ninep`]: the client of a 9P server, such as the host;
//! - [`pseudofs`]: directories and files that are generated on demand, the base of `/proc`.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate self as fs;

pub mod block;
pub mod counters;
pub mod cpio;
pub mod device;
pub mod ext2;
pub mod file;
mod name_hash;
pub mod namespace;
pub mod ninep;
pub mod notify;
pub mod page_cache;
pub mod pseudofs;
pub mod ramfs;
pub mod rank;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
pub mod vnode;

pub use file::{Running, Writing};
pub use namespace::{Namespace, Walk};
pub use vnode::{
    Asynchronous, Attributes, CapabilitySet, Credentials, DenyWrite, File, Kind, Linger, Location,
    Mount, MountFlags, MountRequest, OpenFlags, Ready, Vnode, credentials,
};
