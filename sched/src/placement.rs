//! Which CPU a task goes to: when it wakes up or is new, when its affinity changes, when a CPU has
//! nothing to do. CPUs are bits of a mask.

/// How far behind the others a task may be when it wakes up, in nanoseconds: enough to run at once
/// before tasks that compute, less than a slice, so that many wake-ups in a row don't starve them.
pub(crate) const SLEEPER_CREDIT: i64 = 6_000_000;

/// How far behind the running task one must be to take its CPU at once, in nanoseconds. Below it
/// the switches would cost more than the wait: a pipeline's stages would alternate at every write.
const WAKE_GRANULARITY: u64 = 1_000_000;

/// How long a task runs, in nanoseconds, before one that it wakes on its own CPU takes that over.
/// The waker of a pipeline mostly has more to write: `yes | head -c 20000000 | cat` switches less
/// than half as often, for a delay that no person notices.
const LEAST_RUN: u64 = 1_000_000;

/// How many queued tasks a CPU looks at for one that it may take.
pub const STEAL_SCAN: usize = 16;

/// A CPU's load, as other CPUs read it without a lock.
#[derive(Clone, Copy)]
pub struct Load {
    /// Tasks in its queue.
    pub queued: usize,
    /// The highest level of the task that runs and of those that wait, 0 if none has one.
    pub urgency: u8,
}

impl Load {
    /// Tasks that a new one without a level would wait for.
    fn tasks(self) -> usize {
        // A task waits longer behind one with a level.
        self.queued + usize::from(self.urgency != 0)
    }
}

/// Returns the CPUs of a mask, rising.
#[inline]
pub fn cpus(mut mask: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let cpu = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (cpu < 64).then_some(cpu)
    })
}

/// Returns the CPUs that a task with the affinity `wanted` may use: all that are online if none of
/// those that it wants is.
#[inline]
pub fn allowed(wanted: u64, online: u64) -> u64 {
    match wanted & online {
        0 => online,
        some => some,
    }
}

/// Returns the CPU of `idle`, which is not empty, for a task that ran on `last` and is woken on
/// `here`: its last one for its caches, then the waker's, then any.
#[inline]
pub fn choose_idle(idle: u64, last: usize, here: usize) -> usize {
    if idle & 1 << last != 0 {
        last
    } else if idle & 1 << here != 0 {
        here
    } else {
        idle.trailing_zeros() as usize
    }
}

/// Returns the CPU of `allowed`, none of which is idle, for a task that ran on `last` and is woken
/// on `here`. A task without a level stays, unless another CPU has less to do; one with a level
/// goes to its last CPU if that gives way to it, then to the one that does the least urgent things.
#[inline]
pub fn choose_busy(
    allowed: u64,
    level: u8,
    last: usize,
    here: usize,
    load: impl Fn(usize) -> Load,
) -> usize {
    if level != 0 {
        return choose_for_level(allowed, level, last, |cpu| load(cpu).urgency);
    }
    let load = |cpu| load(cpu).tasks();
    // Another CPU is worth the cold caches only if it has less to do by two.
    let last_load = (allowed & 1 << last != 0).then(|| load(last));
    if last_load.is_some_and(|load| load <= 1) {
        return last;
    }
    let least = cpus(allowed).min_by_key(|&cpu| load(cpu)).unwrap_or(here);
    match last_load {
        Some(last_load) if last_load <= load(least) + 1 => last,
        _ => least,
    }
}

fn choose_for_level(allowed: u64, level: u8, last: usize, urgency: impl Fn(usize) -> u8) -> usize {
    if allowed & 1 << last != 0 && urgency(last) < level {
        return last;
    }
    let least = cpus(allowed).min_by_key(|&cpu| (urgency(cpu), cpu != last));
    match least {
        Some(least) if urgency(least) < level || allowed & 1 << last == 0 => least,
        _ => last,
    }
}

/// Returns whether a task with a level that is preempted would run at once on one of `others`.
pub fn has_room(others: u64, level: u8, urgency: impl Fn(usize) -> u8) -> bool {
    level != 0 && cpus(others).any(|cpu| urgency(cpu) < level)
}

/// Returns the virtual time of a task that comes from a queue with the floor `from` into one with
/// the floor `to`: as far from it as before, but not behind by more than the credit.
#[inline]
pub fn virtual_time_in(to: u64, from: u64, virtual_time: u64) -> u64 {
    let behind_by = from as i64 - virtual_time as i64;
    (to as i64 - behind_by.min(SLEEPER_CREDIT)).max(0) as u64
}

/// The running task of a CPU that a woken task was queued for.
#[derive(Clone, Copy)]
pub struct Occupant {
    /// It is the idle task.
    pub idle: bool,
    /// It or the woken task has a level.
    pub urgent: bool,
    /// Its virtual time in nanoseconds.
    pub virtual_time: u64,
    /// When it began to run, in nanoseconds.
    pub since: u64,
}

/// When a CPU looks at its queue after a task was woken for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// At once: it must be told.
    Now,
    /// Not before this time, in nanoseconds, at which its own timer can fire.
    At(u64),
    /// When its task gives way by itself.
    Later,
}

/// Decides when a CPU looks at its queue, in which a task with `virtual_time` was put at `now`.
/// `here`: the waker runs on that CPU. `is_behind` says whether the occupant must give way by the
/// queue's order.
#[inline]
pub fn look(
    occupant: Occupant,
    virtual_time: u64,
    here: bool,
    now: u64,
    is_behind: impl FnOnce() -> bool,
) -> Look {
    let Occupant { idle, urgent, .. } = occupant;
    let soon = idle
        || if urgent {
            is_behind()
        } else {
            virtual_time + WAKE_GRANULARITY < occupant.virtual_time
        };
    if !soon {
        return Look::Later;
    }
    // A CPU's own timer can be set to the end of the run that it lets its task finish.
    let run_ends = occupant.since + LEAST_RUN;
    if here && !urgent && !idle && now < run_ends {
        return Look::At(run_ends);
    }
    Look::Now
}

/// Returns the CPU of `others` from which one with too little to do takes a task: the one with the
/// longest queue, if that holds at least `enough`.
#[inline]
pub fn busiest(
    others: impl Iterator<Item = usize>,
    load: impl Fn(usize) -> Load,
    enough: usize,
) -> Option<usize> {
    let waiting = |cpu: usize| {
        let load = load(cpu);
        if load.queued == 0 { 0 } else { load.tasks() }
    };
    let (cpu, waiting) = others
        .map(|cpu| (cpu, waiting(cpu)))
        .max_by_key(|&(_, waiting)| waiting)?;
    (waiting >= enough).then_some(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 0b1111;

    fn loads(queued: [usize; 4], urgency: [u8; 4]) -> impl Fn(usize) -> Load {
        move |cpu| Load {
            queued: queued[cpu],
            urgency: urgency[cpu],
        }
    }

    #[test]
    fn a_task_stays_where_its_caches_are_unless_another_cpu_has_less_to_do_by_two() {
        let choose = |queued| choose_busy(ALL, 0, 2, 0, loads(queued, [0; 4]));
        assert_eq!(choose([0, 0, 1, 0]), 2);
        assert_eq!(choose([1, 1, 2, 1]), 2);
        assert_eq!(choose([2, 1, 3, 2]), 1);
        let forbidden = choose_busy(0b1001, 0, 2, 0, loads([3, 0, 0, 1], [0; 4]));
        assert_eq!(forbidden, 3);
    }

    #[test]
    fn a_level_goes_where_it_runs_first() {
        let choose = |urgency| choose_busy(ALL, 50, 1, 0, loads([1; 4], urgency));
        assert_eq!(choose([0, 49, 0, 0]), 1);
        assert_eq!(choose([60, 50, 20, 30]), 2);
        assert_eq!(choose([60, 50, 70, 50]), 1);
        assert!(has_room(0b0101, 50, |cpu| [50, 0, 49, 0][cpu]));
        assert!(!has_room(0b0001, 50, |cpu| [50, 0, 49, 0][cpu]));
        assert!(!has_room(ALL, 0, |_| 0));
    }

    #[test]
    fn idle_cpus_are_taken_by_distance() {
        assert_eq!(choose_idle(0b1110, 3, 1), 3);
        assert_eq!(choose_idle(0b0110, 3, 2), 2);
        assert_eq!(choose_idle(0b0110, 3, 0), 1);
        assert_eq!(allowed(0b1000, 0b0011), 0b0011);
        assert!(cpus(0b1010).eq([1, 3]));
    }

    #[test]
    fn a_sleeper_is_behind_by_no_more_than_its_credit() {
        assert_eq!(
            virtual_time_in(50_000_000, 10_000_000, 9_000_000),
            49_000_000
        );
        assert_eq!(virtual_time_in(50_000_000, 30_000_000, 0), 44_000_000);
        assert_eq!(
            virtual_time_in(50_000_000, 10_000_000, 12_000_000),
            52_000_000
        );
    }

    #[test]
    fn a_waker_finishes_its_run_before_the_woken_task_takes_its_cpu() {
        let occupant = Occupant {
            idle: false,
            urgent: false,
            virtual_time: 20_000_000,
            since: 1_000_000,
        };
        let look = |occupant, time, here, now| look(occupant, time, here, now, || false);
        assert_eq!(
            look(occupant, 10_000_000, true, 1_500_000),
            Look::At(2_000_000)
        );
        assert_eq!(look(occupant, 10_000_000, false, 1_500_000), Look::Now);
        assert_eq!(look(occupant, 10_000_000, true, 2_500_000), Look::Now);
        assert_eq!(look(occupant, 19_500_000, true, 2_500_000), Look::Later);
        let idle = Occupant {
            idle: true,
            ..occupant
        };
        assert_eq!(look(idle, 30_000_000, true, 0), Look::Now);
        let urgent = Occupant {
            urgent: true,
            ..occupant
        };
        assert_eq!(look(urgent, 0, true, 0), Look::Later);
    }

    #[test]
    fn work_is_taken_from_the_longest_queue() {
        let find = |queued, urgency, enough| busiest(0..4, loads(queued, urgency), enough);
        assert_eq!(find([0, 2, 3, 1], [0; 4], 1), Some(2));
        assert_eq!(find([0, 3, 3, 1], [0, 9, 0, 0], 4), Some(1));
        assert_eq!(find([0, 0, 0, 0], [9; 4], 1), None);
        assert_eq!(find([0, 1, 0, 0], [0; 4], 2), None);
    }
}
