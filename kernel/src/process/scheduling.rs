//! The scheduling of a thread: policy, nice value, real-time level, and the rank that it inherits
//! from waiters.

use abi::raw::general as raw;
use nucleus::task::Priority;

/// `SCHED_*`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Policy {
    /// A share by the nice value (`SCHED_OTHER`).
    #[default]
    Normal = raw::SCHED_NORMAL,
    /// The same; the program says that it computes a lot.
    Batch = raw::SCHED_BATCH,
    /// Runs only when no other thread wants to.
    Idle = raw::SCHED_IDLE,
    /// At a real-time level, until it sleeps.
    Fifo = raw::SCHED_FIFO,
    /// At a real-time level, in turns with others of it.
    RoundRobin = raw::SCHED_RR,
}

impl Policy {
    pub fn of(number: u32) -> Option<Policy> {
        Some(match number {
            raw::SCHED_NORMAL => Policy::Normal,
            raw::SCHED_BATCH => Policy::Batch,
            raw::SCHED_IDLE => Policy::Idle,
            raw::SCHED_FIFO => Policy::Fifo,
            raw::SCHED_RR => Policy::RoundRobin,
            _ => return None,
        })
    }

    pub fn number(self) -> u32 {
        self as u32
    }

    pub fn is_real_time(self) -> bool {
        matches!(self, Policy::Fifo | Policy::RoundRobin)
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Scheduling {
    pub policy: Policy,
    /// 1 to 99 with a real-time policy, else 0.
    pub level: u8,
    /// -20 to 19; kept, without effect, with a real-time policy.
    pub nice: i8,
    /// Its children start with neither a level nor a negative nice value (`SCHED_RESET_ON_FORK`).
    pub reset_on_fork: bool,
    /// `IOPRIO_*`, 0 if it was never set.
    pub io_priority: u16,
}

impl Scheduling {
    /// Returns the scheduling of a new thread of this one.
    pub fn of_child(mut self) -> Scheduling {
        if self.reset_on_fork {
            self.reset_on_fork = false;
            if self.policy.is_real_time() {
                (self.policy, self.level, self.nice) = (Policy::Normal, 0, 0);
            }
            self.nice = self.nice.max(0);
        }
        self
    }

    /// Its place among all priorities.
    pub fn rank(&self) -> Rank {
        match self.policy {
            Policy::Fifo => Rank::level(self.level, false),
            Policy::RoundRobin => Rank::level(self.level, true),
            Policy::Idle => Rank(20),
            Policy::Normal | Policy::Batch => Rank(i16::from(self.nice)),
        }
    }
}

/// A place among all priorities, the most urgent first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(i16);

impl Rank {
    /// Before all others.
    pub(super) const FIRST: Rank = Rank(i16::MIN);

    /// Two a level, below all nice values: threads without time slices before those with.
    fn level(level: u8, turns: bool) -> Rank {
        Rank(i16::from(turns) - 100 - 2 * i16::from(level))
    }

    /// Returns the priority of the task.
    pub fn of_task(self) -> Priority {
        match self.0 {
            nice @ -20.. => Priority::Share(nice as i8),
            rank => Priority::Level {
                level: ((-99 - rank) / 2) as u8,
                turns: rank % 2 != 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real_time(policy: Policy, level: u8) -> Scheduling {
        Scheduling {
            policy,
            level,
            ..Scheduling::default()
        }
    }

    #[test]
    fn ranks_are_ordered_and_keep_what_they_are_made_of() {
        let mut ranks = Vec::new();
        for level in (1..=99).rev() {
            for (policy, turns) in [(Policy::Fifo, false), (Policy::RoundRobin, true)] {
                let rank = real_time(policy, level).rank();
                assert_eq!(rank.of_task(), Priority::Level { level, turns });
                ranks.push(rank);
            }
        }
        for nice in -20..20 {
            let share = Scheduling {
                nice,
                ..Scheduling::default()
            };
            assert_eq!(share.rank().of_task(), Priority::Share(nice));
            ranks.push(share.rank());
        }
        ranks.push(real_time(Policy::Idle, 0).rank());
        assert!(ranks.is_sorted());
    }

    #[test]
    fn a_child_starts_without_what_is_reset() {
        let mut parent = real_time(Policy::Fifo, 5);
        assert_eq!(parent.of_child(), parent);
        parent.reset_on_fork = true;
        assert_eq!(parent.of_child(), Scheduling::default());
        let eager = Scheduling {
            nice: -3,
            reset_on_fork: true,
            ..Scheduling::default()
        };
        assert_eq!(eager.of_child().nice, 0);
        let modest = Scheduling { nice: 3, ..eager };
        assert_eq!(modest.of_child().nice, 3);
    }
}
