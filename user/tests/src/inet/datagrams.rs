//! Datagrams, groups, ancillary data.

use super::*;

pub const TESTS: &[Test] = &[
    ("inet: datagrams", datagrams),
    ("inet: datagrams to a group", group),
    ("inet: what comes with a datagram", control),
    ("inet: what comes back for a datagram", reports),
];

fn datagrams() -> Outcome {
    let a = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let b = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, b.local_addr()?.port()));
    for text in ["one", "", "three"] {
        ensure!(a.send_to(text.as_bytes(), to)? == text.len(), "sent");
    }
    let mut buffer = [0; 70_000];
    for (text, room) in [("one", 10), ("", 10), ("th", 2)] {
        let (n, from) = b.recv_from(&mut buffer[..room])?;
        ensure!(&buffer[..n] == text.as_bytes(), "{:?}", &buffer[..n]);
        ensure!(from == a.local_addr()?, "from {from}");
    }
    let big = vec![7; 65_507];
    a.send_to(&big, to)?;
    let n = b.recv(&mut buffer)?;
    ensure!(buffer[..n] == big[..], "{n} bytes");
    let large = a
        .send_to(&vec![0; 65_508], to)
        .map_err(|e| e.raw_os_error());
    ensure!(large == Err(Some(EMSGSIZE)), "{large:?}");
    // Connected: other senders are ignored, and an absent peer is reported.
    a.connect(to)?;
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    stranger.send_to(b"not for you", a.local_addr()?)?;
    b.send_to(b"for you", a.local_addr()?)?;
    let n = a.recv(&mut buffer)?;
    ensure!(&buffer[..n] == b"for you", "{:?}", &buffer[..n]);
    drop(b);
    a.send(b"anybody?")?;
    ensure!(poll_for(&a, POLLIN, 0)? & POLLERR != 0, "no error");
    let refused = a.recv(&mut buffer).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::ConnectionRefused), "{refused:?}");
    // A small buffer truncates.
    let small = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?;
    set_option(&small, SOL_SOCKET, SO_RCVBUF, 4096)?;
    let from = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?;
    for _ in 0..50 {
        from.send_to(&[1; 1000], small.local_addr()?)?;
    }
    small.set_nonblocking(true)?;
    let kept = std::iter::from_fn(|| small.recv(&mut buffer).ok()).count();
    ensure!((1..20).contains(&kept), "{kept} datagrams were kept");
    Ok(())
}

fn group() -> Outcome {
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let to = (group, socket.local_addr()?.port());
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let unreachable = sender.send_to(b"x", to).map_err(|e| e.raw_os_error());
    equal!(unreachable, Err(Some(ENETUNREACH)));
    let lo = u32::from_ne_bytes([127, 0, 0, 1]);
    set_option(&sender, IPPROTO_IP, IP_MULTICAST_IF, lo as c_int)?;
    sender.send_to(b"nobody is in it", to)?;
    socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST)?;
    let again = socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST);
    ensure!(again.is_err(), "joined twice");
    sender.send_to(b"to the group", to)?;
    socket.set_nonblocking(true)?;
    let mut buffer = [0; 64];
    let n = socket.recv(&mut buffer)?;
    ensure!(&buffer[..n] == b"to the group", "{:?}", &buffer[..n]);
    socket.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST)?;
    sender.send_to(b"too late", to)?;
    ensure!(socket.recv(&mut buffer).is_err(), "heard after leaving");
    Ok(())
}

fn control() -> Outcome {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let port = socket.local_addr()?.port();
    set_option(&socket, IPPROTO_IP, IP_PKTINFO, 1)?;
    set_option(&socket, IPPROTO_IP, IP_RECVTTL, 1)?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    sender.set_ttl(33)?;
    sender.send_to(b"hello", (Ipv4Addr::new(127, 0, 0, 8), port))?;
    let mut data = [0u8; 16];
    let mut room = [0u64; 16];
    let mut buffer = vector(data.as_mut_ptr(), 3);
    // SAFETY: all zeros is a valid header.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_iov = &mut buffer;
    header.msg_iovlen = 1;
    header.msg_control = room.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&room);
    let n = call!(recvmsg(socket.as_raw_fd(), &mut header, 0));
    ensure!(n == 3 && header.msg_flags == MSG_TRUNC, n, header.msg_flags);
    let (mut info, mut ttl) = (None, None);
    // SAFETY: the kernel has filled the header, and the messages are read with the macros made for
    // it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&header);
        while let Some(message) = at.as_ref() {
            let data = libc::CMSG_DATA(at);
            match message.cmsg_type {
                IP_PKTINFO => info = Some(data.cast::<libc::in_pktinfo>().read_unaligned()),
                IP_TTL => ttl = Some(data.cast::<c_int>().read_unaligned()),
                _ => {}
            }
            at = libc::CMSG_NXTHDR(&header, at);
        }
    }
    let info = info.ok_or("no IP_PKTINFO")?;
    ensure!(info.ipi_ifindex == 1, "interface {}", info.ipi_ifindex);
    let to = info.ipi_addr.s_addr.to_ne_bytes();
    ensure!(to == [127, 0, 0, 8], "sent to {to:?}");
    ensure!(ttl == Some(33), "{ttl:?}");
    Ok(())
}

/// `IP_RECVERR`: an undeliverable datagram comes back with the reason.
fn reports() -> Outcome {
    for (family, level, name, origin) in [
        (
            Ipv4Addr::LOCALHOST.into(),
            IPPROTO_IP,
            IP_RECVERR,
            [2, 3, 3],
        ),
        (
            IpAddr::from(Ipv6Addr::LOCALHOST),
            IPPROTO_IPV6,
            IPV6_RECVERR,
            [3, 1, 4],
        ),
    ] {
        let nobody = UdpSocket::bind((family, 0))?.local_addr()?;
        let socket = UdpSocket::bind((family, 0))?;
        let fd = socket.as_raw_fd();
        socket.send_to(b"unheard", nobody)?;
        equal!(poll_for(&socket, POLLIN, 0)?, 0);
        set_option(&socket, level, name, 1)?;
        socket.send_to(b"first", nobody)?;
        let second = socket
            .send_to(b"second", nobody)
            .map_err(|e| e.raw_os_error());
        ensure!(second == Err(Some(ECONNREFUSED)), "{second:?}");
        ensure!(poll_for(&socket, POLLIN, 0)? & POLLERR != 0, "no error");
        let mut data = [0u8; 16];
        let mut room = [0u64; 16];
        let mut buffer = vector(data.as_mut_ptr(), data.len());
        // SAFETY: all zeros is a valid address and a valid header.
        let (mut to, mut header): (sockaddr_in6, msghdr) = unsafe { zeroed() };
        header.msg_name = (&raw mut to).cast();
        header.msg_namelen = size_of_val(&to) as u32;
        header.msg_iov = &mut buffer;
        header.msg_iovlen = 1;
        header.msg_control = room.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&room);
        let n = call!(recvmsg(fd, &mut header, MSG_ERRQUEUE));
        ensure!(&data[..n as usize] == b"first", "{:?}", &data[..n as usize]);
        let flags = header.msg_flags;
        ensure!(flags == MSG_ERRQUEUE, "flags {flags:#x}");
        equal!(u16::from_be(to.sin6_port), nobody.port());
        // SAFETY: the kernel has filled the header; the message behind it has the structure that
        // its type says.
        let (message, error) = unsafe {
            let at = libc::CMSG_FIRSTHDR(&header);
            let message = at.as_ref().ok_or("no control message")?;
            let error = libc::CMSG_DATA(at).cast::<libc::sock_extended_err>();
            (message, error.read_unaligned())
        };
        ensure!(
            (message.cmsg_level, message.cmsg_type) == (level, name),
            "message {} of {}",
            message.cmsg_type,
            message.cmsg_level
        );
        equal!(error.ee_errno, ECONNREFUSED as u32);
        let from = [error.ee_origin, error.ee_type, error.ee_code];
        ensure!(from == origin, "from {from:?}");
        ensure!(
            poll_for(&socket, POLLIN, 0)? & POLLERR == 0,
            "an error is left"
        );
        refused!(EAGAIN, recvmsg(fd, &mut header, MSG_ERRQUEUE));
    }
    Ok(())
}
