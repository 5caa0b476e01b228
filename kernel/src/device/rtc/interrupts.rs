//! The clock's interrupts, emulated: of each second, of the alarm, and periodic ones.

use core::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use abi::Result;
use nucleus::{
    Date,
    sync::{Rank, SpinLock},
};

use super::date::{SECONDS_A_DAY, now};
use crate::process::signal::timer::WakeUp;

/// Interrupts, as a read tells them in its lowest byte.
mod interrupt {
    pub const ANY: u64 = 0x80;
    pub const PERIODIC: u64 = 0x40;
    pub const ALARM: u64 = 0x20;
    pub const UPDATE: u64 = 0x10;
}

/// Periodic interrupts a second: at the start, at most, and at most for a program without
/// `CAP_SYS_RESOURCE`.
const FIRST_RATE: u32 = 1024;
pub(super) const HIGHEST_RATE: u64 = 8192;
pub const USER_RATE: u32 = 64;

/// How often the clock is read while its next second is waited for, and while only an alarm is.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_FOR_ALARM: Duration = Duration::from_millis(10);

const SECOND: Duration = Duration::from_secs(1);

/// Whether the opener has asked for interrupts of each second, and for periodic ones.
pub(super) static UPDATES: AtomicBool = AtomicBool::new(false);
pub(super) static PERIODIC: AtomicBool = AtomicBool::new(false);
/// Periodic interrupts a second. Stays from opener to opener.
pub(super) static RATE: AtomicU32 = AtomicU32::new(FIRST_RATE);
/// Stays from opener to opener. Changed under the lock of the open file's state.
pub(super) static ALARM: SpinLock<Alarm> = SpinLock::new(
    Rank::Leaf,
    Alarm {
        at: None,
        is_on: false,
    },
);

/// The alarm.
#[derive(Clone, Copy)]
pub(super) struct Alarm {
    /// In seconds since the epoch, by this clock.
    pub(super) at: Option<u64>,
    pub(super) is_on: bool,
}

/// The alarm's date, the next midnight if none was set, and whether it is on.
///
/// # Errors
/// `EIO`.
pub fn alarm() -> Result<(Date, bool)> {
    let now = now()?.seconds();
    let alarm = *ALARM.lock();
    let midnight = (now / SECONDS_A_DAY + 1) * SECONDS_A_DAY;
    let at = alarm.at.unwrap_or(midnight);
    Ok((Date::after_epoch(at), alarm.is_on && at > now))
}

/// Whether there are interrupts of each second, and periodic ones; of these, how many a second.
pub fn interrupts() -> (bool, bool, u32) {
    let [updates, periodic] = [&UPDATES, &PERIODIC].map(|it| it.load(Relaxed));
    (updates, periodic, RATE.load(Relaxed))
}

/// What the opener has asked for, and what has happened.
#[derive(Default)]
pub(super) struct State {
    /// What the next read tells: interrupts in the lowest byte, and above it how many.
    pub(super) unread: u64,
    /// The second up to which updates were counted.
    pub(super) counted: Option<u64>,
    /// When that second was seen last, and when it was seen to begin.
    pub(super) looked: Duration,
    pub(super) began: Option<Duration>,
    /// When the next periodic interrupt is due.
    pub(super) periodic: Option<Duration>,
    /// Wakes the readers for another look.
    pub(super) wake_up: Option<WakeUp>,
}

impl State {
    fn happen(&mut self, kind: u64, count: u64) {
        if count > 0 {
            self.unread = self.unread.wrapping_add(count << 8) | interrupt::ANY | kind;
        }
    }

    /// Notes what has happened until now; `date` is the clock's, unless it changes just now.
    pub(super) fn look(&mut self, date: Option<u64>, now: Duration, alarm: &mut Alarm) {
        if let (Some(second), Some(counted)) = (date, self.counted) {
            if second != counted {
                // A clock that was set back has begun one second.
                self.happen(interrupt::UPDATE, second.saturating_sub(counted).max(1));
                self.counted = Some(second);
                let close = now.saturating_sub(self.looked) <= 2 * LOOK;
                self.began = close.then_some(now);
            }
            self.looked = now;
        }
        if let (Some(second), true, Some(at)) = (date, alarm.is_on, alarm.at)
            && second >= at
        {
            alarm.is_on = false;
            self.happen(interrupt::ALARM, 1);
        }
        if let Some(due) = self.periodic
            && due <= now
        {
            let period = period(RATE.load(Relaxed));
            let count = (now - due).as_nanos() / period.as_nanos() + 1;
            // More than 2^32 have been due for more than six days.
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            self.happen(interrupt::PERIODIC, count.into());
            self.periodic = due.checked_add(period.saturating_mul(count));
        }
    }

    /// When to look again, if a reader waits for it.
    pub(super) fn next_look(
        &self,
        date: Option<u64>,
        now: Duration,
        alarm: &Alarm,
    ) -> Option<Duration> {
        let update = self.counted.map(|_| match self.began {
            // Not to miss the begin of the next second.
            Some(began) => (now + LOOK).max(began + SECOND - LOOK),
            None => now + LOOK,
        });
        let alarm = match (alarm.is_on, alarm.at, date) {
            (true, Some(at), Some(date)) => {
                // The clock's second may end at once.
                let whole = Duration::from_secs(at.saturating_sub(date).saturating_sub(1));
                now.checked_add(whole.max(LOOK_FOR_ALARM))
            }
            (true, _, None) => Some(now + LOOK),
            _ => None,
        };
        [update, alarm, self.periodic].into_iter().flatten().min()
    }
}

pub(super) fn period(rate: u32) -> Duration {
    SECOND / rate.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_700_049_600;

    fn off() -> Alarm {
        Alarm {
            at: None,
            is_on: false,
        }
    }

    #[test]
    fn updates_are_counted_and_the_next_one_is_looked_for_in_time() {
        let mut state = State {
            counted: Some(NOON),
            ..State::default()
        };
        let ms = Duration::from_millis;
        let look = |state: &mut State, date, now| {
            state.look(Some(date), ms(now), &mut off());
            state.next_look(Some(date), ms(now), &off()).unwrap()
        };
        assert_eq!(look(&mut state, NOON, 1), ms(2));
        assert_eq!(state.unread, 0);
        // Seen to begin.
        assert_eq!(look(&mut state, NOON + 1, 2), ms(1001));
        assert_eq!(state.unread, 1 << 8 | 0x90);
        // A late look: the second began some time ago.
        assert_eq!(look(&mut state, NOON + 3, 2500), ms(2501));
        assert_eq!(state.unread, 3 << 8 | 0x90);
        // Set back.
        look(&mut state, NOON - 100, 2501);
        assert_eq!(state.unread, 4 << 8 | 0x90);
    }

    #[test]
    fn an_alarm_goes_off_once() {
        let mut state = State::default();
        let mut alarm = Alarm {
            at: Some(NOON + 10),
            is_on: true,
        };
        let now = Duration::from_secs(5);
        state.look(Some(NOON), now, &mut alarm);
        let next = state.next_look(Some(NOON), now, &alarm);
        assert_eq!(next, Some(Duration::from_secs(14)));
        state.look(Some(NOON + 10), now, &mut alarm);
        assert_eq!((state.unread, alarm.is_on), (1 << 8 | 0xa0, false));
        assert_eq!(state.next_look(Some(NOON + 10), now, &alarm), None);
        state.look(Some(NOON + 11), now, &mut alarm);
        assert_eq!(state.unread, 1 << 8 | 0xa0);
    }

    #[test]
    fn periodic_interrupts_are_counted_when_they_are_read() {
        let mut state = State {
            periodic: Some(Duration::from_secs(1)),
            ..State::default()
        };
        let period = period(RATE.load(Relaxed));
        state.look(None, Duration::from_secs(1) + 2 * period, &mut off());
        assert_eq!(state.unread, 3 << 8 | 0xc0);
        let next = state.next_look(None, Duration::from_secs(1), &off());
        assert_eq!(next, Some(Duration::from_secs(1) + 3 * period));
    }
}
