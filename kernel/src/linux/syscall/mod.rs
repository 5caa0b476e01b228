//! System calls: from a number to a function.
//!
//! A handler is a [`Handler`]: it takes the [`Call`] and gives what the program sees in its
//! result register. Each module lists its calls in a constant `CALLS`, as [`Entry`]s: the table is
//! made of these lists when the kernel is compiled, and so is the table of `docs/linux.md`
//! when it is tested. A second table of the same functions serves `int 0x80`.
//!
//! A handler that a signal interrupted answers with one of the restart numbers of
//! [`signal`](crate::process::signal).

mod advise;
mod arguments;
mod capability;
mod change;
mod credentials;
mod dirs;
#[cfg(test)]
mod document;
mod entry;
mod epoll;
mod event;
mod execute;
mod extended;
mod fcntl;
mod file_size;
pub(in crate::linux) mod futex;
mod identity;
mod inotify;
mod inspect;
mod io;
mod io_priority;
mod ipc;
mod limits;
mod lock;
mod membarrier;
mod memfd;
mod memory;
mod memory_advice;
pub(in crate::linux) mod message;
mod mount;
mod mqueue;
mod names;
mod open;
mod path;
mod pidfd;
mod poll;
mod prctl;
mod process;
mod random;
mod rseq;
mod schedule;
mod semaphore;
mod shared_memory;
mod signal;
pub(in crate::linux) mod socket;
mod socket_message;
mod socket_option;
mod splice;
mod stat;
mod swap;
mod syslog;
mod system;
pub(in crate::linux) mod time;
mod timer;
pub(in crate::linux) mod unknown;
mod wait;

use alloc::sync::Arc;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{counters::Counter, trap::UserContext, user::desk};

use crate::{
    linux::compat,
    process::{Own, Thread},
};

pub(crate) use crate::flags::{Caller, FlagSet, choice, flag_set, note_unsupported};
pub use crate::process::{Call, Handler};
pub use entry::Entry;
pub use time::{read_timespec, write_timespec};
pub use unknown::{ANY_OTHER, unknown_calls, unsupported};

/// Numbers below this have a place in the table.
pub const COUNT: usize = 512;

/// The calls of 64-bit programs, by subject.
const CALLS: &[&[Entry]] = &[
    advise::CALLS,
    capability::CALLS,
    change::CALLS,
    credentials::CALLS,
    dirs::CALLS,
    epoll::CALLS,
    event::CALLS,
    execute::CALLS,
    extended::CALLS,
    fcntl::CALLS,
    futex::CALLS,
    identity::CALLS,
    inspect::CALLS,
    inotify::CALLS,
    io_priority::CALLS,
    io::CALLS,
    limits::CALLS,
    membarrier::CALLS,
    memfd::CALLS,
    lock::CALLS,
    memory::CALLS,
    memory_advice::CALLS,
    message::CALLS,
    mount::CALLS,
    mqueue::CALLS,
    names::CALLS,
    open::CALLS,
    pidfd::CALLS,
    poll::CALLS,
    prctl::CALLS,
    process::CALLS,
    random::CALLS,
    rseq::CALLS,
    schedule::CALLS,
    semaphore::CALLS,
    shared_memory::CALLS,
    signal::CALLS,
    socket::CALLS,
    socket_message::CALLS,
    socket_option::CALLS,
    splice::CALLS,
    stat::CALLS,
    swap::CALLS,
    syslog::CALLS,
    system::CALLS,
    time::CALLS,
    timer::CALLS,
    wait::CALLS,
];

/// Their handlers by number.
pub(in crate::linux) static TABLE: [Handler; COUNT] = table();

/// The handlers of `int 0x80` by number.
static TABLE_32: [Handler; COUNT] = compat::table();

const fn table() -> [Handler; COUNT] {
    let mut table: [Handler; COUNT] = [unknown; COUNT];
    let mut list = 0;
    while list < CALLS.len() {
        let mut row = 0;
        while row < CALLS[list].len() {
            let entry = &CALLS[list][row];
            table[entry.number as usize] = entry.handler;
            row += 1;
        }
        list += 1;
    }
    table
}

/// The handler of a 64-bit call.
pub(in crate::linux) const fn native_handler(number: u32) -> Handler {
    const NATIVE: [Handler; COUNT] = table();
    NATIVE[number as usize]
}

/// The name of a call of 64-bit programs.
pub fn name(number: u32) -> Option<&'static str> {
    let mut entries = CALLS.iter().flat_map(|list| list.iter());
    Some(entries.find(|entry| entry.number == number)?.name)
}

/// No such system call.
pub(in crate::linux) fn unknown(call: &mut Call<'_>) -> Result<usize> {
    unknown::note(call.number);
    Err(Errno::ENOSYS)
}

/// What `SECCOMP_MODE_STRICT` leaves to a thread.
const STRICT: [u32; 4] = [
    raw::__NR_read,
    raw::__NR_write,
    raw::__NR_exit,
    raw::__NR_rt_sigreturn,
];
/// The same by `int 0x80`: `read`, `write`, `exit`, `sigreturn`.
const STRICT_32: [u32; 4] = [3, 4, 1, 119];

/// The thread has asked for more than the strict mode leaves it.
#[cold]
fn end_strict(thread: &Thread, own: &mut Own) -> isize {
    own.ended = Some(raw::SIGKILL as i32);
    thread.signals.call_attention();
    0
}

/// Serves the `syscall` instruction.
pub fn serve(thread: &Arc<Thread>, own: &mut Own, context: &mut UserContext) {
    let regs = &context.regs;
    let number = regs.orig_rax as u32;
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    own.compatible_call = false;
    let result = if own.strict && !STRICT.contains(&number) {
        end_strict(thread, own)
    } else {
        dispatch(&TABLE, thread, own, context, number, args)
    };
    context.regs.rax = result as u64;
}

/// Serves `int 0x80`: arguments and result have 32 bits.
pub fn serve32(thread: &Arc<Thread>, own: &mut Own, context: &mut UserContext) {
    let regs = &context.regs;
    let number = regs.orig_rax as u32;
    let args = [regs.rbx, regs.rcx, regs.rdx, regs.rsi, regs.rdi, regs.rbp]
        .map(|arg| u64::from(arg as u32));
    own.compatible_call = true;
    let result = if own.strict && !STRICT_32.contains(&number) {
        end_strict(thread, own)
    } else {
        dispatch(&TABLE_32, thread, own, context, number, args)
    };
    desk::clear();
    context.regs.rax = result as i32 as i64 as u64;
}

#[inline]
fn dispatch(
    table: &[Handler; COUNT],
    thread: &Arc<Thread>,
    own: &mut Own,
    context: &mut UserContext,
    number: u32,
    args: [u64; 6],
) -> isize {
    Counter::system_calls.add(1);
    let handler = table.get(number as usize).copied().unwrap_or(unknown);
    let mut call = Call {
        thread,
        own,
        context,
        args,
        number,
    };
    match handler(&mut call) {
        Ok(value) => value as isize,
        Err(error) => {
            if error.number() >= 512 {
                // Restarted or turned into EINTR before the program goes on.
                thread.signals.call_attention();
            }
            error.as_return()
        }
    }
}
