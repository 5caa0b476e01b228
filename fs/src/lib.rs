//! Vnodes and file systems.
//!
//! [`vnode`]: what every file system offers. [`namespace`]: mounts and the walk along a path.
//! [`file`]: open files. [`ramfs`]: the in-memory file system; [`cpio`]: the root archive into it;
//! [`synthetic`]: directories and files made up on demand, the base of `/proc` and `/dev`.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod cpio;
pub mod file;
pub mod namespace;
pub mod ramfs;
pub mod synthetic;
pub mod vnode;

pub use file::{File, OpenFlags, Ready};
pub use namespace::{Location, Namespace};
pub use vnode::{Attributes, Credentials, Kind, Vnode};
