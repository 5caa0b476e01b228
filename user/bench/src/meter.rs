//! Batches and clocks.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::counters::Counts;
use crate::marks;
use crate::options::Options;
use crate::sample::Unit;

/// A row continues until it has so many batches, unless it takes far too long.
pub const LEAST_BATCHES: usize = 5;

/// A row of long batches ends after so many times its time, with however few batches: a bench of
/// several boots has a sample of each, which is worth more than many from one boot.
pub const MOST_TIMES: u32 = 4;

/// Maximal batches of a row, so that its line fits into a pipe.
pub const MOST_BATCHES: usize = 500;

/// Number of batches of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    /// Exactly so many.
    Batches(usize),
    /// For so long, with at least [`LEAST_BATCHES`] if [`MOST_TIMES`] the time suffices for them,
    /// and at most [`MOST_BATCHES`].
    Time(Duration),
}

impl Length {
    /// Returns the number that the options ask for.
    pub fn of(options: &Options) -> Self {
        match options.batches {
            Some(batches) => Self::Batches(batches as usize),
            None => Self::Time(options.time()),
        }
    }

    fn is_over(self, batches: usize, since: Instant) -> bool {
        match self {
            Self::Batches(wanted) => batches >= wanted,
            Self::Time(time) => {
                let elapsed = since.elapsed();
                batches >= MOST_BATCHES
                    || (batches >= LEAST_BATCHES && elapsed >= time)
                    || (batches > 0 && elapsed >= time * MOST_TIMES)
            }
        }
    }
}

/// Measures one row, inside its process.
#[derive(Debug)]
pub struct Meter {
    length: Length,
    unit: Unit,
    /// Operations in a batch.
    batch: u64,
    /// Bytes that an operation moves, for rates.
    bytes: u64,
    pub(crate) samples: Vec<f64>,
    pub(crate) operations: u64,
    pub(crate) counters: Counts,
    pub(crate) note: Option<String>,
}

impl Meter {
    pub(crate) fn new(length: Length, unit: Unit, batch: u64, bytes: u64) -> Self {
        Self {
            length,
            unit,
            batch,
            bytes,
            samples: Vec::new(),
            operations: 0,
            counters: Counts::default(),
            note: None,
        }
    }

    /// Measures `body`, which does as many operations as it is told.
    ///
    /// # Errors
    /// The body's own.
    pub fn measure(
        &mut self,
        mut body: impl FnMut(u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.timed(|watch, n| watch.time(|| body(n)))
    }

    /// Measures `body` after a preparation for each batch; neither the preparation nor its drop is
    /// measured.
    ///
    /// # Errors
    /// Those of either.
    pub fn prepared<S>(
        &mut self,
        mut prepare: impl FnMut(u64) -> Result<S, Failure>,
        mut body: impl FnMut(&mut S, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        self.timed(|watch, n| {
            let mut state = prepare(n)?;
            watch.time(|| body(&mut state, n))
        })
    }

    /// Measures a batch that marks the parts that count by a [`Watch`].
    ///
    /// # Errors
    /// The batch's own.
    pub fn timed(
        &mut self,
        mut batch: impl FnMut(&mut Watch, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let n = self.batch;
        batch(&mut Watch::default(), n)?;
        let start = Instant::now();
        while !self.length.is_over(self.samples.len(), start) {
            let mut watch = Watch::default();
            batch(&mut watch, n)?;
            self.samples.push(self.value_of(watch.elapsed));
            self.operations += n;
        }
        // The counters have a batch of their own: reading them disturbs caches and takes calls.
        let first = Counts::now();
        let second = Counts::now();
        let looking = second.since(&first, &Counts::default());
        let mut watch = Watch {
            looking: Some(looking),
            ..Watch::default()
        };
        batch(&mut watch, n)?;
        self.counters = watch.counters.per(n);
        Ok(())
    }

    /// Takes a value found in another way: a size, a count of pages, a time measured elsewhere.
    pub fn value(&mut self, value: f64) {
        self.samples.push(value);
        self.operations += 1;
    }

    /// Adds a note for the row's reader.
    pub fn note(&mut self, note: impl Into<String>) {
        self.note = Some(note.into());
    }

    /// Returns a sample: the time of one operation, or operations per second.
    fn value_of(&self, elapsed: Duration) -> f64 {
        let seconds = elapsed.as_secs_f64();
        let operations = self.batch as f64;
        match self.unit {
            Unit::Nanoseconds => seconds * 1e9 / operations,
            Unit::Seconds => seconds / operations,
            Unit::MebibytesPerSecond => {
                operations * self.bytes as f64 / f64::from(1 << 20) / seconds
            }
            Unit::OperationsPerSecond => operations / seconds,
            Unit::Bytes | Unit::Pages | Unit::Faults | Unit::Entries | Unit::Percent => 0.0,
        }
    }
}

/// The parts of a batch that count.
#[derive(Debug, Default)]
pub struct Watch {
    elapsed: Duration,
    counters: Counts,
    /// Cost of reading the counters; without it they are not read.
    looking: Option<Counts>,
}

impl Watch {
    /// Measures a part that counts.
    ///
    /// # Errors
    /// The part's own.
    pub fn time<T>(&mut self, part: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let Some(looking) = &self.looking else {
            marks::begin();
            let start = Instant::now();
            let result = part();
            self.elapsed += start.elapsed();
            marks::end();
            return result;
        };
        let before = Counts::now();
        let result = part()?;
        let found = Counts::now().since(&before, looking);
        self.counters = self.counters.plus(&found);
        Ok(result)
    }

    /// Runs a part that measures its own time, as [`together`](crate::partner::together) does; the
    /// counters cover all of it.
    ///
    /// # Errors
    /// The part's own.
    pub fn take(
        &mut self,
        part: impl FnOnce() -> Result<Duration, Failure>,
    ) -> Result<(), Failure> {
        let Some(looking) = &self.looking else {
            marks::begin();
            let elapsed = part();
            marks::end();
            self.elapsed += elapsed?;
            return Ok(());
        };
        let before = Counts::now();
        part()?;
        let found = Counts::now().since(&before, looking);
        self.counters = self.counters.plus(&found);
        Ok(())
    }

    /// Adds a time measured elsewhere, such as by [`together`](crate::partner::together).
    pub fn add(&mut self, time: Duration) {
        self.elapsed += time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::sleep;

    fn meter(length: Length, unit: Unit) -> Meter {
        Meter::new(length, unit, 10, 1 << 20)
    }

    #[test]
    fn batches_are_counted_and_one_warms_up_and_one_counts() {
        let mut calls = Vec::new();
        let mut meter = meter(Length::Batches(3), Unit::Nanoseconds);
        let measured = meter.measure(|n| {
            calls.push(n);
            Ok(())
        });
        assert_eq!(measured, Ok(()));
        assert_eq!(calls, [10; 5]);
        assert_eq!((meter.samples.len(), meter.operations), (3, 30));
    }

    #[test]
    fn a_short_time_has_the_least_batches_and_a_long_one_the_most() {
        let mut short = meter(Length::Time(Duration::from_millis(1)), Unit::Nanoseconds);
        let nap = |time| {
            sleep(time);
            Ok(())
        };
        let measured = short.measure(|_| nap(Duration::from_micros(500)));
        assert_eq!(measured, Ok(()));
        assert!(short.samples.len() <= LEAST_BATCHES);
        let mut slow = meter(Length::Time(Duration::from_millis(2)), Unit::Nanoseconds);
        assert_eq!(slow.measure(|_| nap(Duration::from_millis(9))), Ok(()));
        assert_eq!(slow.samples.len(), 1);
        let mut long = meter(Length::Time(Duration::from_secs(3600)), Unit::Nanoseconds);
        assert_eq!(long.measure(|_| Ok(())), Ok(()));
        assert_eq!(long.samples.len(), MOST_BATCHES);
    }

    #[test]
    fn only_what_is_timed_counts() {
        let mut meter = meter(Length::Batches(2), Unit::Nanoseconds);
        let long = Duration::from_millis(30);
        let measured = meter.prepared(
            |_| {
                sleep(long);
                Ok(Duration::from_millis(1))
            },
            |time, _| {
                sleep(*time);
                Ok(())
            },
        );
        assert_eq!(measured, Ok(()));
        let least = meter.samples.iter().copied().fold(f64::MAX, f64::min);
        assert!((100_000.0..3_000_000.0).contains(&least), "{least}");
    }

    #[test]
    fn values_are_in_their_units() {
        let half = Duration::from_millis(500);
        for (unit, value) in [
            (Unit::Nanoseconds, 5e7),
            (Unit::Seconds, 0.05),
            (Unit::MebibytesPerSecond, 20.0),
            (Unit::OperationsPerSecond, 20.0),
        ] {
            let found = meter(Length::Batches(1), unit).value_of(half);
            assert!((found - value).abs() < value * 1e-9, "{unit:?}: {found}");
        }
    }

    #[test]
    fn a_batch_that_fails_ends_the_row() {
        let mut meter = meter(Length::Batches(2), Unit::Nanoseconds);
        let failure = Failure::Error("no".into());
        assert_eq!(meter.measure(|_| Err(failure.clone())), Err(failure));
    }
}
