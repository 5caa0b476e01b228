//! An entry of the table of calls: `docs/linux.md` is made of it.

use super::{FlagSet, Handler};

/// Numbers below this have a place in the table.
pub const COUNT: usize = 512;

/// One system call of 64-bit programs.
///
/// [`flags`](Entry::flags) names the flag sets and choices that the body checks by
/// [`Call::flags`](super::Call::flags) and [`Call::choice`](super::Call::choice), and
/// [`note`](Entry::note) what differs from Linux, in one sentence.
pub struct Entry {
    /// Its number, below [`COUNT`](super::COUNT).
    pub number: u32,
    /// Its name in Linux.
    pub name: &'static str,
    /// Its body.
    pub handler: Handler,
    /// The flags that it knows, by argument.
    pub flags: &'static [&'static FlagSet],
    /// The difference from Linux; empty if there is none.
    pub note: &'static str,
}

impl Entry {
    /// A call without flags that does all that it does on Linux.
    pub const fn new(number: u32, name: &'static str, handler: Handler) -> Entry {
        Entry {
            number,
            name,
            handler,
            flags: &[],
            note: "",
        }
    }

    /// With these flag sets.
    pub const fn flags(self, flags: &'static [&'static FlagSet]) -> Entry {
        Entry { flags, ..self }
    }

    /// Adds a sentence about a difference from Linux.
    pub const fn note(self, note: &'static str) -> Entry {
        Entry { note, ..self }
    }
}
