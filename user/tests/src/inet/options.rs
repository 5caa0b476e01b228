//! Options, the interface, `/proc/net`.

use super::*;

pub const TESTS: &[Test] = &[
    ("inet: options", options),
    ("inet: the interface and /proc/net", interface),
];

fn options() -> Outcome {
    let (client, server) = pair()?;
    for (name, value) in [
        (TCP_NODELAY, 1),
        (TCP_KEEPIDLE, 100),
        (TCP_KEEPINTVL, 7),
        (TCP_KEEPCNT, 3),
        (TCP_USER_TIMEOUT, 5000),
        (TCP_CORK, 1),
    ] {
        set_option(&client, IPPROTO_TCP, name, value)?;
        let got = option(&client, IPPROTO_TCP, name)?;
        ensure!(got == value, "option {name} is {got}");
    }
    let fd = client.as_raw_fd();
    let bad = 200;
    let at = (&raw const bad).cast();
    refused! {
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, at, 4) => EINVAL;
        setsockopt(fd, IPPROTO_TCP, 999, at, 4) => ENOPROTOOPT;
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, at, 4) => ENOPROTOOPT;
        setsockopt(fd, IPPROTO_IP, IP_TTL, (&raw const bad).cast(), 0) => EINVAL;
    }
    set_option(&client, IPPROTO_IP, IP_TOS, 16)?;
    ensure!(option(&client, IPPROTO_IP, IP_TOS)? == 16, "IP_TOS");
    let mut name = [0u8; 16];
    let mut len = 16;
    call!(getsockopt(
        fd,
        IPPROTO_TCP,
        TCP_CONGESTION,
        name.as_mut_ptr().cast(),
        &mut len
    ));
    ensure!(name.starts_with(b"cubic\0"), "{name:?}");
    refused! { setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, b"none".as_ptr().cast(), 4) => ENOENT; }
    let mut info = [0u8; 104];
    for (end, state) in [(&server, 1), (&client, 8)] {
        let mut len = 104;
        if state == 8 {
            server.shutdown(Shutdown::Write)?;
        }
        call!(getsockopt(
            end.as_raw_fd(),
            IPPROTO_TCP,
            TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len
        ));
        ensure!(len == 104 && info[0] == state, "state {} of {len}", info[0]);
    }
    Ok(())
}

fn interface() -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let fd = listener.as_raw_fd();
    // SAFETY: all zeros is a valid request.
    let mut request: ifreq = unsafe { zeroed() };
    request.ifr_name[0] = b'l' as i8;
    request.ifr_name[1] = b'o' as i8;
    call!(ioctl(fd, SIOCGIFFLAGS, &mut request));
    // SAFETY: the call has filled it.
    let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    let wanted = IFF_UP | IFF_LOOPBACK | IFF_RUNNING;
    ensure!(flags == wanted, "flags {flags:#x}");
    request.ifr_name[0] = b'e' as i8;
    refused!(ENODEV, ioctl(fd, SIOCGIFFLAGS, &mut request));
    let port = listener.local_addr()?.port();
    let table = fs::read_to_string("/proc/net/tcp")?;
    let line = format!("0100007F:{port:04X} 00000000:0000 0A");
    ensure!(table.contains(&line), "no {line} in {table}");
    let devices = fs::read_to_string("/proc/net/dev")?;
    ensure!(devices.contains("lo:"), "{devices}");
    Ok(())
}
