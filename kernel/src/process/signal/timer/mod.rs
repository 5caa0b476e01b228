//! Timers that send signals: `setitimer`, `alarm`, `timer_create`.
//!
//! Timers of wall-clock time stand in one queue; a task of the kernel sleeps until the first of
//! them is due and sends the signals, so that none is ever sent in interrupt context. Timers of
//! processor time are looked at by the thread itself when the clock's tick interrupted it, or its
//! call.
//!
//! *Intervals.* A timer of wall-clock time that has sent its signal stands in the queue no more
//! until that signal is taken; the expiries meanwhile are counted then. So an interval, which may
//! be a nanosecond, costs the machine only as much as the program takes signals. A signal that is
//! ignored is never taken: then the timer goes on after a tick at the earliest.

mod expiry;
mod list;
mod processor;

use alloc::sync::Arc;
use core::{sync::atomic::Ordering::Relaxed, time::Duration};

use abi::{Errno, Result, raw::general as raw};
use nucleus::time;

pub use expiry::{Punctual, WakeUp, clock_was_set, dropped, start, taken};
use expiry::{dequeue, enqueue, new_generation};
use list::Timer;
pub use list::{Clock, Id, Notify, Setting, Timers};

use crate::{
    process::{Process, pid_table},
    wall_clock::Deadline,
};

impl Timers {
    /// Removes a POSIX timer.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn delete(&self, id: i32) -> Result<()> {
        let timer = self.when_sent(|list| {
            let at = list.iter().position(|t| t.id == Id::Posix(id));
            let at = at.ok_or(Errno::EINVAL)?;
            Ok((list[at].sending == 0).then(|| list.remove(at)))
        })?;
        if let Some(deadline) = timer.deadline {
            dequeue(deadline, timer.generation);
        }
        Ok(())
    }

    /// Removes POSIX timers (`execve`). May sleep.
    pub fn clear_posix(&self) {
        loop {
            let next = self.list.lock().iter().find_map(|t| match t.id {
                Id::Posix(id) => Some(id),
                Id::Interval(_) => None,
            });
            let Some(id) = next else { return };
            let _ = self.delete(id);
        }
    }

    /// Removes all timers of a process that has ended.
    pub fn clear(&self) {
        while let Some(timer) = { self.list.lock().pop() } {
            if let Some(deadline) = timer.deadline {
                dequeue(deadline, timer.generation);
            }
        }
    }
}

/// Returns the rest of `time` after whole intervals.
fn remainder(time: Duration, interval: Duration) -> Duration {
    let nanoseconds = time.as_nanos() % interval.as_nanos();
    Duration::new(
        (nanoseconds / 1_000_000_000) as u64,
        (nanoseconds % 1_000_000_000) as u32,
    )
}

/// Now, on a clock; `Boot` stands for both wall clocks. The time of a thread that has ended stands
/// still at nothing.
fn now_on(process: &Process, clock: Clock) -> Duration {
    match clock {
        Clock::Thread(thread) => {
            pid_table::find_lasting(thread).map_or(Duration::ZERO, |thread| thread.times().total())
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

/// Sets a timer and returns its old setting; with `absolute`, `value` is a time on the timer's
/// clock.
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
            let notify = Notify {
                signal,
                value: 0,
                thread: None,
            };
            list.push(Timer::new(id, clock, notify, None));
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
    let generation = new_generation();
    let (before, is_silent) = timers.when_sent(|list| {
        let timer = list.iter_mut().find(|t| t.id == id).ok_or(Errno::EINVAL)?;
        if timer.sending > 0 {
            return Ok(None);
        }
        let before = (timer.deadline, timer.generation);
        timer.deadline = deadline;
        timer.time_of_day = time_of_day;
        timer.interval = new.interval;
        timer.generation = generation;
        timer.awaits = false;
        timer.overrun = 0;
        timer.goes_on = false;
        Ok(Some((before, timer.notify.signal == 0)))
    })?;
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
