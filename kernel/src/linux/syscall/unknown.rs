//! Calls whose numbers have no handler here.
//!
//! Numbers that Linux may have are recorded with their programs ([`crate::unsupported`]). Numbers
//! beyond its table, of which the benchmark of the bare way in and out calls one, are counted here,
//! without a lock.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use abi::{Errno, Result};

use super::{COUNT, Call};
use crate::unsupported::{Named, ProgramName};

/// Stands for all numbers that [`each_unknown`] does not tell apart.
pub const ANY_OTHER: u32 = u32::MAX;

/// Numbers beyond Linux's. Programs may call any number: only so many are told apart, and the
/// others are counted together.
static FAR: [Far; 128] = [const { Far::new() }; 128];
static OTHERS: AtomicU32 = AtomicU32::new(0);

/// Places that are looked at for a number.
const PROBES: usize = 8;

/// A number beyond the table, and how often it was called.
struct Far {
    /// 0 while the place is free: that is a number inside the table.
    number: AtomicU32,
    count: AtomicU32,
    /// The name of the first program that called it, in two halves.
    program: [AtomicU64; 2],
}

impl Far {
    const fn new() -> Far {
        Far {
            number: AtomicU32::new(0),
            count: AtomicU32::new(0),
            program: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Whether the place is the number's, which takes it if it is free.
    fn is_for(&self, number: u32, caller: &dyn Named) -> bool {
        match self.number.load(Relaxed) {
            0 => {
                let taken = self.number.compare_exchange(0, number, Relaxed, Relaxed);
                if taken.is_ok() {
                    let name = u128::from_ne_bytes(caller.program());
                    self.program[0].store(name as u64, Relaxed);
                    self.program[1].store((name >> 64) as u64, Relaxed);
                }
                taken.map_or_else(|found| found == number, |_| true)
            }
            found => found == number,
        }
    }

    fn program(&self) -> ProgramName {
        let [low, high] = [0, 1].map(|half: usize| u128::from(self.program[half].load(Relaxed)));
        (high << 64 | low).to_ne_bytes()
    }
}

/// The handler of numbers that no call has.
pub(in crate::linux) fn unknown(call: &mut Call<'_>) -> Result<usize> {
    match call.number as usize {
        0..COUNT => call.note_refused(),
        _ => note(call.number, &**call.thread),
    }
    Err(Errno::ENOSYS)
}

/// Counts a call of `number`, which is beyond the table.
fn note(number: u32, caller: &dyn Named) {
    let count = far(number, caller).map_or(&OTHERS, |far| &far.count);
    count.fetch_add(1, Relaxed);
}

/// The place of a number beyond the table, if there is one left.
fn far(number: u32, caller: &dyn Named) -> Option<&'static Far> {
    let start = number as usize;
    let home = &FAR[start % FAR.len()];
    if home.number.load(Relaxed) == number {
        return Some(home);
    }
    if number == ANY_OTHER {
        return None;
    }
    (start..start + PROBES)
        .map(|place| &FAR[place % FAR.len()])
        .find(|far| far.is_for(number, caller))
}

/// Passes on the numbers beyond Linux's that programs have called, how often, and the first program
/// that called each.
pub fn each_unknown(mut emit: impl FnMut(u32, u32, &ProgramName)) {
    for far in &FAR {
        let (number, count) = (far.number.load(Relaxed), far.count.load(Relaxed));
        if count > 0 {
            emit(number, count, &far.program());
        }
    }
    let others = OTHERS.load(Relaxed);
    if others > 0 {
        emit(ANY_OTHER, others, &ProgramName::default());
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    struct Nameless;

    impl Named for Nameless {
        fn program(&self) -> ProgramName {
            *b"a program's name"
        }
    }

    #[test]
    fn each_number_has_its_count_until_the_places_are_taken() {
        let calls = || {
            let mut calls = Vec::new();
            each_unknown(|number, count, program| calls.push((number, count, *program)));
            calls
        };
        for number in [4000, 4000, 4128, u32::MAX] {
            note(number, &Nameless);
        }
        let name = Nameless.program();
        for call in [(4000, 2, name), (4128, 1, name), (ANY_OTHER, 1, [0; 16])] {
            assert!(calls().contains(&call), "{call:?}: {:?}", calls());
        }
        for number in 10_000..11_000 {
            note(number, &Nameless);
        }
        let sum: u32 = calls().iter().map(|&(_, count, _)| count).sum();
        assert_eq!(sum, 1004);
        assert!(calls().len() <= FAR.len() + 1);
    }
}
