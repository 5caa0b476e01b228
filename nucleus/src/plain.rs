//! Which types may be copied byte by byte between the kernel and a program.

use linux_raw_sys::{
    general::{
        __kernel_fd_set, __kernel_fsid_t, __kernel_itimerspec, __kernel_old_itimerval,
        __kernel_old_timeval, __kernel_timespec, f_owner_ex, flock, iovec, itimerspec, itimerval,
        open_how, pollfd, rlimit, rlimit64, rusage, stat, statfs, statx, statx_timestamp, termios,
        termios2, timespec, timeval, timezone, winsize,
    },
    system::new_utsname,
};

use crate::user::Plain;

macro_rules! plain {
    ($($t:ty,)*) => { $(
        // SAFETY: integers, and structures and arrays of nothing but integers: every bit pattern is a value.
        unsafe impl Plain for $t {}
    )* };
}

plain! {
    u8, i8, u16, i16, u32, i32, u64, i64, usize, isize,
    __kernel_fd_set,
    __kernel_fsid_t,
    __kernel_itimerspec,
    __kernel_old_itimerval,
    __kernel_old_timeval,
    __kernel_timespec,
    f_owner_ex,
    flock,
    itimerspec,
    itimerval,
    new_utsname,
    open_how,
    pollfd,
    rlimit,
    rlimit64,
    rusage,
    stat,
    statfs,
    statx,
    statx_timestamp,
    termios,
    termios2,
    timespec,
    timeval,
    timezone,
    winsize,
}

// SAFETY: a pointer of the program is a number here; it is never followed.
unsafe impl Plain for iovec {}

// SAFETY: an array of values of which every bit pattern is one.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
