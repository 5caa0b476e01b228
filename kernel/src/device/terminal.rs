//! The nodes of terminals: which terminal each one opens.

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general::O_NOCTTY};
use fs::{
    File, Location, OpenFlags,
    device::{major, minor},
};

use crate::{
    process::thread,
    tty::{self, Tty},
};

/// Minor of `ttyS0`, with major 4.
pub const SERIAL_0: u32 = 64;
/// Minor of `tty`, with major 5.
pub const CONTROLLING: u32 = 0;
/// Minor of `console`, with major 5.
pub const CONSOLE: u32 = 1;

/// Opens a terminal's node.
///
/// # Errors
/// `ENXIO` for `/dev/tty` without a controlling terminal, and those of [`tty::open`].
pub fn open(at: &Location, device: u64, flags: OpenFlags) -> Result<Arc<dyn File>> {
    let is_own = major(device) == super::TERMINAL && minor(device) == CONTROLLING;
    let is_console = major(device) == super::TERMINAL && minor(device) == CONSOLE;
    let tty = if is_own {
        thread::with_current(|thread| Tty::of_session(&thread.process().session()))
            .flatten()
            .ok_or(Errno::ENXIO)?
    } else if is_console {
        tty::console::front()
    } else {
        tty::console::get()
    };
    // The console never becomes a controlling terminal by being opened.
    let flags = if is_console || is_own {
        flags | OpenFlags::from_bits_retain(O_NOCTTY)
    } else {
        flags
    };
    let file = tty::open(tty, flags, Some(at.clone()))?;
    Ok(file)
}
