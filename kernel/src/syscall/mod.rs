//! System calls: from a number to a function.
//!
//! A handler is a [`Handler`]: it takes the [`Call`] and gives what the program sees in its
//! result register. Each module lists its handlers by number in a constant `CALLS`; [`TABLE`] is
//! made of these lists when the kernel is compiled. A second, shorter table of the same
//! functions serves `int 0x80`.
//!
//! A handler that a signal interrupted answers with one of the restart numbers of
//! [`signal`](crate::signal).

mod call;
mod change;
mod dirs;
mod fcntl;
mod io;
mod names;
mod open;
mod path;
mod poll;
mod splice;
mod stat;

use abi::{Errno, Result};

pub use call::Call;
pub use stat::attributes_of;

/// The body of a system call.
pub type Handler = fn(&mut Call<'_>) -> Result<usize>;

/// Numbers below this have a place in the table.
pub const COUNT: usize = 512;

/// The handlers of 64-bit programs by number.
pub static TABLE: [Handler; COUNT] = table(&[
    change::CALLS,
    dirs::CALLS,
    fcntl::CALLS,
    io::CALLS,
    names::CALLS,
    open::CALLS,
    poll::CALLS,
    splice::CALLS,
    stat::CALLS,
]);

/// The table made of lists of handlers by number.
const fn table(lists: &[&[(u32, Handler)]]) -> [Handler; COUNT] {
    let mut table: [Handler; COUNT] = [unknown; COUNT];
    let mut list = 0;
    while list < lists.len() {
        let mut row = 0;
        while row < lists[list].len() {
            let (number, handler) = lists[list][row];
            table[number as usize] = handler;
            row += 1;
        }
        list += 1;
    }
    table
}

/// No such system call.
fn unknown(call: &mut Call<'_>) -> Result<usize> {
    let _ = call;
    Err(Errno::ENOSYS)
}
