//! Clocks, sleeps, deadlines.

use std::os::fd::AsRawFd;
use std::time::Duration;

use libc::{c_int, timespec};

use crate::call;
use crate::failure::Result;

/// Sleeps.
pub fn pause_ms(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Sleeps until a signal ends this process.
pub fn sleep_forever() -> ! {
    loop {
        pause_ms(1000);
    }
}

/// Returns so many milliseconds as the C library wants them.
pub const fn timespec_of(milliseconds: i64) -> timespec {
    timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    }
}

/// Reads a clock.
pub fn clock(clock: c_int) -> Result<timespec> {
    let mut now = timespec_of(0);
    call!(clock_gettime(clock, &mut now));
    Ok(now)
}

/// Returns the time of a clock so many milliseconds from now, which may be negative.
pub fn after(id: c_int, milliseconds: i64) -> Result<timespec> {
    let mut time = clock(id)?;
    let nanoseconds = time.tv_nsec + milliseconds * 1_000_000;
    time.tv_sec += nanoseconds.div_euclid(1_000_000_000);
    time.tv_nsec = nanoseconds.rem_euclid(1_000_000_000);
    Ok(time)
}

/// Polls one file; returns which of the events it has.
pub fn poll_for(file: &impl AsRawFd, events: i16, milliseconds: c_int) -> Result<i16> {
    let mut entry = libc::pollfd {
        fd: file.as_raw_fd(),
        events,
        revents: -1,
    };
    let count = call!(poll(&mut entry, 1, milliseconds));
    crate::equal!(count, c_int::from(entry.revents != 0), entry.revents);
    Ok(entry.revents)
}
