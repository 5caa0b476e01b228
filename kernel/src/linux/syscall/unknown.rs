//! Counts of calls with unknown numbers: unsupported calls, and the benchmark of the bare way in
//! and out. Counting takes no lock.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{Errno, Result};

use nucleus::speculation;

use super::{COUNT, Call};

/// Stands for all numbers that [`unknown_calls`] does not tell apart.
pub const ANY_OTHER: u32 = u32::MAX;

/// Numbers inside the table.
static NEAR: [AtomicU32; COUNT] = [const { AtomicU32::new(0) }; COUNT];

/// Numbers beyond it. Programs may call any number: only so many are told apart, and the others are
/// counted together.
static FAR: [Far; 128] = [const { Far::new() }; 128];
static OTHERS: AtomicU32 = AtomicU32::new(0);

/// Places that are looked at for a number.
const PROBES: usize = 8;

/// A number beyond the table, and how often it was called.
struct Far {
    /// 0 while the place is free: that is a number inside the table.
    number: AtomicU32,
    count: AtomicU32,
}

impl Far {
    const fn new() -> Far {
        Far {
            number: AtomicU32::new(0),
            count: AtomicU32::new(0),
        }
    }

    /// Whether the place is the number's, which takes it if it is free.
    fn is_for(&self, number: u32) -> bool {
        match self.number.load(Relaxed) {
            0 => {
                let taken = self.number.compare_exchange(0, number, Relaxed, Relaxed);
                taken.map_or_else(|found| found == number, |_| true)
            }
            found => found == number,
        }
    }
}

/// The handler of numbers that no call has.
pub(in crate::linux) fn unknown(call: &mut Call<'_>) -> Result<usize> {
    note(call.number);
    Err(Errno::ENOSYS)
}

/// Counts a call of `number`, which has no handler.
fn note(number: u32) {
    let count = match speculation::get(&NEAR, number as usize) {
        Some(count) => count,
        None => far(number).map_or(&OTHERS, |far| &far.count),
    };
    count.fetch_add(1, Relaxed);
}

/// The place of a number beyond the table, if there is one left.
fn far(number: u32) -> Option<&'static Far> {
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
        .find(|far| far.is_for(number))
}

/// The numbers without a handler that programs have called, rising, and how often.
pub fn unknown_calls() -> Vec<(u32, u32)> {
    let near = (0..).zip(&NEAR);
    let far = FAR
        .iter()
        .map(|far| (far.number.load(Relaxed), &far.count))
        .chain([(ANY_OTHER, &OTHERS)]);
    let mut calls: Vec<(u32, u32)> = near
        .chain(far)
        .map(|(number, count)| (number, count.load(Relaxed)))
        .filter(|&(_, count)| count != 0)
        .collect();
    calls.sort_unstable();
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_its_count_until_the_places_are_taken() {
        note(400);
        for number in [4000, 4000, 4128, u32::MAX] {
            note(number);
        }
        let calls = unknown_calls();
        for (number, count) in [(400, 1), (4000, 2), (4128, 1), (ANY_OTHER, 1)] {
            assert!(calls.contains(&(number, count)), "{number}: {calls:?}");
        }
        for number in 10_000..11_000 {
            note(number);
        }
        let calls = unknown_calls();
        let far = calls
            .iter()
            .filter(|&&(number, _)| number as usize >= COUNT);
        let sum: u32 = far.map(|&(_, count)| count).sum();
        assert_eq!(sum, 1004);
        assert!(calls.len() <= FAR.len() + 2);
        assert!(calls.is_sorted());
    }
}
