//! How a cost is found: the median of batches that are long enough for the clock, and as many as it
//! takes until they agree.

use super::Batch;

/// Picoseconds that a batch lasts at least: a thousand times what reading the clock takes, and far
/// less than what a program notices when its CPU takes no interrupt.
const LONG_ENOUGH: u64 = 50_000_000;
/// Nanoseconds after which a batch is long enough even if its operations together took no time
/// that could be told from the batch's own: as long as a batch lasts, its CPU takes no interrupt.
const TOO_LONG: u64 = 500_000;
/// Operations in a batch at most.
const MOST_OPERATIONS: u64 = 1 << 20;
/// Batches at least and at most.
const LEAST_BATCHES: usize = 9;
const MOST_BATCHES: usize = 31;
/// They agree when the middle half of them lies within this part of the median.
const AGREEMENT: u64 = 32;

/// Picoseconds of one operation. `clock` gives the time in nanoseconds.
pub(super) fn cost(batch: &mut Batch<'_>, clock: impl Fn() -> u64) -> u64 {
    let mut operations = 1;
    loop {
        let start = clock();
        // The shorter of two: one that something else took part in says nothing.
        let took = batch(operations).min(batch(operations));
        let lasted = (clock() - start) / 2;
        if took >= LONG_ENOUGH || lasted >= TOO_LONG || operations >= MOST_OPERATIONS {
            break;
        }
        operations *= 2;
    }
    let mut took = [0; MOST_BATCHES];
    for count in 1..=MOST_BATCHES {
        took[count - 1] = batch(operations);
        let so_far = &mut took[..count];
        so_far.sort_unstable();
        if count >= LEAST_BATCHES && agree(so_far) {
            return middle(so_far) / operations;
        }
    }
    middle(&took) / operations
}

/// The median of what is sorted.
fn middle(sorted: &[u64]) -> u64 {
    sorted[sorted.len() / 2]
}

fn agree(sorted: &[u64]) -> bool {
    let quarter = sorted.len() / 4;
    sorted[sorted.len() - 1 - quarter] - sorted[quarter] <= middle(sorted) / AGREEMENT
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use core::cell::Cell;
    use std::vec::Vec;

    /// Batches on a machine where an operation takes 30 ns and the clock's own cost is 20;
    /// `disturbed` says what is added to which batch. Gives the cost, and the operations of each
    /// batch.
    fn measured(mut disturbed: impl FnMut(usize) -> u64) -> (u64, Vec<u64>) {
        let mut batches = Vec::new();
        let batch = &mut |operations| {
            batches.push(operations);
            operations * 30_000 + 20_000 + disturbed(batches.len())
        };
        let cost = cost(batch, || 0);
        (cost, batches)
    }

    #[test]
    fn a_quiet_machine_is_measured_with_the_least_of_batches() {
        let (cost, batches) = measured(|_| 0);
        assert_eq!(cost, 30_000 + 20_000 / 2048);
        assert_eq!(
            batches.iter().filter(|&&n| n == 2048).count(),
            2 + LEAST_BATCHES
        );
    }

    #[test]
    fn some_disturbed_batches_change_little() {
        let (cost, _) = measured(|batch| if batch % 3 == 0 { 900_000_000 } else { 0 });
        assert!((30_000..31_000).contains(&cost), "{cost}");
    }

    #[test]
    fn without_agreement_it_ends_all_the_same() {
        let (cost, batches) = measured(|batch| batch as u64 * 40_000_000);
        assert!(cost > 30_000);
        assert!(batches.len() <= MOST_BATCHES + 24);
    }

    #[test]
    fn an_operation_that_takes_no_time_ends_too() {
        assert_eq!(cost(&mut |_| 0, || 0), 0);
    }

    #[test]
    fn a_batch_does_not_last_for_the_sake_of_what_cannot_be_told() {
        let now = Cell::new(0);
        let longest = Cell::new(0);
        let batch = &mut |operations| {
            now.set(now.get() + operations * 1600);
            longest.set(longest.get().max(operations * 1600));
            0
        };
        assert_eq!(cost(batch, || now.get()), 0);
        assert!(longest.get() < 4 * TOO_LONG, "{} ns", longest.get());
    }
}
