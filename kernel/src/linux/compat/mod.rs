//! `int 0x80`: the calls of 32-bit programs.
//!
//! Each has the body of the 64-bit call, and the differences are translated here. A row of a table
//! names a number of `asm/unistd_32.h` and the 64-bit call that serves it: unchanged where
//! arguments are numbers, bytes or structures of one layout ([`same`]), by a list of differences
//! ([`translate`]), or through a shim, a function of its own. All put wider structures into the
//! task's scratch space ([`nucleus::user::compat_scratch`]), call the body with their addresses,
//! and copy back the results.
//!
//! `layout` is the table of structures. Subjects: [`files`] and [`status`], [`time`] and
//! [`waiting`], [`processes`], [`signals`], [`segments`], [`sysv`], [`mqueue`], [`ids`],
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
mod translate;
mod waiting;

use super::syscall::{COUNT, Call, Handler, native_handler, unknown};
use abi::Result;
use nucleus::speculation;
use row::{Row, Translation};

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
    waiting::CALLS,
];

/// The handlers by number.
pub(super) const fn table() -> [Handler; COUNT] {
    let mut table: [Handler; COUNT] = [unknown; COUNT];
    let mut number = 0;
    while number < COUNT {
        if let Some(row) = ROWS[number] {
            table[number] = match row.translation {
                Translation::Shim(shim) => shim,
                Translation::List(&[]) => native_handler(row.native),
                Translation::List(_) => by_list,
            };
        }
        number += 1;
    }
    table
}

/// The rows by number.
static ROWS: [Option<&Row>; COUNT] = {
    let mut rows: [Option<&Row>; COUNT] = [const { None }; COUNT];
    let mut list = 0;
    while list < CALLS.len() {
        let mut row = 0;
        while row < CALLS[list].len() {
            rows[CALLS[list][row].number as usize] = Some(&CALLS[list][row]);
            row += 1;
        }
        list += 1;
    }
    rows
};

/// Returns the number of the 64-bit call that serves a 32-bit one.
pub(super) fn native_number(number: u32) -> Option<u32> {
    let row = ROWS.get(usize::try_from(number).ok()?)?;
    row.map(|row| row.native)
}

/// The handler of the calls that a list translates.
fn by_list(call: &mut Call<'_>) -> Result<usize> {
    match speculation::get(&ROWS, call.number as usize) {
        Some(&Some(&Row {
            native,
            translation: Translation::List(list),
            ..
        })) => translate::call_native(call, native, list),
        _ => unknown(call),
    }
}

/// Whether 32-bit programs have the 64-bit call with this number.
#[cfg(test)]
pub(super) fn serves(native: u32) -> bool {
    CALLS
        .iter()
        .flat_map(|list| list.iter())
        .any(|row| row.native == native)
}
