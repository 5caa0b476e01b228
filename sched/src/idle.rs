//! How long a CPU without work polls its run queue before it sleeps.
//!
//! The waker of a task for a CPU that polls only enqueues it: no interrupt is sent, and none taken.
//! A virtual machine pays for both, and more for a CPU that must be started again, with many times
//! the cost of a task switch. But a CPU that polls takes time from others on the same host, so it
//! polls only where its last sleeps were short.

/// The longest poll at first, in nanoseconds.
pub const LONGEST_POLL: u64 = 200_000;

/// The first poll of a CPU that did not poll before, in nanoseconds: some interrupts' time.
const FIRST: u64 = 25_000;

/// How long a CPU polls before it sleeps, learned from how long it had nothing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Patience(u64);

impl Patience {
    /// Returns the time to poll, in nanoseconds.
    pub fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Learns that the CPU polled or slept, and had nothing to do for `span` nanoseconds in all.
    /// `longest` is the longest time that it may poll.
    pub fn learn(&mut self, span: u64, longest: u64) {
        self.0 = match span <= longest {
            true => (self.0 * 2).max(FIRST),
            false if self.0 > FIRST => self.0 / 2,
            false => 0,
        }
        .min(longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_polls_as_long_as_it_is_worth() {
        const SPANS: [u64; 9] = [1, 60, 60, 60, 60, 900, 900, 900, 900];
        let mut patience = Patience::default();
        let after = SPANS.map(|span| {
            patience.learn(span * 1000, LONGEST_POLL);
            patience.0 / 1000
        });
        assert_eq!(after, [25, 50, 100, 200, 200, 100, 50, 25, 0]);
        patience.learn(5_000, 10_000);
        assert_eq!(patience, Patience(10_000));
    }
}
