//! Datagrams, groups, and what comes with a datagram.

use super::*;

pub const TESTS: &[Test] = &[
    ("inet: datagrams", datagrams),
    ("inet: datagrams to a group", group),
    ("inet: what comes with a datagram", control),
    ("inet: what comes back for a datagram", reports),
];

fn datagrams() -> Outcome {
    let a = io!(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let b = io!(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, io!(b.local_addr()).port()));
    for text in ["one", "", "three"] {
        ensure!(io!(a.send_to(text.as_bytes(), to)) == text.len(), "sent");
    }
    let mut buffer = [0; 70_000];
    for (text, room) in [("one", 10), ("", 10), ("th", 2)] {
        let (n, from) = io!(b.recv_from(&mut buffer[..room]));
        ensure!(&buffer[..n] == text.as_bytes(), "{:?}", &buffer[..n]);
        ensure!(from == io!(a.local_addr()), "from {from}");
    }
    let big = vec![7; 65_507];
    io!(a.send_to(&big, to));
    let n = io!(b.recv(&mut buffer));
    ensure!(buffer[..n] == big[..], "{n} bytes");
    let large = a
        .send_to(&vec![0; 65_508], to)
        .map_err(|e| e.raw_os_error());
    ensure!(large == Err(Some(libc::EMSGSIZE)), "{large:?}");
    // A peer: nobody else is heard, and its absence is reported.
    io!(a.connect(to));
    let stranger = io!(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    io!(stranger.send_to(b"not for you", io!(a.local_addr())));
    io!(b.send_to(b"for you", io!(a.local_addr())));
    let n = io!(a.recv(&mut buffer));
    ensure!(&buffer[..n] == b"for you", "{:?}", &buffer[..n]);
    drop(b);
    io!(a.send(b"anybody?"));
    ensure!(poll(&a, POLLIN)? & POLLERR != 0, "no error");
    let refused = a.recv(&mut buffer).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::ConnectionRefused), "{refused:?}");
    // A small buffer drops what is too much.
    let small = io!(UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)));
    set(&small, SOL_SOCKET, SO_RCVBUF, 4096)?;
    let from = io!(UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)));
    for _ in 0..50 {
        io!(from.send_to(&[1; 1000], io!(small.local_addr())));
    }
    io!(small.set_nonblocking(true));
    let kept = std::iter::from_fn(|| small.recv(&mut buffer).ok()).count();
    ensure!((1..20).contains(&kept), "{kept} datagrams were kept");
    Ok(())
}

fn group() -> Outcome {
    let group = Ipv4Addr::new(239, 1, 2, 3);
    let socket = io!(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let to = (group, io!(socket.local_addr()).port());
    let sender = io!(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    let unreachable = sender.send_to(b"x", to).map_err(|e| e.raw_os_error());
    ensure!(
        unreachable == Err(Some(libc::ENETUNREACH)),
        "{unreachable:?}"
    );
    let lo = u32::from_ne_bytes([127, 0, 0, 1]);
    set(&sender, IPPROTO_IP, libc::IP_MULTICAST_IF, lo as c_int)?;
    io!(sender.send_to(b"nobody is in it", to));
    io!(socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST));
    let again = socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST);
    ensure!(again.is_err(), "joined twice");
    io!(sender.send_to(b"to the group", to));
    io!(socket.set_nonblocking(true));
    let mut buffer = [0; 64];
    let n = io!(socket.recv(&mut buffer));
    ensure!(&buffer[..n] == b"to the group", "{:?}", &buffer[..n]);
    io!(socket.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST));
    io!(sender.send_to(b"too late", to));
    ensure!(socket.recv(&mut buffer).is_err(), "heard after leaving");
    Ok(())
}

fn control() -> Outcome {
    let socket = io!(UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
    let port = io!(socket.local_addr()).port();
    set(&socket, IPPROTO_IP, libc::IP_PKTINFO, 1)?;
    set(&socket, IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    let sender = io!(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)));
    io!(sender.set_ttl(33));
    io!(sender.send_to(b"hello", (Ipv4Addr::new(127, 0, 0, 8), port)));
    let mut data = [0u8; 16];
    let mut room = [0u64; 16];
    let mut buffer = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: 3,
    };
    // SAFETY: all zeros is a valid header.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &mut buffer;
    header.msg_iovlen = 1;
    header.msg_control = room.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&room);
    let n = call!(recvmsg(socket.as_raw_fd(), &mut header, 0));
    ensure!(
        n == 3 && header.msg_flags == MSG_TRUNC,
        "{n} bytes, {:#x}",
        header.msg_flags
    );
    let (mut info, mut ttl) = (None, None);
    // SAFETY: the kernel has filled the header, and the messages are read with the macros made for it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&header);
        while let Some(message) = at.as_ref() {
            let data = libc::CMSG_DATA(at);
            match message.cmsg_type {
                libc::IP_PKTINFO => info = Some(data.cast::<libc::in_pktinfo>().read_unaligned()),
                libc::IP_TTL => ttl = Some(data.cast::<c_int>().read_unaligned()),
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

/// `IP_RECVERR`: the datagram that found nobody comes back with the reason.
fn reports() -> Outcome {
    for (family, level, name, origin) in [
        (
            Ipv4Addr::LOCALHOST.into(),
            IPPROTO_IP,
            libc::IP_RECVERR,
            [2, 3, 3],
        ),
        (
            IpAddr::from(Ipv6Addr::LOCALHOST),
            IPPROTO_IPV6,
            libc::IPV6_RECVERR,
            [3, 1, 4],
        ),
    ] {
        let nobody = io!(io!(UdpSocket::bind((family, 0))).local_addr());
        let socket = io!(UdpSocket::bind((family, 0)));
        let fd = socket.as_raw_fd();
        io!(socket.send_to(b"unheard", nobody));
        ensure!(
            poll(&socket, POLLIN)? == 0,
            "an error that nobody asked for"
        );
        set(&socket, level, name, 1)?;
        io!(socket.send_to(b"first", nobody));
        let second = socket
            .send_to(b"second", nobody)
            .map_err(|e| e.raw_os_error());
        ensure!(second == Err(Some(libc::ECONNREFUSED)), "{second:?}");
        ensure!(poll(&socket, POLLIN)? & POLLERR != 0, "no error");
        let mut data = [0u8; 16];
        let mut room = [0u64; 16];
        let mut buffer = libc::iovec {
            iov_base: data.as_mut_ptr().cast(),
            iov_len: data.len(),
        };
        // SAFETY: all zeros is a valid address and a valid header.
        let (mut to, mut header): (libc::sockaddr_in6, libc::msghdr) = unsafe { zeroed() };
        header.msg_name = (&raw mut to).cast();
        header.msg_namelen = size_of_val(&to) as u32;
        header.msg_iov = &mut buffer;
        header.msg_iovlen = 1;
        header.msg_control = room.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&room);
        let n = call!(recvmsg(fd, &mut header, libc::MSG_ERRQUEUE));
        ensure!(&data[..n as usize] == b"first", "{:?}", &data[..n as usize]);
        let flags = header.msg_flags;
        ensure!(flags == libc::MSG_ERRQUEUE, "flags {flags:#x}");
        ensure!(
            u16::from_be(to.sin6_port) == nobody.port(),
            "another address"
        );
        // SAFETY: the kernel has filled the header; the message behind it has the structure that its type says.
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
        ensure!(
            error.ee_errno == libc::ECONNREFUSED as u32,
            "errno {}",
            error.ee_errno
        );
        let from = [error.ee_origin, error.ee_type, error.ee_code];
        ensure!(from == origin, "from {from:?}");
        ensure!(poll(&socket, POLLIN)? & POLLERR == 0, "an error is left");
        refused!(EAGAIN, recvmsg(fd, &mut header, libc::MSG_ERRQUEUE));
    }
    Ok(())
}
