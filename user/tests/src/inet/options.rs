//! Options, the interface, `/proc/net`.

use super::*;

pub const TESTS: &[Test] = &[
    ("inet: options", options),
    ("inet: the interface and /proc/net", interface),
];

fn options() -> Outcome {
    let (client, server) = pair()?;
    for (name, value) in [
        (libc::TCP_NODELAY, 1),
        (libc::TCP_KEEPIDLE, 100),
        (libc::TCP_KEEPINTVL, 7),
        (libc::TCP_KEEPCNT, 3),
        (libc::TCP_USER_TIMEOUT, 5000),
        (libc::TCP_CORK, 1),
    ] {
        set(&client, IPPROTO_TCP, name, value)?;
        let got = get(&client, IPPROTO_TCP, name)?;
        ensure!(got == value, "option {name} is {got}");
    }
    let fd = client.as_raw_fd();
    let bad = 200;
    let at = (&raw const bad).cast();
    refused!(
        EINVAL,
        setsockopt(fd, IPPROTO_TCP, libc::TCP_KEEPCNT, at, 4)
    );
    refused!(ENOPROTOOPT, setsockopt(fd, IPPROTO_TCP, 999, at, 4));
    refused!(
        ENOPROTOOPT,
        setsockopt(fd, IPPROTO_IPV6, libc::IPV6_V6ONLY, at, 4)
    );
    refused!(
        EINVAL,
        setsockopt(fd, IPPROTO_IP, libc::IP_TTL, (&raw const bad).cast(), 0)
    );
    set(&client, IPPROTO_IP, libc::IP_TOS, 16)?;
    ensure!(get(&client, IPPROTO_IP, libc::IP_TOS)? == 16, "IP_TOS");
    let mut name = [0u8; 16];
    let mut len = 16;
    call!(getsockopt(
        fd,
        IPPROTO_TCP,
        libc::TCP_CONGESTION,
        name.as_mut_ptr().cast(),
        &mut len
    ));
    ensure!(name.starts_with(b"cubic\0"), "{name:?}");
    refused!(
        ENOENT,
        setsockopt(
            fd,
            IPPROTO_TCP,
            libc::TCP_CONGESTION,
            b"none".as_ptr().cast(),
            4
        )
    );
    let mut info = [0u8; 104];
    for (end, state) in [(&server, 1), (&client, 8)] {
        let mut len = 104;
        if state == 8 {
            io!(server.shutdown(Shutdown::Write));
        }
        call!(getsockopt(
            end.as_raw_fd(),
            IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len
        ));
        ensure!(len == 104 && info[0] == state, "state {} of {len}", info[0]);
    }
    Ok(())
}

fn interface() -> Outcome {
    let listener = io!(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let fd = listener.as_raw_fd();
    // SAFETY: all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { zeroed() };
    request.ifr_name[0] = b'l' as i8;
    request.ifr_name[1] = b'o' as i8;
    call!(ioctl(fd, libc::SIOCGIFFLAGS, &mut request));
    // SAFETY: the call has filled it.
    let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    let wanted = libc::IFF_UP | libc::IFF_LOOPBACK | libc::IFF_RUNNING;
    ensure!(flags == wanted, "flags {flags:#x}");
    request.ifr_name[0] = b'e' as i8;
    refused!(ENODEV, ioctl(fd, libc::SIOCGIFFLAGS, &mut request));
    let port = io!(listener.local_addr()).port();
    let table = io!(std::fs::read_to_string("/proc/net/tcp"));
    let line = format!("0100007F:{port:04X} 00000000:0000 0A");
    ensure!(table.contains(&line), "no {line} in {table}");
    let devices = io!(std::fs::read_to_string("/proc/net/dev"));
    ensure!(devices.contains("lo:"), "{devices}");
    Ok(())
}
