//! `/dev/rtc0`: the real-time clock, with the requests of rtc(4).
//!
//! The machine's clock gives a date and no interrupts. Its interrupts of each second and of the
//! alarm are emulated: while a program waits for one, the clock is read again and again, so that
//! the wait ends at the clock's own second. The periodic interrupt is a timer.

use alloc::sync::Arc;
use core::{
    sync::atomic::{
        AtomicBool, AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use abi::{
    Errno, Result,
    raw::{
        general::{CAP_SYS_RESOURCE, CAP_SYS_TIME, O_NONBLOCK},
        ioctl::{
            RTC_AIE_OFF, RTC_AIE_ON, RTC_ALM_READ, RTC_ALM_SET, RTC_EPOCH_SET, RTC_IRQP_READ,
            RTC_IRQP_SET, RTC_PIE_OFF, RTC_PIE_ON, RTC_RD_TIME, RTC_SET_TIME, RTC_UIE_OFF,
            RTC_UIE_ON, RTC_WKALM_RD, RTC_WKALM_SET,
        },
    },
};
use fbuf::Sink;
use fs::{File, Location, OpenFlags, Ready, device::register_char_device, vnode::Asynchronous};
use nucleus::{
    Date, VirtAddr, rtc,
    sync::SpinLock,
    task::{self, Sleep, WaitQueue, Watch},
    time, user,
};

use crate::{
    process::{
        signal::{self, timer::WakeUp},
        thread,
    },
    rank,
};

/// The first number that Linux gives to devices without one of their own.
pub const MAJOR: u32 = 254;
/// The minor.
pub const MINOR: u32 = 0;

/// The name of clock and driver.
pub const NAME: &str = "rtc_cmos rtc_cmos";

/// Requests that `linux-raw-sys` does not have: the rate for 32-bit programs, and parameters.
const RTC_IRQP_READ_32: u32 = 0x8004_700b;
const RTC_IRQP_SET_32: u32 = 0x4004_700c;
const RTC_PARAM_GET: u32 = 0x4018_7013;
const RTC_PARAM_SET: u32 = 0x4018_7014;

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
const HIGHEST_RATE: u64 = 8192;
pub const USER_RATE: u32 = 64;

/// What the clock can do, by Linux's numbers (`RTC_PARAM_FEATURES`): an alarm, to the second, and
/// interrupts of each second.
const FEATURES: u64 = 1 << 0 | 1 << 4;

/// How often the clock is read while its next second is waited for, and while only an alarm is.
const LOOK: Duration = Duration::from_millis(1);
const LOOK_FOR_ALARM: Duration = Duration::from_millis(10);
/// Readings of a clock that changes just now, [`LOOK`] apart; a change takes 2 ms.
const ATTEMPTS: u32 = 20;

const SECOND: Duration = Duration::from_secs(1);
const SECONDS_A_DAY: u64 = 24 * 60 * 60;

/// There is one opener at a time.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// Whether that one has asked for interrupts of each second, and for periodic ones.
static UPDATES: AtomicBool = AtomicBool::new(false);
static PERIODIC: AtomicBool = AtomicBool::new(false);
/// Periodic interrupts a second. Stays from opener to opener.
static RATE: AtomicU32 = AtomicU32::new(FIRST_RATE);
/// Stays from opener to opener. Changed under the lock of the open file's state.
static ALARM: SpinLock<Alarm> = SpinLock::new(
    nucleus::sync::Rank::Leaf,
    Alarm {
        at: None,
        is_on: false,
    },
);

/// The alarm.
#[derive(Clone, Copy)]
struct Alarm {
    /// In seconds since the epoch, by this clock.
    at: Option<u64>,
    is_on: bool,
}

/// `struct rtc_time`: second, minute, hour, day, month from 0 on, year from 1900 on, day of the
/// week, day of the year, and daylight saving.
type Fields = [i32; 9];

fn fields(date: Date) -> Fields {
    [
        date.second,
        date.minute,
        date.hour,
        date.day,
        date.month - 1,
        date.year - 1900,
        date.weekday(),
        date.day_of_year(),
        0,
    ]
    .map(|field| field as i32)
}

/// # Errors
/// `EINVAL` if there is no such date.
fn date([second, minute, hour, day, month, year, ..]: Fields) -> Result<Date> {
    let field = |value: i32, first: u32| {
        let value = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
        value.checked_add(first).ok_or(Errno::EINVAL)
    };
    let date = Date {
        year: field(year, 1900)?,
        month: field(month, 1)?,
        day: field(day, 0)?,
        hour: field(hour, 0)?,
        minute: field(minute, 0)?,
        second: field(second, 0)?,
    };
    date.is_valid().then_some(date).ok_or(Errno::EINVAL)
}

/// The clock's date.
///
/// # Errors
/// `EIO` if it does not stop changing.
pub fn now() -> Result<Date> {
    for _ in 0..ATTEMPTS {
        if let Some(date) = rtc::read() {
            return Ok(date);
        }
        // Either end of the sleep is followed by another look.
        let _ = task::sleep(Sleep::within(LOOK));
    }
    Err(Errno::EIO)
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

/// The one open file of the clock.
struct Rtc {
    location: Location,
    state: SpinLock<State>,
    readers: Arc<WaitQueue>,
}

#[derive(Default)]
struct State {
    /// What the next read tells: interrupts in the lowest byte, and above it how many.
    unread: u64,
    /// The second up to which updates were counted.
    counted: Option<u64>,
    /// When that second was seen last, and when it was seen to begin.
    looked: Duration,
    began: Option<Duration>,
    /// When the next periodic interrupt is due.
    periodic: Option<Duration>,
    /// Wakes the readers for another look.
    wake_up: Option<WakeUp>,
}

impl State {
    fn happen(&mut self, kind: u64, count: u64) {
        if count > 0 {
            self.unread = self.unread.wrapping_add(count << 8) | interrupt::ANY | kind;
        }
    }

    /// Notes what has happened until now; `date` is the clock's, unless it changes just now.
    fn look(&mut self, date: Option<u64>, now: Duration, alarm: &mut Alarm) {
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
    fn next_look(&self, date: Option<u64>, now: Duration, alarm: &Alarm) -> Option<Duration> {
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

fn period(rate: u32) -> Duration {
    SECOND / rate.max(1)
}

/// Registers the device.
///
/// # Errors
/// `EBUSY` if its number is taken.
pub fn register() -> Result<()> {
    register_char_device(MAJOR, MINOR..=MINOR, |at, _, _| open(at))
}

/// Opens the clock.
///
/// # Errors
/// `EBUSY` if another program has it open.
fn open(at: &Location) -> Result<Arc<dyn File>> {
    if IS_OPEN.swap(true, Acquire) {
        return Err(Errno::EBUSY);
    }
    let rtc = Rtc {
        location: at.clone(),
        state: SpinLock::new(rank::TIMER_FILE, State::default()),
        readers: Arc::new(WaitQueue::new()),
    };
    // An alarm that went off when no program had the clock is over.
    rtc.unread();
    rtc.state.lock().unread = 0;
    Ok(Arc::new(rtc))
}

impl Drop for Rtc {
    fn drop(&mut self) {
        UPDATES.store(false, Relaxed);
        PERIODIC.store(false, Relaxed);
        IS_OPEN.store(false, Release);
    }
}

impl Rtc {
    /// Looks at the clock, has the readers woken when it is to be looked at again, and returns what
    /// a read would tell.
    fn unread(&self) -> u64 {
        self.with_state(|state| state.unread)
    }

    fn with_state<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let (result, old) = {
            let mut state = self.state.lock();
            let mut alarm = *ALARM.lock();
            let waits = state.counted.is_some() || alarm.is_on;
            let date = rtc::read().filter(|_| waits).map(Date::seconds);
            let now = time::since_boot();
            state.look(date, now, &mut alarm);
            *ALARM.lock() = alarm;
            let result = f(&mut state);
            let next = match state.unread {
                0 => state.next_look(date, now, &alarm),
                _ => None,
            };
            let wake_up = next.map(|at| WakeUp::at(at, &self.readers));
            (result, core::mem::replace(&mut state.wake_up, wake_up))
        };
        // A wake-up is dropped without the lock.
        drop(old);
        result
    }

    /// Takes what was not read, if anything.
    fn take(&self) -> Option<u64> {
        let unread = self.with_state(|state| core::mem::take(&mut state.unread));
        (unread != 0).then_some(unread)
    }

    /// Looks anew after something was changed, and wakes the readers if there is something to read.
    fn changed(&self) {
        if self.unread() != 0 {
            self.readers.wake_all();
        }
    }

    fn set_updates(&self, on: bool) -> Result<()> {
        let second = match on {
            true => Some(now()?.seconds()),
            false => None,
        };
        {
            let mut state = self.state.lock();
            if state.counted.is_some() != on {
                state.counted = second;
                state.began = None;
                state.looked = time::since_boot();
            }
        }
        UPDATES.store(on, Relaxed);
        self.changed();
        Ok(())
    }

    fn set_periodic(&self, on: bool) -> Result<()> {
        let rate = RATE.load(Relaxed);
        check_rate(rate.into())?;
        let first = on.then(|| time::since_boot() + period(rate));
        {
            let mut state = self.state.lock();
            if state.periodic.is_some() != on {
                state.periodic = first;
            }
        }
        PERIODIC.store(on, Relaxed);
        self.changed();
        Ok(())
    }

    fn set_rate(&self, rate: u64) -> Result<()> {
        check_rate(rate)?;
        if rate == 0 || rate > HIGHEST_RATE {
            return Err(Errno::EINVAL);
        }
        let rate = rate as u32;
        RATE.store(rate, Relaxed);
        let first = time::since_boot() + period(rate);
        {
            let mut state = self.state.lock();
            state.periodic = state.periodic.map(|_| first);
        }
        self.changed();
        Ok(())
    }

    fn set_alarm(&self, at: u64, on: Option<bool>) {
        {
            // Kept while the alarm is looked at.
            let _state = self.state.lock();
            let mut alarm = ALARM.lock();
            alarm.at = Some(at);
            alarm.is_on = on.unwrap_or(alarm.is_on);
        }
        self.changed();
    }

    fn turn_alarm(&self, on: bool) -> Result<()> {
        let (at, _) = alarm()?;
        self.set_alarm(at.seconds(), Some(on));
        Ok(())
    }

    fn set_time(&self, date: &Date) -> Result<()> {
        Errno::ERANGE.unless(rtc::set(date))?;
        {
            let mut state = self.state.lock();
            state.counted = state.counted.map(|_| date.seconds());
            state.began = None;
            state.looked = time::since_boot();
        }
        self.changed();
        Ok(())
    }
}

/// # Errors
/// `EACCES` for a caller without that capability.
fn require(capability: u32) -> Result<()> {
    let caller = thread::current_shared().ok_or(Errno::EACCES)?;
    Errno::EACCES.unless(caller.credentials.may(capability))
}

fn check_rate(rate: u64) -> Result<()> {
    match rate > USER_RATE.into() {
        true => require(CAP_SYS_RESOURCE),
        false => Ok(()),
    }
}

/// The time of an alarm that has only a time of day: today, or tomorrow if that is over.
fn within_a_day(wanted: Fields, now: Date) -> Result<u64> {
    let [second, minute, hour, ..] = wanted;
    let [.., day, month, year, _, _, _] = fields(now);
    let at = date([second, minute, hour, day, month, year, 0, 0, 0])?.seconds();
    Ok(match at < now.seconds() {
        true => at + SECONDS_A_DAY,
        false => at,
    })
}

impl File for Rtc {
    fn splices(&self) -> bool {
        false
    }

    fn read(&self, _: Option<u64>, flags: OpenFlags, to: &mut dyn Sink) -> Result<usize> {
        let room = to.room();
        if room != size_of::<u32>() && room < size_of::<u64>() {
            return Err(Errno::EINVAL);
        }
        let wait = !flags.has(O_NONBLOCK);
        let unread = signal::take_or_wait(&self.readers, wait, || self.take())?;
        let bytes = unread.to_ne_bytes();
        to.put_bytes(&bytes[..room.min(size_of::<u64>())])
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.readers);
        }
        Ready::of(self.unread() != 0, false)
    }

    fn asynchronous(&self) -> Asynchronous {
        Asynchronous::Named
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        match command {
            RTC_SET_TIME | RTC_EPOCH_SET | RTC_PARAM_SET => require(CAP_SYS_TIME)?,
            _ => {}
        }
        match command {
            RTC_RD_TIME => user::write(argument, &fields(now()?))?,
            RTC_SET_TIME => self.set_time(&date(user::read(argument)?)?)?,
            RTC_ALM_READ => user::write(argument, &fields(alarm()?.0))?,
            RTC_ALM_SET => {
                let at = within_a_day(user::read(argument)?, now()?)?;
                self.set_alarm(at, Some(false));
            }
            RTC_WKALM_RD => {
                let (at, is_on) = alarm()?;
                let mut wake_alarm = [0i32; 10];
                wake_alarm[0] = is_on.into();
                wake_alarm[1..].copy_from_slice(&fields(at));
                user::write(argument, &wake_alarm)?;
            }
            RTC_WKALM_SET => {
                // `enabled` and `pending`, a byte each, and the time.
                let wanted: [i32; 10] = user::read(argument)?;
                let [_, wanted_date @ ..] = wanted;
                let at = date(wanted_date)?.seconds();
                self.set_alarm(at, Some(wanted[0] & 0xff != 0));
            }
            RTC_AIE_ON | RTC_AIE_OFF => self.turn_alarm(command == RTC_AIE_ON)?,
            RTC_UIE_ON | RTC_UIE_OFF => self.set_updates(command == RTC_UIE_ON)?,
            RTC_PIE_ON => self.set_periodic(true)?,
            RTC_PIE_OFF => self.set_periodic(false)?,
            RTC_IRQP_READ => user::write(argument, &u64::from(RATE.load(Relaxed)))?,
            RTC_IRQP_READ_32 => user::write(argument, &RATE.load(Relaxed))?,
            RTC_IRQP_SET | RTC_IRQP_SET_32 => self.set_rate(argument.0 as u64)?,
            RTC_PARAM_GET => {
                let [parameter, _, index]: [u64; 3] = user::read(argument)?;
                if parameter != 0 || index as u32 != 0 {
                    return Err(Errno::EINVAL);
                }
                user::write(argument, &[parameter, FEATURES, index])?;
            }
            RTC_PARAM_SET => return Err(Errno::EINVAL),
            _ => return Err(Errno::ENOTTY),
        }
        Ok(0)
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }
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
    fn fields_are_those_of_the_manual() {
        let noon = fields(Date::after_epoch(NOON));
        assert_eq!(noon, [0, 0, 12, 15, 10, 123, 3, 318, 0]);
        assert_eq!(date(noon).map(Date::seconds), Ok(NOON));
        for (at, value) in [(0, 60), (1, -1), (2, 24), (3, 0), (3, 31), (4, 12), (5, 69)] {
            let mut wrong = noon;
            wrong[at] = value;
            assert_eq!(date(wrong), Err(Errno::EINVAL), "{at} {value}");
        }
        let now = Date::after_epoch(NOON);
        let mut daily = [-1; 9];
        daily[..3].copy_from_slice(&[5, 0, 12]);
        assert_eq!(within_a_day(daily, now), Ok(NOON + 5));
        daily[2] = 11;
        assert_eq!(
            within_a_day(daily, now),
            Ok(NOON + 5 - 3600 + SECONDS_A_DAY)
        );
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
