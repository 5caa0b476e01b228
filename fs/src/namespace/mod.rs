//! Mounts, and the walk along a path.
//!
//! `mount`: file systems over places of others; `tree`: all of them. `location`: a place, and its path.
//! `walk`: from a path to a place. `open`, `change` and `extended`: what programs do with paths.
//!
//! A walk takes the lock of one directory at a time, for the look-up only, and no lock that all
//! walks share: what is mounted on a vnode is asked only where its [`MountPoint`](crate::vnode::MountPoint) says so.

mod change;
mod extended;
mod location;
mod open;
mod tree;
mod walk;

pub use tree::{MountLine, Namespace};
pub use walk::Walk;

pub use crate::vnode::NAME_MAX;

/// Bytes in a path, the NUL included.
pub const PATH_MAX: usize = 4096;
/// Symbolic links followed in one walk.
pub const LINKS_MAX: u32 = 40;
