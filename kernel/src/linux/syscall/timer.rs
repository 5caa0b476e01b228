//! Timers that send signals.

use alloc::sync::Arc;
use core::time::Duration;

use abi::{Errno, Result, raw::general as raw};

use super::{
    Call, SystemCall, call,
    time::{Source, duration, has_timers, is_alarm, source, timeval},
};
use crate::process::{
    pid_table,
    signal::{
        charge,
        timer::{self, Clock, Id, Notify, Setting},
    },
};
use crate::unsupported::note_unsupported;

pub(super) const CALLS: &[SystemCall] = &[
    call!(__NR_getitimer, getitimer),
    call!(__NR_setitimer, setitimer),
    call!(__NR_alarm, alarm),
    call!(__NR_timer_create, timer_create).note("not on the processor time of another process"),
    call!(__NR_timer_settime, timer_settime),
    call!(__NR_timer_gettime, timer_gettime),
    call!(__NR_timer_getoverrun, |call| {
        Ok(call.process().timers.overrun(call.int(0))? as usize)
    }),
    call!(__NR_timer_delete, timer_delete),
];

/// An interval and a value in seconds and the parts of one that `part` gives.
fn encode(Setting { value, interval }: Setting, part: fn(Duration) -> u32) -> [u64; 4] {
    let [a, b] = [interval, value].map(|time| [time.as_secs(), part(time).into()]);
    [a[0], a[1], b[0], b[1]]
}

fn encode_timevals(setting: Setting) -> [u64; 4] {
    // A timer that runs never looks as if it did not.
    encode(setting, |time| match time.is_zero() {
        true => 0,
        false => time.subsec_micros().max(u32::from(time.as_secs() == 0)),
    })
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
    let new = match call.read_if::<[[i64; 2]; 2]>(1)? {
        None => Setting::default(),
        Some([interval, value]) => Setting {
            interval: timeval(interval)?,
            value: timeval(value)?,
        },
    };
    let old = timer::set(call.process(), id, new, false)?;
    call.write_if(2, &encode_timevals(old))?;
    Ok(0)
}

fn alarm(call: &mut Call<'_>) -> Result<usize> {
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

/// `sigev_value`, `sigev_signo`, `sigev_notify` and the thread id stand in the first words of
/// `struct sigevent`.
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
            let target = pid_table::find_thread(thread as u32)
                .filter(|t| Arc::ptr_eq(t.process(), call.process()))
                .ok_or(Errno::EINVAL)?;
            Ok(Notify {
                thread: Some(target.lasting_id()),
                ..process_wide
            })
        }
        _ => Err(Errno::EINVAL),
    }
}

fn timer_create(call: &mut Call<'_>) -> Result<usize> {
    let clock = match source(call, call.int(0))? {
        _ if !has_timers(call.int(0)) => return Err(Errno::EOPNOTSUPP),
        _ if is_alarm(call.int(0)) && !call.credentials().may(raw::CAP_WAKE_ALARM) => {
            return Err(Errno::EPERM);
        }
        Source::Epoch => Clock::Epoch,
        Source::Boot => Clock::Boot,
        Source::Process(process) if Arc::ptr_eq(&process, call.process()) => {
            Clock::Processor { kernel_too: true }
        }
        Source::Thread(thread) => Clock::Thread(thread.lasting_id()),
        Source::Process(_) => {
            note_unsupported(call.caller(), "clockid", u64::from(call.unsigned(0)));
            return Err(Errno::EOPNOTSUPP);
        }
    };
    let notify = notification(call)?;
    call.takes_memory()?;
    let process = call.process().clone();
    let limit = process.limits().soft(raw::RLIMIT_SIGPENDING);
    let own = charge(&process.account(), limit).ok_or(Errno::EAGAIN)?;
    let id = process.timers.create(clock, notify, own)?;
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
/// `EINVAL` for an invalid time.
pub(super) fn decode_timespecs([a, b, c, d]: [i64; 4]) -> Result<Setting> {
    Ok(Setting {
        interval: duration(a, b)?,
        value: duration(c, d)?,
    })
}

/// The words of `struct itimerspec`.
pub(super) fn encode_timespecs(setting: Setting) -> [u64; 4] {
    encode(setting, |time| time.subsec_nanos())
}

fn timer_settime(call: &mut Call<'_>) -> Result<usize> {
    let new = decode_timespecs(call.read(2)?)?;
    let absolute = call.unsigned(1) & raw::TIMER_ABSTIME != 0;
    let old = timer::set(call.process(), Id::Posix(call.int(0)), new, absolute)?;
    call.write_if(3, &encode_timespecs(old))?;
    Ok(0)
}

fn timer_gettime(call: &mut Call<'_>) -> Result<usize> {
    let setting = timer::get(call.process(), Id::Posix(call.int(0)))?;
    call.write(1, &encode_timespecs(setting))?;
    Ok(0)
}

fn timer_delete(call: &mut Call<'_>) -> Result<usize> {
    call.process().timers.delete(call.int(0))?;
    Ok(0)
}
