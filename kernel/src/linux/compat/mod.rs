//! `int 0x80`: the calls of 32-bit programs.
//!
//! Each has the body of the 64-bit call, and the differences are translated here. A row of a table
//! names a number of `asm/unistd_32.h` and the 64-bit call that serves it: unchanged where
//! arguments are numbers, bytes or structures of one layout ([`same`]), or through a shim, a
//! function that puts wider structures into the task's scratch space ([`nucleus::user::desk`]),
//! calls the body with their addresses, and copies back the results.
//!
//! `layout` is the table of structures. Subjects: [`files`] and [`status`], [`vectors`], [`time`]
//! and [`waiting`], [`processes`], [`signals`], [`segments`], [`sysv`], [`mqueue`], [`ids`],
//! [`control`] (`ioctl`).

mod control;
mod files;
mod ids;
mod layout;
mod mqueue;
mod processes;
mod row;
mod same;
mod segments;
mod signals;
mod status;
mod sysv;
mod time;
mod vectors;
mod waiting;

use super::syscall::{COUNT, Handler, native_handler, unknown};
use row::Row;

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
