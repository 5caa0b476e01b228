//! The calls of 64-bit programs by number.

use super::{COUNT, Handler, SystemCall, unknown};

/// The lists of the modules with these names.
macro_rules! calls_of {
    ($($subject:ident),*) => {
        &[$(super::$subject::CALLS),*]
    };
}

/// The calls of 64-bit programs, by subject.
pub(super) const CALLS: &[&[SystemCall]] = calls_of! {
    advise, capability, change, credentials, dirs, epoll, event, execute, extended, fcntl,
    futex, identity, inotify, io_priority, io, kcmp, limits, membarrier, memfd, lock, memory,
    memory_advice, message, mount, mqueue, names, open, pidfd, poll, prctl, process, process_vm,
    random, rseq, schedule, seccomp, semaphore, shared_memory, signal, socket, socket_message, socket_option,
    splice, stat, swap, syslog, system, time, timer, wait
};

/// Their handlers by number.
pub(in crate::linux) static TABLE: [Handler; COUNT] = table();

const fn table() -> [Handler; COUNT] {
    let mut table: [Handler; COUNT] = [unknown; COUNT];
    let mut list = 0;
    while list < CALLS.len() {
        let mut row = 0;
        while row < CALLS[list].len() {
            let entry = &CALLS[list][row];
            // Numbers beyond the table have the handler of the last one, which no call has.
            assert!((entry.number as usize) < COUNT - 1);
            table[entry.number as usize] = entry.handler;
            row += 1;
        }
        list += 1;
    }
    table
}

/// Returns the name of a 64-bit call that this kernel has.
pub(super) fn name(number: u32) -> Option<&'static str> {
    let mut calls = CALLS.iter().copied().flatten();
    Some(calls.find(|call| call.number == number)?.name)
}

/// The handler of a 64-bit call.
pub(in crate::linux) const fn native_handler(number: u32) -> Handler {
    const NATIVE: [Handler; COUNT] = table();
    NATIVE[number as usize]
}
