//! What programs asked for in vain: calls, flags and options that are refused or ignored.
//!
//! A record names the call, the option and the program (`/proc/causeway/unsupported`). It is made
//! where a call is refused, so no path of a call that succeeds takes its lock. Programs may ask for
//! anything, under any name: the table is fixed, and what has no place in it is counted together.

use nucleus::sync::{Rank, SpinLock};

/// A program's name (`comm`), padded with zeros.
pub type ProgramName = [u8; 16];

/// A thread, for what is asked of it only when a call is refused.
pub trait Named {
    /// The name of its program.
    fn program(&self) -> ProgramName;
}

/// The call that asked: its number, the entry that it came by, and its thread.
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// The number in the table of its entry.
    pub number: u32,
    /// It came by `int 0x80`.
    pub compatible: bool,
    /// The calling thread.
    pub thread: &'a dyn Named,
}

/// Something that a program asked for in vain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unsupported {
    /// The number of the call in the table of its entry.
    pub number: u32,
    /// It came by `int 0x80`.
    pub compatible: bool,
    /// Its argument; [`WHOLE_CALL`] if all of the call is refused.
    pub argument: &'static str,
    /// The bits or the value that were not known.
    pub value: u64,
    /// The name of the program.
    pub program: ProgramName,
}

/// Stands for an argument where a call is refused whatever its arguments.
pub const WHOLE_CALL: &str = "";

/// Records that are told apart.
const PLACES: usize = 512;
/// Places that are looked at for one: the work under the lock is bounded.
const PROBES: usize = 16;

struct Table {
    places: [Option<(Unsupported, u32)>; PLACES],
    /// Requests that found no place.
    dropped: u32,
}

static TABLE: SpinLock<Table> = SpinLock::new(Rank::Leaf, Table::new());

impl Unsupported {
    /// The first place that is looked at.
    fn home(&self) -> usize {
        let argument = self.argument.bytes().map(u64::from);
        let (name, rest) = self.program.split_at(8);
        let words = [name, rest].map(|half| {
            let bytes = half.iter().map(|&byte| u64::from(byte));
            bytes.fold(0, |word, byte| word << 8 | byte)
        });
        let hash = argument
            .chain([self.number.into(), self.value])
            .chain(words)
            .fold(self.compatible.into(), |hash: u64, word| {
                (hash.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
        (hash >> 32) as usize % PLACES
    }
}

impl Table {
    const fn new() -> Table {
        Table {
            places: [None; PLACES],
            dropped: 0,
        }
    }

    fn note(&mut self, what: Unsupported, home: usize) {
        for at in home..home + PROBES {
            match &mut self.places[at % PLACES] {
                Some((known, count)) if *known == what => {
                    *count = count.saturating_add(1);
                    return;
                }
                Some(_) => {}
                free => {
                    *free = Some((what, 1));
                    return;
                }
            }
        }
        self.dropped = self.dropped.saturating_add(1);
    }
}

/// Records a request that is refused or ignored, with the name of its program. Takes a spin lock.
#[cold]
pub fn note_unsupported(call: Caller<'_>, argument: &'static str, value: u64) {
    let what = Unsupported {
        number: call.number,
        compatible: call.compatible,
        argument,
        value,
        program: call.thread.program(),
    };
    let home = what.home();
    TABLE.lock().note(what, home);
}

/// Visits the records with their counts; returns how many requests found no place.
pub fn each_unsupported(mut emit: impl FnMut(&Unsupported, u32)) -> u32 {
    for at in 0..PLACES {
        // The lock is not held while the record is shown.
        let record = TABLE.lock().places[at];
        if let Some((what, count)) = record {
            emit(&what, count);
        }
    }
    TABLE.lock().dropped
}

/// Forgets all records.
pub fn forget_unsupported() {
    for at in 0..PLACES {
        TABLE.lock().places[at] = None;
    }
    TABLE.lock().dropped = 0;
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;

    use super::*;

    fn record(value: u64, program: &[u8]) -> Unsupported {
        let mut padded = ProgramName::default();
        padded[..program.len()].copy_from_slice(program);
        Unsupported {
            number: 16,
            compatible: false,
            argument: "request",
            value,
            program: padded,
        }
    }

    fn note(table: &mut Table, what: Unsupported) {
        let home = what.home();
        table.note(what, home);
    }

    #[test]
    fn a_program_an_option_and_a_call_are_told_apart() {
        let mut table = Box::new(Table::new());
        let other_call = Unsupported {
            number: 17,
            ..record(1, b"one")
        };
        let all = [
            record(1, b"one"),
            record(2, b"one"),
            record(1, b"two"),
            other_call,
        ];
        for (times, what) in (1..).zip(all) {
            for _ in 0..times {
                note(&mut table, what);
            }
        }
        for (times, what) in (1..).zip(all) {
            assert!(table.places.contains(&Some((what, times))), "{what:?}");
        }
        assert_eq!(table.places.iter().flatten().count(), all.len());
    }

    #[test]
    fn names_without_end_are_counted_and_take_no_more_places() {
        let mut table = Box::new(Table::new());
        note(&mut table, record(0, b"first"));
        for number in 0..10_000u32 {
            note(&mut table, record(0, &number.to_be_bytes()));
        }
        note(&mut table, record(0, b"first"));
        assert!(table.places.contains(&Some((record(0, b"first"), 2))));
        let counts = table.places.iter().flatten().map(|(_, count)| count);
        assert_eq!(counts.sum::<u32>() + table.dropped, 10_002);
        assert!(table.dropped > 9_000);
    }
}
