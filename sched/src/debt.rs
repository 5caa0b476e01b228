//! The virtual time of tasks in the kernel, which may hold locks that others wait for.
//!
//! A task with less than a normal share of the CPU would keep a lock until its turn comes again. So
//! one that is preempted in the kernel, or wakes up there, comes before its turn. The distance is
//! its *debt*, which it pays when it returns to its program: it leaves the kernel soon, whatever
//! its nice value, and has no more of the CPU than its share in the long run. Locks need no account
//! of their holders for that. Tasks with a normal share keep their turn: many that alternate, each
//! of which is preempted in the kernel, would otherwise run before all that have slept.

use crate::placement::SLEEPER_CREDIT;

/// About what a task has used that gives way to others like it, in nanoseconds.
const SLICE: u64 = 10_000_000;

/// A task's place among others: its virtual time and its debt, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// By which the queue is ordered.
    pub virtual_time: u64,
    /// By how much that is less than what it has used.
    pub debt: u64,
}

impl Place {
    /// Returns the place in a queue with this floor of a task that was preempted in the kernel: for
    /// the first time before those that have slept, then as if it had a share like others, so that
    /// a long call takes no more than that.
    #[inline]
    #[must_use]
    pub fn preempted(self, floor: u64) -> Self {
        match self.debt {
            0 => self.no_later_than(floor.saturating_sub(2 * SLEEPER_CREDIT as u64)),
            _ => self.no_later_than(floor + SLICE),
        }
    }

    /// Returns the place in a queue with this floor of a task that wakes up in the kernel.
    #[inline]
    #[must_use]
    pub fn woken(self, floor: u64) -> Self {
        match self.debt {
            0 => self.no_later_than(floor),
            _ => self.no_later_than(floor + SLICE),
        }
    }

    /// Returns the place of a task that pays its debt.
    #[inline]
    #[must_use]
    pub fn paid(self) -> Self {
        Self {
            virtual_time: self.virtual_time + self.debt,
            debt: 0,
        }
    }

    fn no_later_than(self, virtual_time: u64) -> Self {
        let used = self.virtual_time + self.debt;
        let virtual_time = virtual_time.min(used);
        Self {
            virtual_time,
            debt: used - virtual_time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: u64 = 1_000_000_000;

    const fn place(virtual_time: u64, debt: u64) -> Place {
        Place { virtual_time, debt }
    }

    #[test]
    fn a_debt_is_paid_to_the_last() {
        let first = place(5 * FLOOR, 0);
        let preempted = first.preempted(FLOOR);
        assert!(preempted.virtual_time < FLOOR - SLEEPER_CREDIT as u64);
        assert_eq!(preempted.paid(), first);
        let again = preempted.preempted(FLOOR);
        assert_eq!(again.virtual_time, FLOOR + SLICE);
        assert_eq!(again.paid(), first);
        assert_eq!(again.woken(FLOOR).paid(), first);
        assert_eq!(first.woken(FLOOR), place(FLOOR, 4 * FLOOR));
    }

    #[test]
    fn no_place_is_later_than_the_turn() {
        let behind = place(FLOOR / 2, 0);
        assert_eq!(behind.preempted(FLOOR), behind);
        assert_eq!(behind.woken(FLOOR), behind);
        // Others have caught up while it slept.
        let slept = place(FLOOR, SLICE);
        assert_eq!(slept.woken(2 * FLOOR), slept.paid());
    }
}
