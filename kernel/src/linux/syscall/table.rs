//! The calls of 64-bit programs by number.

use fs::pseudofs;

use super::{
    COUNT, Handler, SystemCall,
    unknown::{unknown, unknown_calls},
};
use crate::flags;

/// The lists of the modules with these names.
macro_rules! calls_of {
    ($($subject:ident),*) => {
        &[$(super::$subject::CALLS),*]
    };
}

/// The calls of 64-bit programs, by subject.
pub(super) const CALLS: &[&[SystemCall]] = calls_of! {
    advise, capability, change, credentials, dirs, epoll, event, execute, extended, fcntl,
    futex, identity, inspect, inotify, io_priority, io, limits, membarrier, memfd, lock, memory,
    memory_advice, message, mount, mqueue, names, open, pidfd, poll, prctl, process, random,
    rseq, schedule, seccomp, semaphore, shared_memory, signal, socket, socket_message, socket_option,
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

/// `/proc/causeway/unsupported`: the calls and flags that programs asked for in vain.
pub fn unsupported() -> pseudofs::Entry {
    pseudofs::Entry::text(|out| {
        for (number, count) in unknown_calls() {
            writeln!(out, "call {number} {count}");
        }
        let (list, others) = flags::unsupported();
        for (what, count) in list {
            match name(what.call.number).filter(|_| !what.call.compatible) {
                Some(name) => write!(out, "{name}"),
                None => write!(out, "i386:{}", what.call.number),
            }
            writeln!(out, " {} {:#x} {count}", what.argument, what.value);
        }
        if others > 0 {
            writeln!(out, "others {others}");
        }
        Ok(())
    })
}
