//! `int 0x80`: the calls of 32-bit programs.
//!
//! Each has the body of the 64-bit call; what differs is translated here. A row of a table names a number of
//! `asm/unistd_32.h` and the 64-bit call that serves it: as it is where arguments are numbers, bytes or structures of one
//! layout ([`same`]), or through an shim, a function that lays wider structures on the task's desk
//! ([`nucleus::user::desk`]), calls the body with their addresses, and brings back what the body wrote.
//!
//! Subjects: [`files`] and [`status`], [`vectors`], [`time`] and [`waiting`], [`processes`], [`signals`], [`segments`],
//! [`sysv`], [`mqueue`], [`ids`], [`control`] (`ioctl`).

mod control;
mod files;
mod ids;
mod mqueue;
mod processes;
mod same;
mod segments;
mod signals;
mod status;
mod sysv;
mod time;
mod vectors;
mod waiting;

use abi::{Errno, Result};
use nucleus::{
    VirtAddr,
    user::{self, Plain, desk},
};

use super::syscall::{COUNT, Call, Handler, TABLE, native_handler, unknown};

/// One call of 32-bit programs.
pub(super) struct Row {
    /// Its number.
    number: u32,
    /// The number of the 64-bit call whose body serves it.
    native: u32,
    /// What stands before that body, if anything does.
    shim: Option<Handler>,
}

/// A call that takes the same arguments in both worlds.
const fn same(number: u32, native: u32) -> Row {
    Row {
        number,
        native,
        shim: None,
    }
}

/// A call whose arguments are translated.
const fn shim(number: u32, native: u32, shim: Handler) -> Row {
    Row {
        number,
        native,
        shim: Some(shim),
    }
}

const CALLS: &[&[Row]] = &[
    control::CALLS,
    files::CALLS,
    ids::CALLS,
    mqueue::CALLS,
    processes::CALLS,
    same::CALLS,
    segments::CALLS,
    signals::CALLS,
    status::CALLS,
    sysv::CALLS,
    time::CALLS,
    vectors::CALLS,
    waiting::CALLS,
];

/// The handlers by number.
pub(super) const fn table() -> [Handler; COUNT] {
    let mut table: [Handler; COUNT] = [unknown; COUNT];
    let mut list = 0;
    while list < CALLS.len() {
        let mut row = 0;
        while row < CALLS[list].len() {
            let Row {
                number,
                native,
                shim,
            } = CALLS[list][row];
            table[number as usize] = match shim {
                Some(shim) => shim,
                None => native_handler(native),
            };
            row += 1;
        }
        list += 1;
    }
    table
}

/// Whether 32-bit programs have the 64-bit call with this number.
#[cfg(test)]
pub(super) fn serves(native: u32) -> bool {
    CALLS
        .iter()
        .flat_map(|list| list.iter())
        .any(|row| row.native == native)
}

impl Call<'_> {
    /// Calls the body of a 64-bit call.
    fn native(&mut self, number: u32) -> Result<usize> {
        TABLE[number as usize](self)
    }

    /// Calls the body of a 64-bit call with these arguments.
    fn native_with(&mut self, number: u32, args: [u64; 6]) -> Result<usize> {
        self.args = args;
        self.native(number)
    }

    /// Makes argument `n` point to `value`.
    fn lay<T: Plain>(&mut self, n: usize, value: &T) -> Result<()> {
        let at = desk::put(user::as_bytes(value)).map_err(|_| Errno::ENOMEM)?;
        self.args[n] = at.0 as u64;
        Ok(())
    }

    /// Makes argument `n` point to `len` bytes for the body to write, unless it is null; gives what it pointed to.
    fn lay_room(&mut self, n: usize, len: usize) -> Result<VirtAddr> {
        let to = self.address(n);
        if to.0 != 0 {
            let at = desk::reserve(len).map_err(|_| Errno::ENOMEM)?;
            self.args[n] = at.0 as u64;
        }
        Ok(to)
    }

    /// Two arguments as the lower and upper half of a number.
    fn joined(&self, low: usize, high: usize) -> u64 {
        u64::from(self.unsigned(low)) | u64::from(self.unsigned(high)) << 32
    }
}

/// Writes a structure to the program.
fn give<T: Plain>(to: VirtAddr, value: &T) -> Result<()> {
    user::write(to, value).map_err(|_| Errno::EFAULT)
}

/// Reads a structure of the program.
fn take<T: Plain>(from: VirtAddr) -> Result<T> {
    user::read(from).map_err(|_| Errno::EFAULT)
}
