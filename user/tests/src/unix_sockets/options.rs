//! Options, time limits and signals.

use super::ignore;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("unix sockets: options", options),
    ("unix sockets: time limits and signals", limits),
];

fn options() -> Outcome {
    let [a, _b] = socket_pair(SOCK_SEQPACKET)?;
    let fd = a.as_raw_fd();
    for (name, expected) in [
        (SO_TYPE, SOCK_SEQPACKET),
        (SO_DOMAIN, AF_UNIX),
        (SO_PROTOCOL, 0),
        (SO_ERROR, 0),
        (SO_ACCEPTCONN, 0),
        (SO_SNDBUF, 212_992),
        (SO_RCVBUF, 212_992),
        (SO_RCVLOWAT, 1),
    ] {
        let value = option(&fd, SOL_SOCKET, name)?;
        ensure!(value == expected, "option {name} is {value}");
    }
    set_option(&fd, SOL_SOCKET, SO_SNDBUF, 10_000)?;
    ensure!(option(&fd, SOL_SOCKET, SO_SNDBUF)? == 20_000, "not doubled");
    set_option(&fd, SOL_SOCKET, SO_SNDBUF, 1)?;
    ensure!(
        option(&fd, SOL_SOCKET, SO_SNDBUF)? == 4608,
        "below the least"
    );
    set_option(&fd, SOL_SOCKET, SO_SNDBUF, 1 << 30)?;
    let most = fs::read_to_string("/proc/sys/net/core/wmem_max");
    let most = most.map_or(212_992, |text| text.trim().parse().unwrap_or(0));
    ensure!(
        option(&fd, SOL_SOCKET, SO_SNDBUF)? == 2 * most,
        "above the most"
    );
    set_option(&fd, SOL_SOCKET, SO_REUSEADDR, 5)?;
    ensure!(option(&fd, SOL_SOCKET, SO_REUSEADDR)? == 1, "a switch");
    let linger = linger {
        l_onoff: 1,
        l_linger: 7,
    };
    let at = &raw const linger;
    call!(setsockopt(fd, SOL_SOCKET, SO_LINGER, at.cast(), 8));
    let (mut value, mut len) = ([0; 2], 8);
    call!(getsockopt(
        fd,
        SOL_SOCKET,
        SO_LINGER,
        (&raw mut value).cast(),
        &mut len
    ));
    ensure!(value == [1, 7] && len == 8, "{value:?}");
    let one = 1;
    let at = (&raw const one).cast::<c_void>();
    refused!(EINVAL, setsockopt(fd, SOL_SOCKET, SO_SNDBUF, at, 2));
    refused!(ENOPROTOOPT, setsockopt(fd, SOL_SOCKET, 999, at, 4));
    refused!(EFAULT, setsockopt(fd, SOL_SOCKET, SO_SNDBUF, null(), 4));
    Ok(())
}

fn limits() -> Outcome {
    let [a, b] = socket_pair(SOCK_STREAM)?;
    let time = time_val(30_000);
    for name in [SO_RCVTIMEO, SO_SNDTIMEO] {
        let at = &raw const time;
        call!(setsockopt(a.as_raw_fd(), SOL_SOCKET, name, at.cast(), 16));
    }
    let mut buffer = vec![0u8; 100_000];
    let start = Instant::now();
    refused! { recv(a.as_raw_fd(), buffer.as_mut_ptr().cast(), 1, 0) => EAGAIN; }
    ensure!(
        start.elapsed() >= Duration::from_millis(25),
        "{:?}",
        start.elapsed()
    );
    // A send that cannot continue returns the bytes sent; the next one fails.
    let mut last = 1;
    while last > 0 {
        // SAFETY: sends from a live buffer.
        last = unsafe { libc::send(a.as_raw_fd(), buffer.as_ptr().cast(), buffer.len(), 0) };
    }
    ensure!(errno() == EAGAIN, "errno {}", errno());
    // A signal ends a wait: always with a timeout, otherwise unless SA_RESTART is set.
    for (socket, flags, expected) in [(&a, SA_RESTART, EINTR), (&b, 0, EINTR)] {
        let child = spawn(|| {
            // SAFETY: all zeros is a valid action.
            let mut action: sigaction = unsafe { zeroed() };
            action.sa_sigaction = ignore as *const () as usize;
            action.sa_flags = flags;
            call!(sigaction(SIGUSR1, &action, null_mut()));
            let long = time_val(20_000_000);
            if flags != 0 {
                let at = &raw const long;
                call!(setsockopt(
                    socket.as_raw_fd(),
                    SOL_SOCKET,
                    SO_RCVTIMEO,
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
        await_sleep(child)?;
        call!(kill(child, SIGUSR1));
        wait_ok(child)?;
    }
    Ok(())
}
