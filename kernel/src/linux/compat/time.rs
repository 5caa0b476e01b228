//! Clocks, timers and time stamps. A call with `64` in its name has the 64-bit structures already.

use abi::{Result, raw::general as raw};
use nucleus::{
    VirtAddr,
    user::{self, compat_scratch},
};

use super::{
    row::{Row, differs, same, shim},
    translate::{
        Difference::{InOut, Narrow, Out, Times},
        wait_in,
    },
};
use crate::linux::syscall::Call;
use crate::{linux::syscall::time::sleep_again, process::signal::ERESTART_RESTARTBLOCK};

pub(super) const CALLS: &[Row] = &[
    shim(13, raw::__NR_time, time),
    shim(25, raw::__NR_settimeofday, stime),
    differs(30, raw::__NR_utime, &[Narrow(1, 2)]),
    // The answer may look like an error; programs that mind compare with -1 only.
    differs(43, raw::__NR_times, &[Out(0, 4)]),
    differs(78, raw::__NR_gettimeofday, &[Out(0, 2)]),
    differs(79, raw::__NR_settimeofday, &[Narrow(0, 2)]),
    differs(104, raw::__NR_setitimer, &[Narrow(1, 4), Out(2, 4)]),
    differs(105, raw::__NR_getitimer, &[Out(1, 4)]),
    differs(124, raw::__NR_adjtimex, &[InOut(0, TIMEX)]),
    differs(161, raw::__NR_sched_rr_get_interval, &[Out(1, 2)]),
    shim(162, raw::__NR_nanosleep, |call| {
        sleep(call, raw::__NR_nanosleep, 0, false)
    }),
    differs(260, raw::__NR_timer_settime, &[Narrow(2, 4), Out(3, 4)]),
    differs(261, raw::__NR_timer_gettime, &[Out(1, 4)]),
    differs(264, raw::__NR_clock_settime, &[Narrow(1, 2)]),
    differs(265, raw::__NR_clock_gettime, &[Out(1, 2)]),
    differs(266, raw::__NR_clock_getres, &[Out(1, 2)]),
    shim(267, raw::__NR_clock_nanosleep, |call| {
        sleep(call, raw::__NR_clock_nanosleep, 2, false)
    }),
    differs(271, raw::__NR_utimes, &[Narrow(1, 4)]),
    differs(299, raw::__NR_futimesat, &[Narrow(2, 4)]),
    differs(320, raw::__NR_utimensat, &[Narrow(2, 4)]),
    differs(325, raw::__NR_timerfd_settime, &[Narrow(2, 4), Out(3, 4)]),
    differs(326, raw::__NR_timerfd_gettime, &[Out(1, 4)]),
    differs(343, raw::__NR_clock_adjtime, &[InOut(1, TIMEX)]),
    same(403, raw::__NR_clock_gettime),
    differs(404, raw::__NR_clock_settime, &[Times(1, 1)]),
    same(405, raw::__NR_clock_adjtime),
    same(406, raw::__NR_clock_getres),
    shim(407, raw::__NR_clock_nanosleep, |call| {
        sleep(call, raw::__NR_clock_nanosleep, 2, true)
    }),
    same(408, raw::__NR_timer_gettime),
    differs(409, raw::__NR_timer_settime, &[Times(2, 2)]),
    same(410, raw::__NR_timerfd_gettime),
    differs(411, raw::__NR_timerfd_settime, &[Times(2, 2)]),
    differs(412, raw::__NR_utimensat, &[Times(2, 2)]),
    same(423, raw::__NR_sched_rr_get_interval),
];

/// Words of a 64-bit `struct timex`. Each has one word of a 32-bit program's; what is behind them
/// there is unused.
const TIMEX: usize = 26;

fn time(call: &mut Call<'_>) -> Result<usize> {
    let to = call.address(0);
    call.args[0] = 0;
    let now = call.native(raw::__NR_time)?;
    if to.0 != 0 {
        user::write(to, &(now as u32))?;
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

/// Puts the time that is left of a sleep where the program wants it, as it wants it.
fn give_rest(from: VirtAddr, rest: VirtAddr, wide: bool) -> Result<()> {
    let left: [u64; 2] = user::read(from)?;
    Ok(match wide {
        true => user::write(rest, &left),
        false => user::write(rest, &left.map(|word| word as u32)),
    }?)
}

/// A sleep whose time is argument `n`, followed by the address for the remainder.
fn sleep(call: &mut Call<'_>, native: u32, n: usize, wide: bool) -> Result<usize> {
    let rest = call.address(n + 1);
    wait_in(call, n, wide)?;
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
        let place = compat_scratch::reserve(16)?;
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
