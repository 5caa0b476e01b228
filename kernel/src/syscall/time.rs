//! Clocks, sleeping and timers.

use alloc::sync::Arc;
use core::time::Duration;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    VirtAddr,
    task::{self, Sleep, Woken},
    time, user,
};

use super::{Call, Entry};
use crate::{
    event,
    process::{Pid, Process, Thread, family},
    signal::{
        ERESTARTNOHAND,
        timer::{self, Clock, Id, Notify, Setting},
    },
};

pub(super) const CALLS: &[Entry] = &[
    Entry::new(raw::__NR_clock_gettime, "clock_gettime", clock_gettime),
    Entry::new(raw::__NR_clock_getres, "clock_getres", clock_getres),
    Entry::new(raw::__NR_clock_settime, "clock_settime", clock_settime),
    Entry::new(
        raw::__NR_clock_nanosleep,
        "clock_nanosleep",
        clock_nanosleep,
    ),
    Entry::new(raw::__NR_nanosleep, "nanosleep", nanosleep),
    Entry::new(raw::__NR_gettimeofday, "gettimeofday", gettimeofday),
    Entry::new(raw::__NR_settimeofday, "settimeofday", settimeofday),
    Entry::new(raw::__NR_time, "time", time_),
    Entry::new(raw::__NR_getitimer, "getitimer", getitimer),
    Entry::new(raw::__NR_setitimer, "setitimer", setitimer),
    Entry::new(raw::__NR_alarm, "alarm", alarm),
    Entry::new(raw::__NR_timer_create, "timer_create", timer_create),
    Entry::new(raw::__NR_timer_settime, "timer_settime", timer_settime),
    Entry::new(raw::__NR_timer_gettime, "timer_gettime", timer_gettime),
    Entry::new(
        raw::__NR_timer_getoverrun,
        "timer_getoverrun",
        timer_getoverrun,
    ),
    Entry::new(raw::__NR_timer_delete, "timer_delete", timer_delete),
];

const NANOS: i64 = 1_000_000_000;
const MICROS: i64 = 1_000_000;

fn duration(seconds: i64, nanoseconds: i64) -> Result<Duration> {
    if seconds < 0 || !(0..NANOS).contains(&nanoseconds) {
        return Err(Errno::EINVAL);
    }
    Ok(Duration::new(seconds as u64, nanoseconds as u32))
}

/// Reads a `timespec` that is a valid time.
///
/// # Errors
/// `EFAULT`, `EINVAL`.
pub fn read_timespec(from: VirtAddr) -> Result<Duration> {
    let [seconds, nanoseconds]: [i64; 2] = user::read(from).map_err(|_| Errno::EFAULT)?;
    duration(seconds, nanoseconds)
}

/// Writes a `timespec`.
///
/// # Errors
/// `EFAULT`.
pub fn write_timespec(to: VirtAddr, time: Duration) -> Result<()> {
    let words = [time.as_secs(), u64::from(time.subsec_nanos())];
    user::write(to, &words).map_err(|_| Errno::EFAULT)
}

/// What a clock measures, and for whom.
enum Source {
    Epoch,
    Boot,
    Process(Arc<Process>),
    Thread(Arc<Thread>),
}

/// The clock with this number. Negative numbers name clocks of processes and threads: the complement of an id, and
/// three bits of kind.
fn source(call: &Call<'_>, clock: i32) -> Result<Source> {
    Ok(match clock {
        0 | 5 | 8 | 11 => Source::Epoch,
        1 | 4 | 6 | 7 | 9 => Source::Boot,
        2 => Source::Process(call.process().clone()),
        3 => Source::Thread(call.thread.clone()),
        clock if clock < 0 => {
            let id = !(clock >> 3) as Pid;
            if clock & 3 == 3 {
                return Err(Errno::EINVAL);
            }
            if clock & 4 != 0 {
                let thread = match id {
                    0 => call.thread.clone(),
                    id => family::find_thread(id).ok_or(Errno::EINVAL)?,
                };
                if !Arc::ptr_eq(thread.process(), call.process()) {
                    return Err(Errno::EINVAL);
                }
                Source::Thread(thread)
            } else {
                match id {
                    0 => Source::Process(call.process().clone()),
                    id => Source::Process(Process::find(id).ok_or(Errno::EINVAL)?),
                }
            }
        }
        _ => return Err(Errno::EINVAL),
    })
}

impl Source {
    fn now(&self) -> Duration {
        match self {
            Source::Epoch => time::since_epoch(),
            Source::Boot => time::since_boot(),
            Source::Process(process) => process.times().total(),
            Source::Thread(thread) => thread.times().total(),
        }
    }
}

fn clock_gettime(call: &mut Call<'_>) -> Result<usize> {
    // The two that programs ask for all the time touch no counts.
    let now = match call.int(0) {
        0 => time::since_epoch(),
        1 => time::since_boot(),
        clock => source(call, clock)?.now(),
    };
    write_timespec(call.address(1), now)?;
    Ok(0)
}

fn clock_getres(call: &mut Call<'_>) -> Result<usize> {
    let clock = call.int(0);
    source(call, clock)?;
    let coarse = matches!(clock, 5 | 6);
    let resolution = if coarse {
        Duration::from_secs(1) / time::TICKS_PER_SECOND
    } else {
        Duration::from_nanos(1)
    };
    if call.args[1] != 0 {
        write_timespec(call.address(1), resolution)?;
    }
    Ok(0)
}

fn set_epoch(call: &Call<'_>, now: Duration) -> Result<usize> {
    if !call.credentials().may(raw::CAP_SYS_TIME) {
        return Err(Errno::EPERM);
    }
    time::set_since_epoch(now);
    event::clock_was_set();
    Ok(0)
}

fn clock_settime(call: &mut Call<'_>) -> Result<usize> {
    if call.int(0) != raw::CLOCK_REALTIME as i32 {
        source(call, call.int(0))?;
        return Err(Errno::EINVAL);
    }
    let now = read_timespec(call.address(1))?;
    set_epoch(call, now)
}

fn gettimeofday(call: &mut Call<'_>) -> Result<usize> {
    if call.args[0] != 0 {
        let now = time::since_epoch();
        call.write(0, &[now.as_secs(), u64::from(now.subsec_micros())])?;
    }
    if call.args[1] != 0 {
        // Universal time.
        call.write(1, &[0i32; 2])?;
    }
    Ok(0)
}

fn settimeofday(call: &mut Call<'_>) -> Result<usize> {
    if call.args[0] == 0 {
        return Ok(0);
    }
    let [seconds, microseconds]: [i64; 2] = call.read(0)?;
    if !(0..MICROS).contains(&microseconds) {
        return Err(Errno::EINVAL);
    }
    let now = duration(seconds, microseconds * 1000)?;
    set_epoch(call, now)
}

pub(super) fn time_(call: &mut Call<'_>) -> Result<usize> {
    let now = time::since_epoch().as_secs();
    if call.args[0] != 0 {
        call.write(0, &now)?;
    }
    Ok(now as usize)
}

fn nanosleep(call: &mut Call<'_>) -> Result<usize> {
    let deadline = time::since_boot().saturating_add(read_timespec(call.address(0))?);
    sleep_relative(call, deadline, call.address(1))
}

/// Sleeps until `deadline`; a signal leaves the rest at `rest`.
fn sleep_relative(call: &mut Call<'_>, deadline: Duration, rest: VirtAddr) -> Result<usize> {
    match sleep_until(deadline) {
        Woken::TimedOut => Ok(0),
        Woken::Interrupted => {
            let left = deadline.saturating_sub(time::since_boot());
            if left.is_zero() {
                return Ok(0);
            }
            if rest.0 != 0 {
                write_timespec(rest, left)?;
            }
            let args = [
                deadline.as_secs(),
                u64::from(deadline.subsec_nanos()),
                rest.0 as u64,
                0,
                0,
                0,
            ];
            Err(call.restart_with(sleep_again, args))
        }
    }
}

/// A relative sleep goes on: until when, in seconds and nanoseconds since boot, and where the rest goes.
pub(super) fn sleep_again(call: &mut Call<'_>) -> Result<usize> {
    let deadline = Duration::new(call.args[0], call.args[1] as u32);
    sleep_relative(call, deadline, call.address(2))
}

fn sleep_until(deadline: Duration) -> Woken {
    if deadline <= time::since_boot() {
        return Woken::TimedOut;
    }
    task::sleep(Sleep {
        interruptible: true,
        deadline: Some(deadline),
    })
}

fn clock_nanosleep(call: &mut Call<'_>) -> Result<usize> {
    let source = source(call, call.int(0))?;
    let absolute = call.unsigned(1) & raw::TIMER_ABSTIME != 0;
    let value = read_timespec(call.address(2))?;
    match source {
        Source::Thread(_) => return Err(Errno::EINVAL),
        Source::Process(process) => return sleep_for_work(call, &process, absolute, value),
        Source::Epoch | Source::Boot => {}
    }
    if !absolute {
        let deadline = time::since_boot().saturating_add(value);
        return sleep_relative(call, deadline, call.address(3));
    }
    let left = value.saturating_sub(source.now());
    match sleep_until(time::since_boot().saturating_add(left)) {
        Woken::TimedOut => Ok(0),
        Woken::Interrupted => Err(ERESTARTNOHAND),
    }
}

/// Sleeps until a process has used so much processor time.
fn sleep_for_work(
    call: &mut Call<'_>,
    process: &Arc<Process>,
    absolute: bool,
    value: Duration,
) -> Result<usize> {
    if Arc::ptr_eq(process, call.process()) && process.signals.thread_count() == 1 {
        // Its only thread sleeps: the time would never come.
        return Err(Errno::EINVAL);
    }
    let start = if absolute {
        Duration::ZERO
    } else {
        process.times().total()
    };
    let end = start.saturating_add(value);
    while process.times().total() < end && !process.is_zombie() {
        let step = Duration::from_secs(1) / time::TICKS_PER_SECOND;
        if sleep_until(time::since_boot() + step) == Woken::Interrupted {
            return Err(Errno::EINTR);
        }
    }
    Ok(0)
}

fn timeval([seconds, microseconds]: [i64; 2]) -> Result<Duration> {
    if !(0..MICROS).contains(&microseconds) {
        return Err(Errno::EINVAL);
    }
    duration(seconds, microseconds * 1000)
}

fn encode_timevals(setting: Setting) -> [u64; 4] {
    let Setting { value, interval } = setting;
    // A timer that runs never looks as if it did not.
    let micros = |time: Duration| {
        if time.is_zero() {
            0
        } else {
            time.subsec_micros().max(u32::from(time.as_secs() == 0))
        }
    };
    [
        interval.as_secs(),
        u64::from(micros(interval)),
        value.as_secs(),
        u64::from(micros(value)),
    ]
}

fn which(call: &Call<'_>) -> Result<Id> {
    match call.unsigned(0) {
        which @ raw::ITIMER_REAL..=raw::ITIMER_PROF => Ok(Id::Interval(which)),
        _ => Err(Errno::EINVAL),
    }
}

fn getitimer(call: &mut Call<'_>) -> Result<usize> {
    let setting = timer::get(call.process(), which(call)?)?;
    call.write(1, &encode_timevals(setting))?;
    Ok(0)
}

fn setitimer(call: &mut Call<'_>) -> Result<usize> {
    let id = which(call)?;
    let new = match call.args[1] {
        0 => Setting::default(),
        _ => {
            let [a, b, c, d]: [i64; 4] = call.read(1)?;
            Setting {
                interval: timeval([a, b])?,
                value: timeval([c, d])?,
            }
        }
    };
    let old = timer::set(call.process(), id, new, false)?;
    if call.args[2] != 0 {
        call.write(2, &encode_timevals(old))?;
    }
    Ok(0)
}

pub(super) fn alarm(call: &mut Call<'_>) -> Result<usize> {
    let new = Setting {
        value: Duration::from_secs(u64::from(call.unsigned(0))),
        interval: Duration::ZERO,
    };
    let old = timer::set(call.process(), Id::Interval(raw::ITIMER_REAL), new, false)?;
    // Rounded, but never down to "none was set".
    let seconds = old.value.as_secs() + u64::from(old.value.subsec_millis() >= 500);
    Ok(if old.value.is_zero() {
        0
    } else {
        seconds.max(1) as usize
    })
}

/// `sigev_value`, `sigev_signo`, `sigev_notify` and the thread id stand in the first words of `struct sigevent`.
fn notification(call: &Call<'_>) -> Result<Notify> {
    if call.args[1] == 0 {
        // The timer's id is the value.
        return Ok(Notify {
            signal: raw::SIGALRM,
            value: u64::MAX,
            thread: None,
        });
    }
    let [value, signal_and_kind, thread, ..]: [u64; 8] = call.read(1)?;
    let signal = signal_and_kind as u32;
    let kind = (signal_and_kind >> 32) as u32;
    let valid = (1..=64).contains(&signal);
    let process_wide = Notify {
        signal,
        value,
        thread: None,
    };
    match kind {
        raw::SIGEV_NONE => Ok(Notify {
            signal: 0,
            ..process_wide
        }),
        raw::SIGEV_SIGNAL | raw::SIGEV_THREAD if valid => Ok(process_wide),
        raw::SIGEV_THREAD_ID if valid => {
            let target = family::find_thread(thread as u32)
                .filter(|t| Arc::ptr_eq(t.process(), call.process()))
                .ok_or(Errno::EINVAL)?;
            Ok(Notify {
                thread: Some(target.tid()),
                ..process_wide
            })
        }
        _ => Err(Errno::EINVAL),
    }
}

fn timer_create(call: &mut Call<'_>) -> Result<usize> {
    let clock = match source(call, call.int(0))? {
        Source::Epoch => Clock::Epoch,
        Source::Boot => Clock::Boot,
        Source::Process(process) if Arc::ptr_eq(&process, call.process()) => {
            Clock::Processor { kernel_too: true }
        }
        // Timers of one thread's, or another process's, processor time.
        Source::Process(_) | Source::Thread(_) => return Err(Errno::EOPNOTSUPP),
    };
    let notify = notification(call)?;
    let process = call.process().clone();
    let id = process.timers.create(clock, notify)?;
    if let Err(error) = call.write(2, &id) {
        // It was made a moment ago.
        let _ = process.timers.delete(id);
        return Err(error);
    }
    Ok(0)
}

/// An interval and a value, as `struct itimerspec` holds them.
///
/// # Errors
/// `EINVAL` for what is no time.
pub(super) fn decode_timespecs([a, b, c, d]: [i64; 4]) -> Result<Setting> {
    Ok(Setting {
        interval: duration(a, b)?,
        value: duration(c, d)?,
    })
}

/// The words of `struct itimerspec`.
pub(super) fn encode_timespecs(setting: Setting) -> [u64; 4] {
    let Setting { value, interval } = setting;
    [
        interval.as_secs(),
        u64::from(interval.subsec_nanos()),
        value.as_secs(),
        u64::from(value.subsec_nanos()),
    ]
}

fn timer_settime(call: &mut Call<'_>) -> Result<usize> {
    let new = decode_timespecs(call.read(2)?)?;
    let absolute = call.unsigned(1) & raw::TIMER_ABSTIME != 0;
    let old = timer::set(call.process(), Id::Posix(call.int(0)), new, absolute)?;
    if call.args[3] != 0 {
        call.write(3, &encode_timespecs(old))?;
    }
    Ok(0)
}

fn timer_gettime(call: &mut Call<'_>) -> Result<usize> {
    let setting = timer::get(call.process(), Id::Posix(call.int(0)))?;
    call.write(1, &encode_timespecs(setting))?;
    Ok(0)
}

fn timer_getoverrun(call: &mut Call<'_>) -> Result<usize> {
    Ok(call.process().timers.overrun(call.int(0))? as usize)
}

fn timer_delete(call: &mut Call<'_>) -> Result<usize> {
    call.process().timers.delete(call.int(0))?;
    Ok(0)
}
