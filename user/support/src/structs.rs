//! Structures of the C library by their fields, one line each.

use libc::{
    BPF_K, BPF_RET, SECCOMP_RET_ALLOW, SEM_UNDO, c_int, epoll_event, iovec, itimerspec, itimerval,
    pollfd, rlimit, sembuf, sock_filter, sock_fprog, timespec, timeval,
};

use crate::time::timespec_of;

/// Makes a time of seconds and nanoseconds.
pub const fn time_spec(tv_sec: i64, tv_nsec: i64) -> timespec {
    timespec { tv_sec, tv_nsec }
}

/// Makes a time of microseconds.
pub const fn time_val(microseconds: i64) -> timeval {
    timeval {
        tv_sec: microseconds / 1_000_000,
        tv_usec: microseconds % 1_000_000,
    }
}

/// Makes a setting of a timer that expires at `value`, and then every so many milliseconds.
pub const fn timer_spec(value: timespec, interval: i64) -> itimerspec {
    itimerspec {
        it_interval: timespec_of(interval),
        it_value: value,
    }
}

/// Makes a setting of an interval timer, in microseconds.
pub const fn timer_val(first: i64, interval: i64) -> itimerval {
    itimerval {
        it_interval: time_val(interval),
        it_value: time_val(first),
    }
}

/// Makes a limit of which the soft and the hard value are the same.
pub const fn limit_of(value: u64) -> rlimit {
    rlimit {
        rlim_cur: value,
        rlim_max: value,
    }
}

/// Makes an entry of a list for `poll`.
pub const fn poll_entry(fd: c_int, events: i16) -> pollfd {
    pollfd {
        fd,
        events,
        revents: 0,
    }
}

/// Makes an event for `epoll_ctl`.
pub const fn epoll_entry(events: c_int, data: u64) -> epoll_event {
    epoll_event {
        events: events as u32,
        u64: data,
    }
}

/// Makes an operation that raises a semaphore of a set until the process ends.
pub const fn undone_raise(number: u16) -> sembuf {
    sembuf {
        sem_num: number,
        sem_op: 1,
        sem_flg: SEM_UNDO as i16,
    }
}

/// Makes a step of a filter of system calls that allows all of them.
pub const fn allowing_step() -> sock_filter {
    sock_filter {
        code: (BPF_RET | BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: SECCOMP_RET_ALLOW,
    }
}

/// Makes a filter of system calls of its steps.
pub const fn filter_of(steps: &mut [sock_filter]) -> sock_fprog {
    sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    }
}

/// Makes an element of a vector of buffers.
pub const fn vector<T>(base: *const T, len: usize) -> iovec {
    iovec {
        iov_base: base.cast_mut().cast(),
        iov_len: len,
    }
}
