//! Pseudo terminals: a terminal whose wire ends in a program.
//!
//! - `pair`: the connection of both sides: output that the other side has not read, packet mode.
//! - `master`: the side that a terminal program, `sshd` or `script` holds, opened by `/dev/ptmx`.
//! - [`devpts`]: the file system in which the other side, a [`Tty`](super::Tty), has its node.
//!
//! Bytes written to the master are typed into the terminal; the terminal's output is read from the
//! master. When the master's last descriptor is closed the terminal hangs up; when the last one of
//! the terminal is closed the master reads `EIO` until it is opened again.

pub mod devpts;
mod master;
mod pair;

pub use master::Master;
pub use pair::{count, limit, set_limit};

use alloc::sync::Arc;

use abi::{Errno, Result};
use fs::{File, Location, OpenFlags};

/// Major of the terminals; the minor is the number in `/dev/pts`.
pub const MAJOR: u32 = 136;
/// Minor of `/dev/ptmx`, with major 5.
pub const PTMX: u32 = 2;

/// Opens a node of `/dev/ptmx`.
///
/// # Errors
/// As [`make`].
pub fn open_master(at: &Location, _: u64, flags: OpenFlags) -> Result<Arc<dyn File>> {
    make(at, flags).map(|master| master as Arc<dyn File>)
}

/// Makes a pseudo terminal by a node of `/dev/ptmx`: the file system is the one on `pts` beside it.
///
/// # Errors
/// `ENODEV` where there is none, and those of [`devpts::Devpts::open_master`].
pub fn make(at: &Location, flags: OpenFlags) -> Result<Arc<Master>> {
    let pts = at.sibling(b"pts").ok_or(Errno::ENODEV)?;
    devpts::of_root(&pts)?.open_master(at.clone(), pts, flags)
}

/// Opens a node of a terminal that stands outside of its file system, where nothing says which one
/// that is.
///
/// # Errors
/// Always `EIO`.
pub fn open_stray(_: &Location, _: u64, _: OpenFlags) -> Result<Arc<dyn File>> {
    Err(Errno::EIO)
}
