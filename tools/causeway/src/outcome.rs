//! The exit status of `causeway run`.

use crate::guest::Ending;

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
/// Plus its number: this program was ended by a signal.
pub const SIGNAL: u8 = 128;

/// For `--help`.
pub const HELP: &str = "\
Exit status:
  that of CMD        the command ended (128 + N: by signal N)
  0                  the guest was powered off or restarted from inside
  121                the guest was ended with Ctrl-A x, or its output was closed
  122                the kernel could not start: bad options, archive or program
  123                the kernel panicked, or the machine went away; standard
                     error has what is known
  124                the guest did not end within --timeout
  125                causeway itself failed; the message says what to do

Keys: Ctrl-A x ends the machine, Ctrl-A a sends a Ctrl-A; all others, Ctrl-C too, go to the guest.";

/// The exit status for a guest that ended so.
pub fn status(ending: &Ending) -> u8 {
    match ending {
        Ending::Status(status) => *status,
        Ending::Restart => 0,
        Ending::Panic | Ending::Lost(_) => PANIC,
        Ending::BadStart => BAD_START,
        Ending::Timeout => TIMEOUT,
        Ending::Killed => KILLED,
        Ending::Refused => FAILURE,
    }
}
