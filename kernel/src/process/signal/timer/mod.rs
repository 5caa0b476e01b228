//! Timers that send signals: `setitimer`, `alarm`, `timer_create`.
//!
//! Timers of wall-clock time stand in one queue; a task of the kernel sleeps until the first
//! of them is due and sends the signals, so that none is ever sent in interrupt context. Timers
//! of processor time are looked at by the thread itself when the clock's tick interrupted it, or its call.
//!
//! *Intervals.* A timer of wall-clock time that has sent its signal stands in the queue no more until that signal is taken; what
//! it would have done meanwhile is counted then. So an interval, which may be a nanosecond, costs the machine
//! what the program takes, and not what it asked for. A signal that is ignored is never taken: then it goes on after a tick at the earliest.

mod due;
mod processor;

use alloc::{sync::Arc, vec::Vec};
use core::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    sync::{Rank, SpinLock},
    time,
};

use due::{GENERATION, dequeue, enqueue};
pub use due::{clock_was_set, dropped, start, taken};

use crate::{
    process::{Pid, Process, pid_table, user::WaitingSignal},
    wall_clock::Deadline,
};

/// Between two ticks: how often timers of processor time are looked at, and after how long one of wall-clock time goes on at the earliest
/// whose signal nobody takes.
const TICK: Duration = Duration::from_nanos(1_000_000_000 / time::TICKS_PER_SECOND as u64);

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

/// What a timer measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// Time since boot.
    Boot,
    /// Time since the epoch.
    Epoch,
    /// Processor time of the process, in programs only or with the kernel's part.
    Processor { kernel_too: bool },
    /// Processor time of the thread with this id.
    Thread(Pid),
}

/// What an expiry does.
#[derive(Clone, Copy, Debug)]
pub struct Notify {
    /// 0 for nothing.
    pub signal: u32,
    pub value: u64,
    /// One thread rather than the process.
    pub thread: Option<Pid>,
}

struct Timer {
    id: Id,
    clock: Clock,
    /// On its clock (`Boot` for both wall clocks); `None` if it does not run.
    deadline: Option<Duration>,
    interval: Duration,
    notify: Notify,
    /// The time of day that `deadline` stands for, until it is reached.
    time_of_day: Option<Duration>,
    /// Tells expiries of an earlier setting apart.
    generation: u64,
    /// Its signal waits to be taken, and the timer with it: `deadline` is the one that has passed.
    awaits: bool,
    /// Expiries that the signal which was delivered last stood for besides its own.
    overrun: i32,
    /// It goes on after its signal, and is not in the queue yet.
    goes_on: bool,
    /// What its user is charged for its signal.
    _charge: Option<WaitingSignal>,
}

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
    list: SpinLock<Vec<Timer>>,
    /// Whether one of processor time runs.
    processor: AtomicBool,
    /// The tick after which those of processor time were last looked at.
    looked_at: AtomicU64,
}

impl Timer {
    /// It has expired: sets the next deadline after `now`, and gives how many expiries were left out.
    fn advance(&mut self, now: Duration) -> i32 {
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

impl Default for Timers {
    fn default() -> Timers {
        Timers::new()
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

    /// Adds a POSIX timer that does not run; returns its id. `charge` is for its signal.
    ///
    /// # Errors
    /// `EAGAIN` if there are too many.
    pub fn create(&self, clock: Clock, notify: Notify, charge: WaitingSignal) -> Result<i32> {
        let mut list = self.list.lock();
        if list.len() >= POSIX_MAX || list.try_reserve(1).is_err() {
            return Err(Errno::EAGAIN);
        }
        let taken = |id: i32| list.iter().any(|t| t.id == Id::Posix(id));
        let Some(id) = (0..).find(|id| !taken(*id)) else {
            return Err(Errno::EAGAIN);
        };
        let value = if notify.value == u64::MAX {
            id as u64
        } else {
            notify.value
        };
        list.push(Timer {
            id: Id::Posix(id),
            clock,
            deadline: None,
            interval: Duration::ZERO,
            notify: Notify { value, ..notify },
            time_of_day: None,
            generation: 0,
            awaits: false,
            overrun: 0,
            goes_on: false,
            _charge: Some(charge),
        });
        Ok(id)
    }

    /// Removes a POSIX timer.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn delete(&self, id: i32) -> Result<()> {
        let mut list = self.list.lock();
        let at = list
            .iter()
            .position(|t| t.id == Id::Posix(id))
            .ok_or(Errno::EINVAL)?;
        let timer = list.remove(at);
        drop(list);
        if let Some(deadline) = timer.deadline {
            dequeue(deadline, timer.generation);
        }
        Ok(())
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

    /// Removes POSIX timers (`execve`).
    pub fn clear_posix(&self) {
        self.remove(|id| matches!(id, Id::Posix(_)));
    }

    /// Removes all timers.
    pub fn clear(&self) {
        self.remove(|_| true);
    }

    fn remove(&self, which: impl Fn(Id) -> bool) {
        loop {
            let timer = {
                let mut list = self.list.lock();
                let Some(at) = list.iter().position(|t| which(t.id)) else {
                    return;
                };
                list.swap_remove(at)
            };
            if let Some(deadline) = timer.deadline {
                dequeue(deadline, timer.generation);
            }
        }
    }
}

/// What is left of `time` after whole intervals.
fn remainder(time: Duration, interval: Duration) -> Duration {
    let nanoseconds = time.as_nanos() % interval.as_nanos();
    Duration::new(
        (nanoseconds / 1_000_000_000) as u64,
        (nanoseconds % 1_000_000_000) as u32,
    )
}

/// Now, on a clock; `Boot` stands for both wall clocks. The time of a thread that has ended stands still at nothing.
fn now_on(process: &Process, clock: Clock) -> Duration {
    match clock {
        Clock::Thread(tid) => {
            pid_table::find_thread(tid).map_or(Duration::ZERO, |thread| thread.times().total())
        }
        Clock::Boot | Clock::Epoch => time::since_boot(),
        Clock::Processor { kernel_too } => {
            let times = process.times();
            if kernel_too {
                times.total()
            } else {
                times.user
            }
        }
    }
}

/// The time left and the interval of a timer.
///
/// # Errors
/// `EINVAL` if there is no such POSIX timer.
pub fn get(process: &Process, id: Id) -> Result<Setting> {
    let (clock, deadline, interval, is_silent) = {
        let list = process.timers.list.lock();
        match list.iter().find(|t| t.id == id) {
            Some(timer) => (
                timer.clock,
                timer.deadline,
                timer.interval,
                timer.notify.signal == 0,
            ),
            None if matches!(id, Id::Interval(_)) => return Ok(Setting::default()),
            None => return Err(Errno::EINVAL),
        }
    };
    let now = now_on(process, clock);
    // A timer that is due and has not expired yet, or has not gone on, still runs.
    let left = |deadline: Duration| match now.checked_sub(deadline) {
        Some(late) if !interval.is_zero() => interval - remainder(late, interval),
        // It only tells the time.
        Some(_) if is_silent => Duration::ZERO,
        _ => deadline.saturating_sub(now).max(Duration::from_nanos(1)),
    };
    Ok(Setting {
        value: deadline.map_or(Duration::ZERO, left),
        interval,
    })
}

/// Sets a timer and returns its old setting; with `absolute`, `value` is a time on the timer's clock.
///
/// # Errors
/// `EINVAL` if there is no such POSIX timer, `ENOMEM`.
pub fn set(process: &Arc<Process>, id: Id, new: Setting, absolute: bool) -> Result<Setting> {
    let old = get(process, id)?;
    let kind = match id {
        Id::Interval(which) => Some(which),
        Id::Posix(_) => None,
    };
    let timers = &process.timers;
    let clock = {
        let mut list = timers.list.lock();
        if let Some(which) = kind
            && !list.iter().any(|t| t.id == id)
        {
            let (clock, signal) = match which {
                raw::ITIMER_VIRTUAL => (Clock::Processor { kernel_too: false }, raw::SIGVTALRM),
                raw::ITIMER_PROF => (Clock::Processor { kernel_too: true }, raw::SIGPROF),
                _ => (Clock::Boot, raw::SIGALRM),
            };
            list.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
            list.push(Timer {
                id,
                clock,
                deadline: None,
                interval: Duration::ZERO,
                notify: Notify {
                    signal,
                    value: 0,
                    thread: None,
                },
                time_of_day: None,
                generation: 0,
                awaits: false,
                overrun: 0,
                goes_on: false,
                _charge: None,
            });
        }
        list.iter()
            .find(|t| t.id == id)
            .map(|t| t.clock)
            .ok_or(Errno::EINVAL)?
    };
    let now = now_on(process, clock);
    // Kept on the clock since boot, and computed again when the time of day is set.
    let time_of_day =
        (absolute && clock == Clock::Epoch && !new.value.is_zero()).then_some(new.value);
    let deadline = if new.value.is_zero() {
        None
    } else if let Some(time) = time_of_day {
        Some(Deadline::OfDay(time).since_boot())
    } else if !absolute {
        now.checked_add(new.value)
    } else {
        Some(new.value)
    };
    let generation = GENERATION.fetch_add(1, Relaxed);
    let is_silent;
    let before = {
        let mut list = timers.list.lock();
        let timer = list.iter_mut().find(|t| t.id == id).ok_or(Errno::EINVAL)?;
        is_silent = timer.notify.signal == 0;
        let before = (timer.deadline, timer.generation);
        timer.deadline = deadline;
        timer.time_of_day = time_of_day;
        timer.interval = new.interval;
        timer.generation = generation;
        timer.awaits = false;
        timer.overrun = 0;
        timer.goes_on = false;
        before
    };
    match clock {
        Clock::Processor { .. } | Clock::Thread(_) => timers.processor.store(true, Relaxed),
        Clock::Boot | Clock::Epoch => {
            if let (Some(deadline), generation) = before {
                dequeue(deadline, generation);
            }
            if let Some(deadline) = deadline
                && !is_silent
            {
                enqueue(process, id, deadline, generation);
            }
        }
    }
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_timer_counts_what_it_left_out() {
        let mut timer = Timer {
            id: Id::Interval(0),
            clock: Clock::Boot,
            deadline: Some(Duration::from_millis(100)),
            interval: Duration::from_millis(10),
            notify: Notify {
                signal: 14,
                value: 0,
                thread: None,
            },
            time_of_day: None,
            generation: 1,
            awaits: false,
            overrun: 0,
            goes_on: false,
            _charge: None,
        };
        assert_eq!(timer.advance(Duration::from_millis(100)), 0);
        assert_eq!(timer.deadline, Some(Duration::from_millis(110)));
        assert_eq!(timer.advance(Duration::from_millis(135)), 2);
        assert_eq!(timer.deadline, Some(Duration::from_millis(140)));
        timer.interval = Duration::ZERO;
        assert_eq!(timer.advance(Duration::from_millis(141)), 0);
        assert_eq!(timer.deadline, None);
    }
}
