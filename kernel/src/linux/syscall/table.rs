//! The calls of 64-bit programs by number.

use fs::pseudofs;

use super::{
    COUNT, Handler, SystemCall,
    option_names::{call_name, value_text},
    unknown::{ANY_OTHER, each_unknown, unknown},
};
use crate::{
    linux::compat,
    unsupported::{ProgramName, WHOLE_CALL, each_unsupported, forget_unsupported},
};

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

/// `/proc/causeway/unsupported`: what programs asked for in vain, a line for each call, option and
/// program with the count. A write empties it, but for numbers beyond Linux's.
pub fn unsupported() -> pseudofs::Entry {
    let entry = pseudofs::Entry::text(|out| {
        let dropped = each_unsupported(|what, count| {
            let native = match what.compatible {
                true => compat::native_number(what.number),
                false => Some(what.number),
            };
            let name = native.and_then(call_name);
            if what.compatible {
                write!(out, "i386:");
            }
            match name {
                Some(name) => write!(out, "{name}"),
                None => write!(out, "{}", what.number),
            }
            match what.argument {
                WHOLE_CALL => write!(out, " -"),
                argument => {
                    let value = value_text(name.unwrap_or_default(), argument, what.value);
                    write!(out, " {argument}={value}");
                }
            }
            write!(out, " {count} ");
            push_program(out, &what.program);
        });
        each_unknown(|number, count, program| match number {
            ANY_OTHER => writeln!(out, "others - {count} -"),
            _ => {
                write!(out, "{number} - {count} ");
                push_program(out, program);
            }
        });
        if dropped > 0 {
            writeln!(out, "dropped - {dropped} -");
        }
        Ok(())
    });
    entry.writable(|_| {
        forget_unsupported();
        Ok(())
    })
}

/// Ends a line with the name of a program.
fn push_program(out: &mut pseudofs::Text, program: &ProgramName) {
    let name = program.split(|&byte| byte == 0).next().unwrap_or_default();
    match name {
        b"" => out.push(b"-"),
        _ => out.push_escaped(name),
    }
    out.push(b"\n");
}
