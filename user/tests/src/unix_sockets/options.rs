//! Options, time limits and signals.

use super::{ignore, option, pair, set_option};
use crate::support::{End, Outcome, errno, pause_ms, spawn, wait};
use crate::{Test, call, ensure, refused};
use libc::c_void;
use std::{
    mem,
    os::fd::AsRawFd,
    ptr,
    time::{Duration, Instant},
};

pub const TESTS: &[Test] = &[
    ("unix sockets: options", options),
    ("unix sockets: time limits and signals", limits),
];

fn options() -> Outcome {
    let [a, _b] = pair(libc::SOCK_SEQPACKET)?;
    let fd = a.as_raw_fd();
    for (name, expected) in [
        (libc::SO_TYPE, libc::SOCK_SEQPACKET),
        (libc::SO_DOMAIN, libc::AF_UNIX),
        (libc::SO_PROTOCOL, 0),
        (libc::SO_ERROR, 0),
        (libc::SO_ACCEPTCONN, 0),
        (libc::SO_SNDBUF, 212_992),
        (libc::SO_RCVBUF, 212_992),
        (libc::SO_RCVLOWAT, 1),
    ] {
        let value = option(fd, name)?;
        ensure!(value == expected, "option {name} is {value}");
    }
    set_option(fd, libc::SO_SNDBUF, 10_000)?;
    ensure!(option(fd, libc::SO_SNDBUF)? == 20_000, "not doubled");
    set_option(fd, libc::SO_SNDBUF, 1)?;
    ensure!(option(fd, libc::SO_SNDBUF)? == 4608, "below the least");
    set_option(fd, libc::SO_SNDBUF, 1 << 30)?;
    let most = std::fs::read_to_string("/proc/sys/net/core/wmem_max");
    let most = most.map_or(212_992, |text| text.trim().parse().unwrap_or(0));
    ensure!(option(fd, libc::SO_SNDBUF)? == 2 * most, "above the most");
    set_option(fd, libc::SO_REUSEADDR, 5)?;
    ensure!(option(fd, libc::SO_REUSEADDR)? == 1, "a switch");
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 7,
    };
    let at = &raw const linger;
    call!(setsockopt(
        fd,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        at.cast(),
        8
    ));
    let (mut value, mut len) = ([0; 2], 8);
    call!(getsockopt(
        fd,
        libc::SOL_SOCKET,
        libc::SO_LINGER,
        (&raw mut value).cast(),
        &mut len
    ));
    ensure!(value == [1, 7] && len == 8, "{value:?}");
    let one = 1;
    let at = (&raw const one).cast::<c_void>();
    refused!(
        EINVAL,
        setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, at, 2)
    );
    refused!(ENOPROTOOPT, setsockopt(fd, libc::SOL_SOCKET, 999, at, 4));
    refused!(
        EFAULT,
        setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, ptr::null(), 4)
    );
    Ok(())
}

fn limits() -> Outcome {
    let [a, b] = pair(libc::SOCK_STREAM)?;
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: 30_000,
    };
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let at = &raw const time;
        call!(setsockopt(
            a.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            at.cast(),
            16
        ));
    }
    let mut buffer = vec![0u8; 100_000];
    let start = Instant::now();
    refused!(
        EAGAIN,
        recv(a.as_raw_fd(), buffer.as_mut_ptr().cast(), 1, 0)
    );
    ensure!(
        start.elapsed() >= Duration::from_millis(25),
        "{:?}",
        start.elapsed()
    );
    // A send that can't go on gives what it has sent, the next fails.
    let mut last = 1;
    while last > 0 {
        // SAFETY: sends from a live buffer.
        last = unsafe { libc::send(a.as_raw_fd(), buffer.as_ptr().cast(), buffer.len(), 0) };
    }
    ensure!(errno() == libc::EAGAIN, "errno {}", errno());
    // A signal ends a wait: with a time limit always, without one if the handler wants it.
    for (socket, flags, expected) in [(&a, libc::SA_RESTART, libc::EINTR), (&b, 0, libc::EINTR)] {
        let child = spawn(|| {
            // SAFETY: all zeros is a valid action.
            let mut action: libc::sigaction = unsafe { mem::zeroed() };
            action.sa_sigaction = ignore as *const () as usize;
            action.sa_flags = flags;
            call!(sigaction(libc::SIGUSR1, &action, ptr::null_mut()));
            let long = libc::timeval {
                tv_sec: 20,
                tv_usec: 0,
            };
            if flags != 0 {
                let at = &raw const long;
                call!(setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_RCVTIMEO,
                    at.cast(),
                    16
                ));
            }
            let mut bytes = vec![0u8; 1 << 20];
            loop {
                // SAFETY: receives into a live buffer.
                let n = unsafe {
                    libc::recv(
                        socket.as_raw_fd(),
                        bytes.as_mut_ptr().cast(),
                        bytes.len(),
                        0,
                    )
                };
                if n < 0 {
                    ensure!(errno() == expected, "errno {}", errno());
                    return Ok(());
                }
            }
        })?;
        pause_ms(40);
        call!(kill(child, libc::SIGUSR1));
        let end = wait(child)?;
        ensure!(end == End::Exit(0), "{end:?}");
    }
    Ok(())
}
