//! Vnodes and file systems.
//!
//! - [`vnode`]: what every file system offers, one vnode per file, directory, link or device.
//! - [`namespace`]: mounts, places in them, and the walk along a path.
//! - [`mod@file`]: open files, what a descriptor refers to.
//! - [`block`]: block devices, their queues and drivers' side.
//! - [`device`]: the drivers behind device nodes and FIFOs.
//! - [`notify`]: who wants to hear what happens to a vnode.
//! - [`ext2`]: the file system of disks.
//! - [`ramfs`]: the in-memory file system; [`cpio`]: the root archive into it.
//! - [`ninep`]: the file system of a 9P server, the host's for one.
//! - [`page_cache`]: the pages of files on disks, in one cache.
//! - [`pseudofs`]: directories and files made up on demand, the base of `/proc`.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod block;
pub mod cpio;
pub mod credentials;
mod deny_write;
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
mod shared_pages;
pub mod vnode;

pub use credentials::{CapabilitySet, Credentials};
pub use deny_write::{DenyWrite, Running, Writing};
pub use file::{Asynchronous, File, OpenFlags, Ready};
pub use namespace::{Location, Mount, MountFlags, MountRequest, Namespace, Walk};
pub use vnode::{Attributes, Kind, Vnode};
