//! The timers of a process.

use alloc::vec::Vec;
use core::{
    sync::atomic::{AtomicBool, AtomicU64},
    time::Duration,
};

use abi::{Errno, Result};
use nucleus::{
    sync::{Rank, SpinLock},
    task::WaitQueue,
    time,
};

use crate::process::{pid::LastingId, signal::Charged};

/// The interval at which timers of processor time are checked, and after which a timer of
/// wall-clock time goes on at the earliest while its signal is not taken.
pub(super) const TICK: Duration =
    Duration::from_nanos(1_000_000_000 / time::TICKS_PER_SECOND as u64);

/// POSIX timers that a process may have.
const POSIX_MAX: usize = 1024;

/// When a timer expires next, and how often after it.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Time left; zero for a timer that does not run.
    pub value: Duration,
    /// Zero for once.
    pub interval: Duration,
}

/// The clock of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Time since boot.
    Boot,
    /// Time since the epoch.
    Epoch,
    /// Processor time of the process, in programs only or with the kernel's part.
    Processor { kernel_too: bool },
    /// Processor time of this thread.
    Thread(LastingId),
}

/// The effect of an expiry.
#[derive(Clone, Copy, Debug)]
pub struct Notify {
    /// 0 for nothing.
    pub signal: u32,
    pub value: u64,
    /// One thread rather than the process.
    pub thread: Option<LastingId>,
}

pub(super) struct Timer {
    pub(super) id: Id,
    pub(super) clock: Clock,
    /// On its clock (`Boot` for both wall clocks); `None` if it does not run.
    pub(super) deadline: Option<Duration>,
    pub(super) interval: Duration,
    pub(super) notify: Notify,
    /// The time of day that `deadline` stands for, until it is reached.
    pub(super) time_of_day: Option<Duration>,
    /// Tells expiries of an earlier setting apart.
    pub(super) generation: u64,
    /// Its signal waits to be taken, and the timer with it: `deadline` is the one that has passed.
    pub(super) awaits: bool,
    /// Expiries whose signals are about to be sent: see [`Timers::when_sent`].
    pub(super) sending: u32,
    /// Expiries that the signal which was delivered last stood for besides its own.
    pub(super) overrun: i32,
    /// It goes on after its signal, and is not in the queue yet.
    pub(super) goes_on: bool,
    /// The charge on its user for its signal.
    pub(super) _charge: Option<Charged>,
}

/// Woken when the signal of an expiry has been sent.
static SENT: WaitQueue = WaitQueue::new();

/// Names a timer of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Id {
    /// `ITIMER_REAL`, `ITIMER_VIRTUAL`, `ITIMER_PROF`.
    Interval(u32),
    /// `timer_create`.
    Posix(i32),
}

/// A process's timers.
pub struct Timers {
    pub(super) list: SpinLock<Vec<Timer>>,
    /// Whether one of processor time runs.
    pub(super) processor: AtomicBool,
    /// The tick after which those of processor time were last looked at.
    pub(super) looked_at: AtomicU64,
}

impl Timer {
    /// A timer that does not run.
    pub(super) fn new(id: Id, clock: Clock, notify: Notify, charge: Option<Charged>) -> Timer {
        Timer {
            id,
            clock,
            notify,
            deadline: None,
            interval: Duration::ZERO,
            time_of_day: None,
            generation: 0,
            awaits: false,
            sending: 0,
            overrun: 0,
            goes_on: false,
            _charge: charge,
        }
    }

    /// Whether it is the timer `id` as it was set in this generation.
    pub(super) fn is(&self, id: Id, generation: u64) -> bool {
        self.id == id && self.generation == generation
    }

    /// It has expired: sets the next deadline after `now`, and gives how many expiries were left
    /// out.
    pub(super) fn advance(&mut self, now: Duration) -> i32 {
        let Some(deadline) = self.deadline else {
            return 0;
        };
        self.time_of_day = None;
        if self.interval.is_zero() {
            self.deadline = None;
            return 0;
        }
        let late = now.saturating_sub(deadline).as_nanos() / self.interval.as_nanos();
        let skipped = u32::try_from(late + 1).unwrap_or(u32::MAX);
        self.deadline = Some(deadline + self.interval.saturating_mul(skipped));
        i32::try_from(late).unwrap_or(i32::MAX)
    }
}

impl Timers {
    /// No timers.
    pub const fn new() -> Timers {
        Timers {
            list: SpinLock::new(Rank::Leaf, Vec::new()),
            processor: AtomicBool::new(false),
            looked_at: AtomicU64::new(0),
        }
    }

    /// Runs `change` under the list's lock until it gives a value, each time that the signals of an
    /// expiry have been sent. What stops, sets or removes a timer waits in this way while the
    /// timer's `sending` is not zero: when its call returns, the old setting's signal waits to be
    /// taken or will never come.
    ///
    /// May sleep, for as long as it takes to send a signal.
    ///
    /// # Errors
    /// Those of `change`.
    pub(super) fn when_sent<T>(
        &self,
        mut change: impl FnMut(&mut Vec<Timer>) -> Result<Option<T>>,
    ) -> Result<T> {
        SENT.wait_soundly(|| change(&mut self.list.lock()).transpose())
    }

    /// The signal of an expiry that `sending` counts has been sent, or could not be.
    pub(super) fn sent(&self, id: Id, generation: u64) {
        let mut list = self.list.lock();
        // None if the process has ended.
        if let Some(timer) = list.iter_mut().find(|t| t.is(id, generation)) {
            timer.sending -= 1;
        }
        drop(list);
        SENT.wake_all();
    }

    /// Adds a POSIX timer that does not run; returns its id. `charge` is for its signal.
    ///
    /// # Errors
    /// `EAGAIN` if there are too many.
    pub fn create(&self, clock: Clock, notify: Notify, charge: Charged) -> Result<i32> {
        let mut list = self.list.lock();
        if list.len() >= POSIX_MAX || list.try_reserve(1).is_err() {
            return Err(Errno::EAGAIN);
        }
        let id = lowest_free(list.iter().filter_map(|timer| match timer.id {
            Id::Posix(id) => Some(id),
            _ => None,
        }));
        let value = if notify.value == u64::MAX {
            id as u64
        } else {
            notify.value
        };
        let notify = Notify { value, ..notify };
        list.push(Timer::new(Id::Posix(id), clock, notify, Some(charge)));
        Ok(id)
    }

    /// The expiries that the signal which was delivered last stood for besides its own.
    ///
    /// # Errors
    /// `EINVAL` if there is no such timer.
    pub fn overrun(&self, id: i32) -> Result<i32> {
        let list = self.list.lock();
        let timer = list.iter().find(|t| t.id == Id::Posix(id));
        timer.map(|t| t.overrun).ok_or(Errno::EINVAL)
    }
}

/// The lowest number that is none of `taken`, which are at most [`POSIX_MAX`] and below that.
fn lowest_free(taken: impl Iterator<Item = i32>) -> i32 {
    let mut words = [0u64; POSIX_MAX.div_ceil(64)];
    taken.for_each(|id| words[id as usize / 64] |= 1 << (id % 64));
    let free = words.iter().position(|&word| word != u64::MAX);
    free.map_or(POSIX_MAX as i32, |at| {
        (at * 64) as i32 + words[at].trailing_ones() as i32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_timer_has_the_lowest_free_id() {
        let most = POSIX_MAX as i32;
        for free in [0, 1, 63, 64, 65, most - 1] {
            assert_eq!(lowest_free((0..most).filter(|&id| id != free).rev()), free);
            assert_eq!(lowest_free(0..free), free);
        }
        assert_eq!(lowest_free([5, 0, 2].into_iter()), 1);
    }

    #[test]
    fn a_late_timer_counts_what_it_left_out() {
        let notify = Notify {
            signal: 14,
            value: 0,
            thread: None,
        };
        let mut timer = Timer::new(Id::Interval(0), Clock::Boot, notify, None);
        timer.deadline = Some(Duration::from_millis(100));
        timer.interval = Duration::from_millis(10);
        assert_eq!(timer.advance(Duration::from_millis(100)), 0);
        assert_eq!(timer.deadline, Some(Duration::from_millis(110)));
        assert_eq!(timer.advance(Duration::from_millis(135)), 2);
        assert_eq!(timer.deadline, Some(Duration::from_millis(140)));
        timer.interval = Duration::ZERO;
        assert_eq!(timer.advance(Duration::from_millis(141)), 0);
        assert_eq!(timer.deadline, None);
    }
}
