//! `timerfd`: a timer that is waited for.
//!
//! An unread timer costs nothing: readers are woken at the first unread expiry, and the number of
//! later ones is computed when the file is read.

use alloc::{
    format,
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use abi::{
    Errno, Result,
    raw::general::{
        CLOCK_BOOTTIME, CLOCK_BOOTTIME_ALARM, CLOCK_MONOTONIC, CLOCK_REALTIME,
        CLOCK_REALTIME_ALARM, O_NONBLOCK, TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET,
    },
};
use fbuf::Sink;
use fs::{File, OpenFlags, Ready};
use nucleus::{
    Slots,
    sync::{Rank, SpinLock},
    task::{WaitQueue, Watch},
    time,
};

use crate::process::signal::{
    self,
    timer::{Setting, WakeUp},
};

/// Bytes of the number that is read.
const UNIT: usize = size_of::<u64>();

/// Timers that may have to be set anew when the time of day is set.
static BY_TIME_OF_DAY: SpinLock<Slots<Weak<TimerFile>>> = SpinLock::new(Rank::Leaf, Slots::new());
/// The place of a timer that is not among them.
const NOWHERE: usize = usize::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clock(u32);

impl Clock {
    /// The clock with this number.
    ///
    /// # Errors
    /// `EINVAL` for one that no such timer goes by.
    pub fn new(number: i32) -> Result<Clock> {
        match number as u32 {
            number @ (CLOCK_REALTIME | CLOCK_MONOTONIC | CLOCK_BOOTTIME | CLOCK_REALTIME_ALARM
            | CLOCK_BOOTTIME_ALARM) => Ok(Clock(number)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Whether it would wake the machine, which takes a privilege.
    pub fn is_alarm(self) -> bool {
        matches!(self.0, CLOCK_REALTIME_ALARM | CLOCK_BOOTTIME_ALARM)
    }

    fn is_time_of_day(self) -> bool {
        matches!(self.0, CLOCK_REALTIME | CLOCK_REALTIME_ALARM)
    }
}

pub struct TimerFile {
    /// The clock that it goes by.
    pub clock: Clock,
    state: SpinLock<State>,
    /// Its place in `BY_TIME_OF_DAY` [changed under that lock].
    place: AtomicUsize,
    /// Of its own, so that an expiry keeps nothing else.
    readers: Arc<WaitQueue>,
}

#[derive(Default)]
struct State {
    /// The first expiry that was not read; none for a timer that does not run.
    next: Option<Duration>,
    /// Zero for once.
    interval: Duration,
    /// `next` is a time of day rather than one since boot.
    time_of_day: bool,
    /// The time of day was set, and the reader is to be told (`TFD_TIMER_CANCEL_ON_SET`).
    cancelled: bool,
    /// `TFD_*` of the last setting.
    flags: u32,
    /// Wakes readers at `next`.
    wake_up: Option<WakeUp>,
}

impl State {
    fn now(&self) -> Duration {
        match self.time_of_day {
            true => time::since_epoch(),
            false => time::since_boot(),
        }
    }

    /// Expiries that were not read.
    fn expiries(&self) -> u64 {
        let now = self.now();
        match self.next {
            Some(next) if next <= now && self.interval.is_zero() => 1,
            Some(next) if next <= now => {
                let late = (now - next).as_nanos() / self.interval.as_nanos();
                u64::try_from(late + 1).unwrap_or(u64::MAX)
            }
            _ => 0,
        }
    }

    /// Takes the expiries off.
    fn take(&mut self) -> Option<u64> {
        let expiries = self.expiries();
        let next = self.next.filter(|_| expiries > 0)?;
        self.next = match self.interval.is_zero() {
            true => None,
            false => {
                let ahead = self.interval.as_nanos() * u128::from(expiries);
                next.checked_add(duration(ahead))
            }
        };
        Some(expiries)
    }

    /// Has `readers` woken at the next expiry. Gives the old wake-up, to be dropped without the
    /// lock.
    fn arm(&mut self, readers: &Arc<WaitQueue>) -> Option<WakeUp> {
        let deadline = self.next.map(|next| match self.time_of_day {
            true => time::since_boot().saturating_add(next.saturating_sub(time::since_epoch())),
            false => next,
        });
        let wake_up = deadline.map(|deadline| WakeUp::at(deadline, readers));
        core::mem::replace(&mut self.wake_up, wake_up)
    }

    fn setting(&self) -> Setting {
        let now = self.now();
        let value = match self.next {
            None => Duration::ZERO,
            // Until the one after those that were not read.
            Some(next) if next <= now => match self.interval.as_nanos() {
                0 => Duration::ZERO,
                interval => {
                    let into = (now - next).as_nanos() % interval;
                    duration(interval - into)
                }
            },
            Some(next) => next - now,
        };
        Setting {
            value,
            interval: self.interval,
        }
    }
}

impl TimerFile {
    /// A timer that does not run.
    pub fn new(clock: Clock) -> Arc<TimerFile> {
        Arc::new(TimerFile {
            clock,
            state: SpinLock::new(crate::rank::TIMER_FILE, State::default()),
            place: AtomicUsize::new(NOWHERE),
            readers: Arc::new(WaitQueue::new()),
        })
    }

    /// The timer that an open file is.
    pub fn of(file: &Arc<dyn File>) -> Option<Arc<TimerFile>> {
        let any: Arc<dyn core::any::Any + Send + Sync> = file.clone();
        any.downcast().ok()
    }

    /// The time left and the interval.
    pub fn setting(&self) -> Setting {
        self.state.lock().setting()
    }

    /// Sets the timer as `flags` (`TFD_TIMER_*`) say; unread expiries are dropped. Returns the old
    /// setting.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn set(self: &Arc<Self>, new: Setting, flags: u32) -> Result<Setting> {
        let absolute = flags & TFD_TIMER_ABSTIME != 0;
        let by_time_of_day = absolute && self.clock.is_time_of_day();
        if by_time_of_day {
            self.enlist()?;
        }
        let (old, wake_up) = {
            let mut state = self.state.lock();
            let old = state.setting();
            state.time_of_day = by_time_of_day;
            state.interval = new.interval;
            state.flags = flags;
            state.cancelled = false;
            state.next = match new.value.is_zero() {
                true => None,
                false if absolute => Some(new.value),
                false => time::since_boot().checked_add(new.value),
            };
            (old, state.arm(&self.readers))
        };
        drop(wake_up);
        Ok(old)
    }

    /// Has the timer set anew when the time of day is set.
    fn enlist(self: &Arc<Self>) -> Result<()> {
        Slots::add_with(Arc::downgrade(self), |me, spare| {
            let mut list = BY_TIME_OF_DAY.lock();
            // Another call for the same timer may have been here first.
            let known = self.place.load(Relaxed);
            if known != NOWHERE {
                return Ok(known);
            }
            let place = list.add(me, spare)?;
            self.place.store(place, Relaxed);
            Ok(place)
        })?;
        Ok(())
    }

    fn take(&self) -> Option<Result<u64>> {
        let mut state = self.state.lock();
        let cancelled = core::mem::take(&mut state.cancelled);
        let taken = match (cancelled, state.take()) {
            (true, _) => Err(Errno::ECANCELED),
            (false, expiries) => Ok(expiries?),
        };
        let wake_up = state.arm(&self.readers);
        drop(state);
        drop(wake_up);
        Some(taken)
    }

    fn set_anew(&self) {
        let wake_up = {
            let mut state = self.state.lock();
            if !state.time_of_day {
                return;
            }
            state.cancelled |= state.flags & TFD_TIMER_CANCEL_ON_SET != 0;
            state.arm(&self.readers)
        };
        drop(wake_up);
        self.readers.wake_shared(false);
    }
}

/// The time of day was set: timers that wait for a time of day have another time to wait now.
pub fn clock_was_set() {
    let mut at = 0;
    loop {
        let timer = match BY_TIME_OF_DAY.lock().get(at) {
            Some(timer) => timer.and_then(Weak::upgrade),
            None => return,
        };
        if let Some(timer) = timer {
            timer.set_anew();
        }
        at += 1;
    }
}

impl Drop for TimerFile {
    fn drop(&mut self) {
        let place = *self.place.get_mut();
        if place != NOWHERE {
            let own = BY_TIME_OF_DAY.lock().remove(place);
            drop(own);
        }
    }
}

impl File for TimerFile {
    fn splices(&self) -> bool {
        false
    }

    fn read(&self, _: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        if to.room() < UNIT {
            return Err(Errno::EINVAL);
        }
        let wait = !flags.has(O_NONBLOCK);
        let expiries = signal::take_or_wait(&self.readers, wait, || self.take())??;
        to.put_bytes(&expiries.to_ne_bytes())
    }

    fn seek(&self, _: i64, _: u32) -> Result<u64> {
        Ok(0)
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.readers);
        }
        let state = self.state.lock();
        Ready::of(state.cancelled || state.expiries() > 0, false)
    }

    fn describe(&self) -> Vec<u8> {
        b"anon_inode:[timerfd]".to_vec()
    }

    fn details(&self, out: &mut dyn FnMut(&[u8])) {
        let state = self.state.lock();
        let (ticks, flags) = (state.expiries(), state.flags);
        let Setting { value, interval } = state.setting();
        drop(state);
        let lines = format!(
            "clockid: {}\nticks: {ticks}\nsettime flags: 0{flags:o}\n\
             it_value: ({}, {})\nit_interval: ({}, {})\n",
            self.clock.0,
            value.as_secs(),
            value.subsec_nanos(),
            interval.as_secs(),
            interval.subsec_nanos(),
        );
        out(lines.as_bytes());
    }
}

/// A duration of so many nanoseconds.
fn duration(nanoseconds: u128) -> Duration {
    const SECOND: u128 = 1_000_000_000;
    let seconds = u64::try_from(nanoseconds / SECOND).unwrap_or(u64::MAX);
    Duration::new(seconds, (nanoseconds % SECOND) as u32)
}
