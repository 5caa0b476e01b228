//! An entry of the table of calls: `docs/linux.md` is made of it.

use super::{FlagSet, Handler};

/// Numbers below this have a place in the table.
pub const COUNT: usize = 512;

/// One system call of 64-bit programs.
///
/// [`flags`](SystemCall::flags) names the flag sets and choices that the body checks by
/// [`Call::flags`](super::Call::flags) and [`Call::choice`](super::Call::choice), and
/// [`note`](SystemCall::note) what differs from Linux, in one sentence.
pub struct SystemCall {
    /// Its number, below [`COUNT`](super::COUNT).
    pub number: u32,
    /// Its name in Linux.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a test compares it with the document")
    )]
    pub name: &'static str,
    /// Its body.
    pub handler: Handler,
    /// The flags that it knows, by argument.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a test compares it with the document")
    )]
    pub flags: &'static [&'static FlagSet],
    /// The difference from Linux; empty if there is none.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a test compares it with the document")
    )]
    pub note: &'static str,
}

impl SystemCall {
    /// A call without flags that does all that it does on Linux.
    pub const fn new(number: u32, name: &'static str, handler: Handler) -> SystemCall {
        SystemCall {
            number,
            name,
            handler,
            flags: &[],
            note: "",
        }
    }

    /// With these flag sets.
    pub const fn flags(self, flags: &'static [&'static FlagSet]) -> SystemCall {
        SystemCall { flags, ..self }
    }

    /// Adds a sentence about a difference from Linux.
    pub const fn note(self, note: &'static str) -> SystemCall {
        SystemCall { note, ..self }
    }
}

/// Makes a [`SystemCall`] of the name of its number and its body: `call!(__NR_close, close)`.
macro_rules! call {
    ($number:ident, $handler:expr) => {
        $crate::linux::syscall::SystemCall::new(
            abi::raw::general::$number,
            stringify!($number).split_at("__NR_".len()).1,
            $handler,
        )
    };
}

pub(super) use call;
