//! The file with what programs asked for in vain.

use fs::pseudofs;

use super::{
    compat,
    syscall::{
        option_names::{call_name, value_text},
        unknown::{ANY_OTHER, each_unknown},
    },
};
use crate::unsupported::{ProgramName, WHOLE_CALL, each_unsupported, forget_unsupported};

/// `/proc/causeway/unsupported`: what programs asked for in vain, a line for each call, option and
/// program with the count. A write empties it, but for numbers beyond Linux's.
pub fn file() -> pseudofs::Entry {
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
