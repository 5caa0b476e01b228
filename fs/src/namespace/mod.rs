//! The tree of mounts, and paths.
//!
//! `tree`: all mounts; `walk`: from a path to a [`Location`](crate::Location); `section`: the part
//! of a walk that counts no references; `open`, `change`, `extended` and `location`: the operations
//! of system calls on paths and locations; `protect`:
//! what others may not do in directories that everyone may write to; `moving`: directories that get
//! another parent while a walk must not leave one.
//!
//! A walk borrows the directories on its way in a read section, as far as that goes. Then it takes
//! the lock of one directory at a time, for the look-up only, and no lock that all walks share:
//! mounts are searched only where a vnode's [`MountPoint`](crate::vnode::MountPoint) says that
//! there may be one.

mod change;
mod extended;
mod location;
mod moving;
mod open;
pub mod protect;
mod section;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

pub use tree::{MountLine, Namespace};
pub use walk::Walk;

pub use crate::vnode::NAME_MAX;

/// The most bytes in a path, the NUL included.
pub const PATH_MAX: usize = 4096;
/// The most symbolic links that one walk follows.
pub const LINKS_MAX: u32 = 40;
