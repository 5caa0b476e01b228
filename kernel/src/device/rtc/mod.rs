//! `/dev/rtc0`: the real-time clock, with the requests of rtc(4).
//!
//! - [`date`]: what time it is.
//! - [`interrupts`]: what a program waits for.
//!
//! The machine's clock gives a date and no interrupts. Its interrupts of each second and of the
//! alarm are emulated: while a program waits for one, the clock is read again and again, so that
//! the wait ends at the clock's own second. The periodic interrupt is a timer.

mod date;
mod interrupts;

use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
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
    task::{WaitQueue, Watch},
    time, user,
};

use crate::{
    process::{
        signal::{self, timer::WakeUp},
        thread,
    },
    rank,
};
use date::{date, fields, within_a_day};
use interrupts::{ALARM, HIGHEST_RATE, PERIODIC, RATE, State, UPDATES, period};

pub use date::now;
pub use interrupts::{USER_RATE, alarm, interrupts};

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

/// What the clock can do, by Linux's numbers (`RTC_PARAM_FEATURES`): an alarm, to the second, and
/// interrupts of each second.
const FEATURES: u64 = 1 << 0 | 1 << 4;

/// There is one opener at a time.
static IS_OPEN: AtomicBool = AtomicBool::new(false);
/// The one open file of the clock.
struct Rtc {
    location: Location,
    state: SpinLock<State>,
    readers: Arc<WaitQueue>,
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
