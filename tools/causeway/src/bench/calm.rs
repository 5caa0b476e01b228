//! How calm the host is: whether its processors are as fast now as they were at their best.
//!
//! The load of other guests on a shared host (a sibling thread, a cache, the memory's bandwidth)
//! cannot be read anywhere, but it slows a fixed piece of work down. So each processor runs that
//! piece before and after a turn, by a clock that is independent of the kernels: a turn between two
//! calm looks counts, whichever kernel measured.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use super::pin::processors;

/// The host is disturbed when a look takes this many times as long as the best one. The looks of a
/// quiet host differ by half of it.
const DISTURBED: f64 = 1.2;

/// Pieces of work in a look, of which the fastest counts: a tick of the host's own timer is no
/// disturbance.
const PIECES: u32 = 3;

/// Rounds of a piece: some 400 µs where this program is not optimised.
const ROUNDS: u32 = 6_000;

/// Looks that find the first best times.
const FIRST_LOOKS: u32 = 50;

/// The host's processors.
#[derive(Debug)]
pub struct Host {
    /// Those that this program may run on, with the best time of a piece on each.
    processors: Vec<(usize, Duration)>,
}

impl Host {
    /// Looks at the host for a tenth of a second to find its best times; later looks may find
    /// better.
    pub fn new() -> Self {
        let processors = processors().into_iter();
        let mut host = Self {
            processors: processors.map(|number| (number, Duration::MAX)).collect(),
        };
        for _ in 0..FIRST_LOOKS {
            host.is_calm();
        }
        host
    }

    /// Whether all processors are as fast as at their best.
    pub fn is_calm(&mut self) -> bool {
        let times = self.times();
        let mut calm = true;
        for ((_, best), time) in self.processors.iter_mut().zip(times) {
            if let Some(time) = time {
                *best = time.min(*best);
                calm &= time.as_secs_f64() <= best.as_secs_f64() * DISTURBED;
            }
        }
        calm
    }

    /// Runs the work on all processors at once and returns the time of each.
    fn times(&self) -> Vec<Option<Duration>> {
        thread::scope(|scope| {
            let look = |number: usize| scope.spawn(move || look(number));
            let numbers = self.processors.iter().map(|(number, _)| *number);
            let looks: Vec<_> = numbers.map(look).collect();
            let times = looks.into_iter().map(|it| it.join().ok().flatten());
            times.collect()
        })
    }
}

/// Returns the time of a piece of work on this processor, or `None` when the system does not let
/// this thread run there.
fn look(number: usize) -> Option<Duration> {
    let mut one = CpuSet::new();
    one.set(number);
    sched_setaffinity(None, &one).ok()?;
    (0..PIECES).map(|_| piece()).min()
}

/// Independent sums over a table in the processor's nearest caches: it wants all of the processor's
/// units, as an emulator does.
fn piece() -> Duration {
    const PLACES: usize = 1 << 12;
    let mut table = [0_u64; PLACES];
    let mut sums = [1_u64, 2, 3, 4, 5, 6];
    let since = Instant::now();
    for round in 0..black_box(ROUNDS) {
        for sum in &mut sums {
            let place = *sum as usize % PLACES;
            *sum = sum.wrapping_mul(6_364_136_223_846_793_005).rotate_left(21) ^ table[place];
            table[place] = table[place].wrapping_add(u64::from(round));
        }
    }
    black_box((table, sums));
    since.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(best: Duration) -> Host {
        let mut host = Host::new();
        for (_, time) in &mut host.processors {
            *time = best;
        }
        host
    }

    #[test]
    fn slower_than_the_best_is_disturbed() {
        // No piece is as fast as this.
        let mut host = host(Duration::from_nanos(1));
        assert!(!host.processors.is_empty() && !host.is_calm());
    }

    #[test]
    fn the_best_is_learned() {
        let mut host = host(Duration::from_secs(9));
        assert!(host.is_calm());
        assert!(
            host.processors
                .iter()
                .all(|(_, best)| *best < Duration::from_secs(9))
        );
    }
}
