//! Clocks, sleeping and timers.

use alloc::sync::Arc;
use core::time::Duration;

use abi::{Errno, Result, raw::general as raw};
use nucleus::{
    VirtAddr,
    task::{self, Sleep, Woken},
    time, user,
};

use super::{Call, SystemCall, call, note_unsupported};
use crate::flags::{FlagSet, flag_set};
use crate::{
    ipc::event,
    process::{
        Pid, Process, Thread, futex, pid_table,
        signal::{self, ERESTARTNOHAND},
    },
    wall_clock,
};

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_clock_gettime, clock_gettime),
    call!(__NR_clock_getres, clock_getres),
    call!(__NR_clock_settime, clock_settime),
    call!(__NR_clock_nanosleep, clock_nanosleep),
    call!(__NR_nanosleep, nanosleep),
    call!(__NR_gettimeofday, gettimeofday),
    call!(__NR_settimeofday, settimeofday),
    call!(__NR_time, time_),
    call!(__NR_adjtimex, |call| adjust(call, 0))
        .flags(&[&MODES])
        .note("read-only: the clock is the machine's"),
    call!(__NR_clock_adjtime, clock_adjtime)
        .flags(&[&MODES])
        .note("read-only: the clock is the machine's"),
];

const NANOS: i64 = 1_000_000_000;

pub(super) fn duration(seconds: i64, nanoseconds: i64) -> Result<Duration> {
    if seconds < 0 || !(0..NANOS).contains(&nanoseconds) {
        return Err(Errno::EINVAL);
    }
    Ok(Duration::new(seconds as u64, nanoseconds as u32))
}

/// A `timeval` as a time.
///
/// # Errors
/// `EINVAL`.
pub(super) fn timeval([seconds, microseconds]: [i64; 2]) -> Result<Duration> {
    if !(0..1_000_000).contains(&microseconds) {
        return Err(Errno::EINVAL);
    }
    duration(seconds, microseconds * 1000)
}

/// Reads a `timespec` that is a valid time.
///
/// # Errors
/// `EFAULT`, `EINVAL`.
pub fn read_timespec(from: VirtAddr) -> Result<Duration> {
    let [seconds, nanoseconds]: [i64; 2] = user::read(from)?;
    duration(seconds, nanoseconds)
}

/// Writes a `timespec`.
///
/// # Errors
/// `EFAULT`.
pub fn write_timespec(to: VirtAddr, time: Duration) -> Result<()> {
    let words = [time.as_secs(), u64::from(time.subsec_nanos())];
    Ok(user::write(to, &words)?)
}

/// The source of a clock, and its thread or process.
pub(super) enum Source {
    Epoch,
    Boot,
    Process(Arc<Process>),
    Thread(Arc<Thread>),
}

/// The clock with this number. Negative numbers name clocks of processes and threads: the
/// complement of an id, and three bits of kind.
pub(super) fn source(call: &Call<'_>, clock: i32) -> Result<Source> {
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
                    id => pid_table::find_thread(id).ok_or(Errno::EINVAL)?,
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
        _ => {
            note_unsupported(call.caller(), "clockid", u64::from(clock as u32));
            return Err(Errno::EINVAL);
        }
    })
}

/// Whether the clock with this number has timers, and can be slept on: the raw and the coarse ones
/// have none.
pub(super) fn has_timers(clock: i32) -> bool {
    !matches!(clock, 4..=6)
}

/// Whether its timers would wake the machine, which takes a privilege.
pub(super) fn is_alarm(clock: i32) -> bool {
    matches!(clock, 8 | 9)
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
    call.require(raw::CAP_SYS_TIME)?;
    wall_clock::set(now);
    event::clock_was_set();
    signal::timer::clock_was_set();
    futex::clock_was_set();
    wall_clock::wake_sleepers();
    Ok(0)
}

fn clock_settime(call: &mut Call<'_>) -> Result<usize> {
    if call.int(0) != raw::CLOCK_REALTIME as i32 {
        source(call, call.int(0))?;
        // The processor time of a named process cannot be set; the other clocks have no setting.
        return Err(match call.int(0) {
            ..0 => Errno::EPERM,
            _ => Errno::EINVAL,
        });
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
    set_epoch(call, timeval(call.read(0)?)?)
}

fn time_(call: &mut Call<'_>) -> Result<usize> {
    let now = time::since_epoch().as_secs();
    call.write_if(0, &now)?;
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

/// A relative sleep goes on: until when, in seconds and nanoseconds since boot, and where the rest
/// goes.
pub(in crate::linux) fn sleep_again(call: &mut Call<'_>) -> Result<usize> {
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
    let clock = call.int(0);
    if is_alarm(clock) && !call.credentials().may(raw::CAP_WAKE_ALARM) {
        return Err(Errno::EPERM);
    }
    match source {
        Source::Thread(_) if clock < 0 => return Err(Errno::EINVAL),
        Source::Thread(_) => return Err(Errno::EOPNOTSUPP),
        _ if !has_timers(clock) => return Err(Errno::EOPNOTSUPP),
        Source::Process(process) => return sleep_for_work(call, &process, absolute, value),
        Source::Epoch | Source::Boot => {}
    }
    if !absolute {
        let deadline = time::since_boot().saturating_add(value);
        return sleep_relative(call, deadline, call.address(3));
    }
    let woken = match source {
        Source::Epoch => wall_clock::sleep_until(value),
        _ => sleep_until(value),
    };
    match woken {
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

/// Modes of `adjtimex`: none that change anything. Reading the rest of a step that `adjtime` makes
/// is one.
const MODES: FlagSet = flag_set!("modes", [ADJ_OFFSET_SS_READ], EINVAL);

/// Numbers of `linux/timex.h`, which the bindings leave out.
const ADJ_OFFSET_SS_READ: u32 = 0xa001;
const STA_UNSYNC: u64 = 0x40;
const TIME_ERROR: usize = 5;

/// `struct timex` in 8-byte words: modes, offset, freq, maxerror, esterror, status, constant,
/// precision, tolerance, time, tick.
const TIMEX_WORDS: usize = 26;

/// Linux's numbers for an undisciplined clock.
fn undisciplined(now: Duration) -> [u64; TIMEX_WORDS] {
    /// Errors grow without end; Linux stops counting at 16 s, in microseconds.
    const ERROR_MAX: u64 = 16_000_000;
    /// 500 parts in a million, with 16 bits behind the point.
    const TOLERANCE: u64 = 500 << 16;
    let mut words = [0; TIMEX_WORDS];
    words[3] = ERROR_MAX;
    words[4] = ERROR_MAX;
    words[5] = STA_UNSYNC;
    words[6] = 2;
    words[7] = 1;
    words[8] = TOLERANCE;
    words[9] = now.as_secs();
    words[10] = u64::from(now.subsec_micros());
    // Microseconds between two ticks of 100 a second.
    words[11] = 10_000;
    words
}

/// The state of the clock into the structure at argument `n`.
fn adjust(call: &mut Call<'_>, n: usize) -> Result<usize> {
    let old: [u64; TIMEX_WORDS] = call.read(n)?;
    let modes = old[0] as u32;
    if modes != 0 && modes != ADJ_OFFSET_SS_READ {
        call.require(raw::CAP_SYS_TIME)?;
        MODES.check(call.caller(), u64::from(modes))?;
    }
    let mut words = undisciplined(time::since_epoch());
    words[0] = old[0];
    call.write(n, &words)?;
    Ok(TIME_ERROR)
}

fn clock_adjtime(call: &mut Call<'_>) -> Result<usize> {
    match source(call, call.int(0))? {
        Source::Epoch if call.int(0) == raw::CLOCK_REALTIME as i32 => adjust(call, 1),
        _ => Err(Errno::EOPNOTSUPP),
    }
}
