//! Raw sockets and the machine's own answers to echo requests.

use super::*;

pub const TESTS: &[Test] = &[
    ("inet: an echo over a raw socket", echo),
    ("inet: an echo over IPv6, and the filter", echo_v6),
    ("inet: packets of a protocol of one's own", own_protocol),
];

/// A raw socket of a protocol, which gives up after a second.
fn socket(family: c_int, protocol: c_int) -> Result<UdpSocket> {
    let fd = call!(socket(family, SOCK_RAW, protocol));
    // SAFETY: the descriptor is new, and nothing else owns it. The type's calls suit raw sockets,
    // too.
    let socket = unsafe { UdpSocket::from_raw_fd(fd) };
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    Ok(socket)
}

fn sum(bytes: &[u8]) -> u16 {
    let mut total = 0u64;
    for pair in bytes.chunks(2) {
        total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    !(total as u16)
}

fn echo() -> Outcome {
    let raw = socket(AF_INET, IPPROTO_ICMP)?;
    for len in [8, 9, 64, 4000, 30_001] {
        let mut request: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        request[..4].copy_from_slice(&[8, 0, 0, 0]);
        let of_request = sum(&request);
        request[2..4].copy_from_slice(&of_request.to_be_bytes());
        raw.send_to(&request, (Ipv4Addr::new(127, 0, 0, 9), 0))?;
        let mut packet = vec![0; len + 100];
        for (kind, from, to) in [(8, 1, 9), (0, 9, 1)] {
            let (n, sender) = raw.recv_from(&mut packet)?;
            ensure!(n == len + 20, "{n} bytes");
            ensure!(packet[0] == 0x45 && packet[9] == 1, "no header of ICMP");
            ensure!((packet[15], packet[19]) == (from, to), "other addresses");
            equal!(sender.ip(), Ipv4Addr::new(127, 0, 0, from), sender);
            ensure!(sum(&packet[..20]) == 0, "the header's sum");
            ensure!(packet[20] == kind && sum(&packet[20..n]) == 0, packet[20]);
            ensure!(packet[24..n] == request[4..], "other bytes came back");
        }
        // A request with a wrong checksum is not answered.
        request[2] ^= 1;
        raw.send_to(&request, (Ipv4Addr::LOCALHOST, 0))?;
        raw.recv(&mut packet)?;
        let fd = raw.as_raw_fd();
        refused! { recv(fd, packet.as_mut_ptr().cast(), 1, MSG_DONTWAIT) => EAGAIN; }
    }
    Ok(())
}

fn echo_v6() -> Outcome {
    let raw = socket(AF_INET6, IPPROTO_ICMPV6)?;
    let fd = raw.as_raw_fd();
    // Only echoes, no requests.
    let mut filter = [u32::MAX; 8];
    filter[129 / 32] &= !(1 << (129 % 32));
    let len = size_of_val(&filter) as u32;
    call!(setsockopt(
        fd,
        IPPROTO_ICMPV6,
        1,
        filter.as_ptr().cast(),
        len
    ));
    raw.send_to(&[128, 0, 0, 0, 1, 2, 3, 4, 5], (Ipv6Addr::LOCALHOST, 0))?;
    let mut packet = [0; 64];
    let (n, from) = raw.recv_from(&mut packet)?;
    ensure!(n == 9 && packet[0] == 129, n, packet[0]);
    ensure!(packet[4..9] == [1, 2, 3, 4, 5], "{:?}", &packet[4..9]);
    ensure!(from.ip() == Ipv6Addr::LOCALHOST, "from {from}");
    refused! { recv(fd, packet.as_mut_ptr().cast(), 1, MSG_DONTWAIT) => EAGAIN; }
    Ok(())
}

fn own_protocol() -> Outcome {
    let (a, b, other) = (
        socket(AF_INET, 200)?,
        socket(AF_INET, 200)?,
        socket(AF_INET, 201)?,
    );
    let far = socket(AF_INET, 200)?;
    let second_loopback = v4([127, 0, 0, 2], 0);
    call!(bind(
        far.as_raw_fd(),
        (&raw const second_loopback).cast(),
        size_of::<sockaddr_in>() as u32
    ));
    a.send_to(b"own", (Ipv4Addr::LOCALHOST, 0))?;
    let mut packet = [0; 64];
    for socket in [&a, &b] {
        let n = socket.recv(&mut packet)?;
        ensure!(&packet[20..n] == b"own", "{:?}", &packet[20..n]);
    }
    for socket in [&other, &far] {
        let fd = socket.as_raw_fd();
        refused! { recv(fd, packet.as_mut_ptr().cast(), 1, MSG_DONTWAIT) => EAGAIN; }
    }
    refused!(EPROTONOSUPPORT, socket(AF_INET, SOCK_RAW, 0));
    // Raw sockets need a capability.
    let child = call!(fork());
    if child == 0 {
        // SAFETY: plain system calls in a child that ends right after.
        unsafe {
            libc::setuid(1000);
            let made = libc::socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
            libc::_exit(c_int::from(made != -1 || errno() != EPERM));
        }
    }
    let mut status = 0;
    call!(waitpid(child, &mut status, 0));
    ensure!(status == 0, "a user got a raw socket");
    Ok(())
}
