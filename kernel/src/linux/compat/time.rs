//! Clocks, timers and time stamps.
//!
//! A call with `64` in its name has the 64-bit structures already, but the upper half of a
//! `tv_nsec` that comes from the program counts for nothing.

use abi::{Errno, Result, raw::general as raw};
use nucleus::{VirtAddr, user::desk};

use super::row::{Row, give, same, shim, take};
use crate::linux::syscall::Call;
use crate::{linux::syscall::time::sleep_again, process::signal::ERESTART_RESTARTBLOCK};

pub(super) const CALLS: &[Row] = &[
    shim(13, raw::__NR_time, time),
    shim(25, raw::__NR_settimeofday, stime),
    shim(30, raw::__NR_utime, utime),
    shim(43, raw::__NR_times, times),
    shim(78, raw::__NR_gettimeofday, |call| {
        pair_out(call, raw::__NR_gettimeofday, 0)
    }),
    shim(79, raw::__NR_settimeofday, |call| {
        narrow_in::<2>(call, 0)?;
        call.native(raw::__NR_settimeofday)
    }),
    shim(104, raw::__NR_setitimer, |call| {
        let old = call.address(2);
        narrow_in::<4>(call, 1)?;
        call.lay_room(2, 32)?;
        let result = call.native(raw::__NR_setitimer)?;
        narrow_out::<4>(call, 2, old)?;
        Ok(result)
    }),
    shim(105, raw::__NR_getitimer, |call| {
        let to = call.lay_room(1, 32)?;
        let result = call.native(raw::__NR_getitimer)?;
        narrow_out::<4>(call, 1, to)?;
        Ok(result)
    }),
    shim(124, raw::__NR_adjtimex, |call| {
        adjust(call, raw::__NR_adjtimex, 0)
    }),
    shim(161, raw::__NR_sched_rr_get_interval, |call| {
        pair_out(call, raw::__NR_sched_rr_get_interval, 1)
    }),
    shim(162, raw::__NR_nanosleep, |call| {
        sleep(call, raw::__NR_nanosleep, 0, false)
    }),
    shim(260, raw::__NR_timer_settime, |call| {
        set_timer(call, raw::__NR_timer_settime, false)
    }),
    shim(261, raw::__NR_timer_gettime, |call| {
        get_timer(call, raw::__NR_timer_gettime)
    }),
    shim(264, raw::__NR_clock_settime, |call| {
        narrow_in::<2>(call, 1)?;
        call.native(raw::__NR_clock_settime)
    }),
    shim(265, raw::__NR_clock_gettime, |call| {
        pair_out(call, raw::__NR_clock_gettime, 1)
    }),
    shim(266, raw::__NR_clock_getres, |call| {
        pair_out(call, raw::__NR_clock_getres, 1)
    }),
    shim(267, raw::__NR_clock_nanosleep, |call| {
        sleep(call, raw::__NR_clock_nanosleep, 2, false)
    }),
    shim(271, raw::__NR_utimes, |call| {
        narrow_in::<4>(call, 1)?;
        call.native(raw::__NR_utimes)
    }),
    shim(299, raw::__NR_futimesat, |call| {
        narrow_in::<4>(call, 2)?;
        call.native(raw::__NR_futimesat)
    }),
    shim(320, raw::__NR_utimensat, |call| {
        narrow_in::<4>(call, 2)?;
        call.native(raw::__NR_utimensat)
    }),
    shim(325, raw::__NR_timerfd_settime, |call| {
        set_timer(call, raw::__NR_timerfd_settime, false)
    }),
    shim(326, raw::__NR_timerfd_gettime, |call| {
        get_timer(call, raw::__NR_timerfd_gettime)
    }),
    shim(343, raw::__NR_clock_adjtime, |call| {
        adjust(call, raw::__NR_clock_adjtime, 1)
    }),
    same(403, raw::__NR_clock_gettime),
    shim(404, raw::__NR_clock_settime, |call| {
        wide_in::<1>(call, 1)?;
        call.native(raw::__NR_clock_settime)
    }),
    same(405, raw::__NR_clock_adjtime),
    same(406, raw::__NR_clock_getres),
    shim(407, raw::__NR_clock_nanosleep, |call| {
        sleep(call, raw::__NR_clock_nanosleep, 2, true)
    }),
    same(408, raw::__NR_timer_gettime),
    shim(409, raw::__NR_timer_settime, |call| {
        set_timer(call, raw::__NR_timer_settime, true)
    }),
    same(410, raw::__NR_timerfd_gettime),
    shim(411, raw::__NR_timerfd_settime, |call| {
        set_timer(call, raw::__NR_timerfd_settime, true)
    }),
    shim(412, raw::__NR_utimensat, |call| {
        wide_in::<2>(call, 2)?;
        call.native(raw::__NR_utimensat)
    }),
    same(423, raw::__NR_sched_rr_get_interval),
];

/// Makes argument `n` point to the wide form of `N` signed words, unless it is null.
pub(super) fn narrow_in<const N: usize>(call: &mut Call<'_>, n: usize) -> Result<()> {
    if call.args[n] == 0 {
        return Ok(());
    }
    let words: [i32; N] = call.read(n)?;
    call.lay(n, &words.map(i64::from))
}

/// Makes argument `n` point to `N` `timespec`s as 64-bit programs give them, unless it is null.
pub(super) fn wide_in<const N: usize>(call: &mut Call<'_>, n: usize) -> Result<()> {
    if call.args[n] == 0 {
        return Ok(());
    }
    let mut times: [[u64; 2]; N] = call.read(n)?;
    for [_, nanoseconds] in &mut times {
        *nanoseconds &= u64::from(u32::MAX);
    }
    call.lay(n, &times)
}

/// Brings `N` words that a body wrote where argument `n` points to `to`, unless that is null.
pub(super) fn narrow_out<const N: usize>(call: &Call<'_>, n: usize, to: VirtAddr) -> Result<()> {
    if to.0 == 0 {
        return Ok(());
    }
    let words: [u64; N] = call.read(n)?;
    give(to, &words.map(|word| word as u32))
}

/// A body that writes two words where argument `n` points.
fn pair_out(call: &mut Call<'_>, native: u32, n: usize) -> Result<usize> {
    let to = call.lay_room(n, 16)?;
    let result = call.native(native)?;
    narrow_out::<2>(call, n, to)?;
    Ok(result)
}

fn time(call: &mut Call<'_>) -> Result<usize> {
    let to = call.address(0);
    call.args[0] = 0;
    let now = call.native(raw::__NR_time)?;
    if to.0 != 0 {
        give(to, &(now as u32))?;
    }
    Ok(now)
}

/// `stime`: whole seconds.
fn stime(call: &mut Call<'_>) -> Result<usize> {
    let seconds: i32 = call.read(0)?;
    call.lay(0, &[i64::from(seconds), 0])?;
    call.args[1] = 0;
    call.native(raw::__NR_settimeofday)
}

fn utime(call: &mut Call<'_>) -> Result<usize> {
    narrow_in::<2>(call, 1)?;
    call.native(raw::__NR_utime)
}

fn times(call: &mut Call<'_>) -> Result<usize> {
    let to = call.lay_room(0, 32)?;
    let ticks = call.native(raw::__NR_times)?;
    narrow_out::<4>(call, 0, to)?;
    // The answer may look like an error; programs that mind compare with -1 only.
    Ok(ticks as u32 as usize)
}

/// Words of `struct timex`, wide and narrow: every field but the last eleven is a word of its own
/// in both.
const TIMEX: usize = 26;
const TIMEX_NARROW: usize = 32;
const TIMEX_FIELDS: usize = 21;

fn adjust(call: &mut Call<'_>, native: u32, n: usize) -> Result<usize> {
    let to = call.address(n);
    let given: [i32; TIMEX_NARROW] = call.read(n)?;
    let mut wide = [0i64; TIMEX];
    for (wide, narrow) in wide.iter_mut().zip(&given[..TIMEX_FIELDS]) {
        *wide = i64::from(*narrow);
    }
    call.lay(n, &wide)?;
    let result = call.native(native)?;
    let wide: [i64; TIMEX] = call.read(n)?;
    let mut words = given;
    for (narrow, wide) in words.iter_mut().zip(&wide[..TIMEX_FIELDS]) {
        *narrow = *wide as i32;
    }
    give(to, &words)?;
    Ok(result)
}

/// Puts the time that is left of a sleep where the program wants it, as it wants it.
fn give_rest(from: VirtAddr, rest: VirtAddr, wide: bool) -> Result<()> {
    let left: [u64; 2] = take(from)?;
    match wide {
        true => give(rest, &left),
        false => give(rest, &left.map(|word| word as u32)),
    }
}

/// A sleep whose time is argument `n`, followed by the address for the remainder.
fn sleep(call: &mut Call<'_>, native: u32, n: usize, wide: bool) -> Result<usize> {
    let rest = call.address(n + 1);
    match wide {
        true => wide_in::<1>(call, n)?,
        false => narrow_in::<2>(call, n)?,
    }
    call.lay_room(n + 1, 16)?;
    let result = call.native(native);
    let interrupted = result == Err(ERESTART_RESTARTBLOCK);
    if interrupted && rest.0 != 0 {
        give_rest(call.address(n + 1), rest, wide)?;
    }
    if let (true, Some((_, args))) = (interrupted, call.own.restart) {
        let args = [args[0], args[1], rest.0 as u64, u64::from(wide), 0, 0];
        call.own.restart = Some((sleep_on, args));
    }
    result
}

/// A sleep goes on after a signal without a handler: until when in two words, where the rest goes,
/// and whether it is wide.
fn sleep_on(call: &mut Call<'_>) -> Result<usize> {
    let (rest, wide) = (call.address(2), call.args[3]);
    if rest.0 != 0 {
        let place = desk::reserve(16).map_err(|_| Errno::ENOMEM)?;
        call.args[2] = place.0 as u64;
    }
    let place = call.address(2);
    let result = sleep_again(call);
    if result == Err(ERESTART_RESTARTBLOCK) {
        if rest.0 != 0 {
            give_rest(place, rest, wide != 0)?;
        }
        if let Some((_, args)) = call.own.restart {
            let args = [args[0], args[1], rest.0 as u64, wide, 0, 0];
            call.own.restart = Some((sleep_on, args));
        }
    }
    result
}

/// Timer, flags, new and old setting.
fn set_timer(call: &mut Call<'_>, native: u32, wide: bool) -> Result<usize> {
    if wide {
        wide_in::<2>(call, 2)?;
        return call.native(native);
    }
    narrow_in::<4>(call, 2)?;
    let old = call.lay_room(3, 32)?;
    let result = call.native(native)?;
    narrow_out::<4>(call, 3, old)?;
    Ok(result)
}

/// Timer and setting.
fn get_timer(call: &mut Call<'_>, native: u32) -> Result<usize> {
    let to = call.lay_room(1, 32)?;
    let result = call.native(native)?;
    narrow_out::<4>(call, 1, to)?;
    Ok(result)
}
