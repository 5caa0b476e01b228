//! The exit status of `causeway run` and `causeway exec`, and why it is that.

use std::path::Path;

use crate::guest::Ending;
use crate::symbols;

/// The guest was powered off or restarted before the command had ended.
pub const LEFT: u8 = 120;

/// The user ended the guest, or its output was closed.
pub const KILLED: u8 = 121;
/// The kernel could not start.
pub const BAD_START: u8 = 122;
/// The kernel panicked, or the machine was reset without a word.
pub const PANIC: u8 = 123;
/// The guest did not end in time.
pub const TIMEOUT: u8 = 124;
/// This program failed before or beside the guest.
pub const FAILURE: u8 = 125;
/// The command can't be executed.
pub const NOT_EXECUTED: u8 = 126;
/// The command is not found.
pub const NOT_FOUND: u8 = 127;
/// Plus its number: this program was ended by a signal.
pub const SIGNAL: u8 = 128;

/// For `causeway run --help`.
pub const HELP: &str = "\
Exit status:
  that of CMD        the command ended (128 + N: by signal N)
  0                  the guest was powered off or restarted from inside, and
                     there was no CMD
  120                it was powered off or restarted before CMD had ended
  121                the guest was ended with Ctrl-A x, by `causeway stop`, or
                     from outside
  122                the kernel could not start: bad options or archive
  123                the kernel panicked, or the machine went away; standard
                     error has what is known
  124                the guest did not end within --timeout
  125                causeway itself failed, or CMD ended with 0 and a file for
                     its streams can't be read or written; the message says
                     what to do
  126                CMD can't be executed, or its user or folder is wrong
  127                CMD is not found

Keys: Ctrl-A x ends the machine, Ctrl-A a sends a Ctrl-A; all others, Ctrl-C too, go to the guest.";

/// The status for a program's own, where bytes of its streams may have been lost here: success
/// would be untrue.
pub fn of_streams(status: u8, lost: bool) -> u8 {
    match status {
        0 if lost => FAILURE,
        status => status,
    }
}

/// The exit status for a guest that ended so.
pub fn status(ending: &Ending) -> u8 {
    match ending {
        Ending::Status(status) => *status,
        Ending::Restart => 0,
        Ending::Panic | Ending::Lost(_) | Ending::NoStatus => PANIC,
        Ending::BadStart => BAD_START,
        Ending::Timeout => TIMEOUT,
        Ending::Killed => KILLED,
        Ending::Refused => FAILURE,
    }
}

/// The exit status for a program that ended so, as `wait` says it.
pub fn of_program(status: i32) -> u8 {
    match status & 0x7f {
        0 => (status >> 8) as u8,
        signal => SIGNAL + signal as u8,
    }
}

/// Explains the exit status on standard error.
pub fn explain(ending: &Ending, log: &[String], kernel: &Path, log_shown: bool) {
    let lines = match ending {
        Ending::Status(_) | Ending::Restart => return,
        Ending::Killed => vec!["the machine was ended from outside".into()],
        Ending::Refused => vec!["QEMU cannot start this machine and says why above".into()],
        Ending::Panic => {
            let mut lines = vec!["the kernel panicked:".into()];
            lines.extend(symbols::panic_report(log, Some(kernel)));
            lines
        }
        Ending::BadStart | Ending::Timeout | Ending::Lost(_) | Ending::NoStatus => {
            let mut lines = vec![match ending {
                Ending::BadStart => "the kernel could not start".into(),
                Ending::Timeout => "the guest did not end in time and was killed".into(),
                Ending::Lost(why) => why.clone(),
                Ending::NoStatus => "the guest ended, and its log does not say how".into(),
                _ => String::new(),
            }];
            if !log_shown && !log.is_empty() {
                lines.push("the end of its log:".into());
                lines.extend(log[log.len().saturating_sub(20)..].iter().cloned());
            }
            lines
        }
    };
    for line in lines {
        eprintln!("causeway: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_from_128() {
        assert_eq!(of_program(7 << 8), 7);
        assert_eq!(of_program(9), 137);
        assert_eq!(of_program(11 | 0x80), 139);
    }
}
