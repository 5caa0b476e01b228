//! Packets of another machine: echoes, errors, groups, headers of TCP.

use super::*;

pub const TESTS: &[Test] = &[
    (
        "network: headers of TCP say what its program has chosen",
        chosen,
    ),
    ("network: echoes of another machine", echoes),
    (
        "network: errors of another machine and of its silence",
        errors,
    ),
    ("network: groups are told to the link", groups),
];

fn chosen() -> Outcome {
    let tap = Tap::ready()?;
    let frames = tap.far();
    let socket = socket_of(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)?;
    set_option(&socket, IPPROTO_IP, IP_TTL, 7)?;
    // The lowest bits are for congestion.
    set_option(&socket, IPPROTO_IP, IP_TOS, 0x2b)?;
    equal!(option(&socket, IPPROTO_IP, IP_TOS)?, 0x28);
    let far = address(FAR, 80);
    refused!(
        EINPROGRESS,
        connect(socket.as_raw_fd(), far.as_ptr().cast(), 16)
    );
    let syn = await_frame(&frames, |frame| frame[12..14] == [8, 0] && frame[23] == 6)?;
    equal!((syn[22], syn[15]), (7, 0x28));
    Ok(())
}

fn echoes() -> Outcome {
    let tap = Tap::ready()?;
    let frames = tap.far();
    let file = tap.file.clone();
    // Answers every request for an echo.
    thread::spawn(move || {
        while let Ok(sent) = frames.recv() {
            if sent.len() >= 42 && sent[12..14] == [8, 0] && sent[23] == 1 && sent[34] == 8 {
                let mut payload = sent[34..].to_vec();
                payload[0] = 0;
                payload[2..4].fill(0);
                let right = sum(&payload);
                payload[2..4].copy_from_slice(&right);
                let _ = (&*file).write(&frame(&sent[6..12], FAR, 1, &payload));
            }
        }
    });
    let old = read_text("/proc/sys/net/ipv4/ping_group_range")?;
    equal!(old.trim(), "1\t0");
    refused!(EACCES, socket(AF_INET, SOCK_DGRAM, IPPROTO_ICMP));
    fs::write("/proc/sys/net/ipv4/ping_group_range", b"0 100")?;
    let time = time_val(20_000_000);
    let name = address(FAR, 0);
    let mut buffer = [0u8; 200];
    for kind in [SOCK_DGRAM, SOCK_RAW] {
        let ping = socket_of(AF_INET, kind, IPPROTO_ICMP)?;
        let fd = ping.as_raw_fd();
        set_option(&fd, SOL_SOCKET, SO_RCVTIMEO, time)?;
        let mut request = *b"\x08\0\0\0\x12\x34\0\x01abcdefgh";
        let right = sum(&request);
        request[2..4].copy_from_slice(&right);
        let sent = call!(sendto(
            fd,
            request.as_ptr().cast(),
            16,
            0,
            name.as_ptr().cast(),
            16
        ));
        equal!(sent, 16);
        let header = if kind == SOCK_RAW { 20 } else { 0 };
        let n = call!(recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0));
        equal!(n, header + 16);
        let answer = &buffer[header as usize..n as usize];
        ensure!(answer[0] == 0 && answer[8..] == request[8..], "{answer:x?}");
        let own = answer[4..6] == request[4..6];
        // Echo sockets have an identifier of their own.
        equal!(own, kind == SOCK_RAW);
    }
    fs::write("/proc/sys/net/ipv4/ping_group_range", b"1 0")?;
    // A packet whose header the program makes.
    let raw = socket_of(AF_INET, SOCK_RAW, IPPROTO_RAW)?;
    let seen = socket_of(AF_INET, SOCK_RAW, IPPROTO_ICMP)?;
    set_option(&seen, SOL_SOCKET, SO_RCVTIMEO, time)?;
    let mut made = frame(&MAC, OWN, 1, b"\x08\0\xf7\xfd\0\x01\0\x01")[14..].to_vec();
    made[12..16].copy_from_slice(&[0; 4]);
    made[16..20].copy_from_slice(&FAR);
    let fd = raw.as_raw_fd();
    call!(sendto(
        fd,
        made.as_ptr().cast(),
        made.len(),
        0,
        name.as_ptr().cast(),
        16
    ));
    let n = call!(recv(
        seen.as_raw_fd(),
        buffer.as_mut_ptr().cast(),
        buffer.len(),
        0
    ));
    equal!((n, buffer[20]), (28, 0));
    Ok(())
}

/// Receives from the error queue: the error, origin, type, code, offender's address.
fn report(fd: c_int) -> Result<(u32, [u8; 3], Vec<u8>)> {
    let mut entry = poll_entry(fd, 0);
    call!(poll(&mut entry, 1, 20_000));
    ensure!(
        entry.revents & POLLERR != 0,
        "no error in time: {:#x}",
        entry.revents
    );
    let (mut data, mut control) = ([0u8; 64], [0u8; 128]);
    let mut part = iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: data.len(),
    };
    // SAFETY: all zeros is a valid header.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_iov = &mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len() as _;
    call!(recvmsg(fd, &mut header, MSG_ERRQUEUE));
    let error = &control[16..];
    let number = u32::from_le_bytes([error[0], error[1], error[2], error[3]]);
    Ok((
        number,
        [error[4], error[5], error[6]],
        error[20..24].to_vec(),
    ))
}

fn errors() -> Outcome {
    let tap = Tap::ready()?;
    let frames = tap.far();
    let udp = UdpSocket::bind((Ipv4Addr::from(OWN), 0))?;
    udp.connect((Ipv4Addr::from(FAR), 9))?;
    set_option(&udp, IPPROTO_IP, IP_RECVERR, 1)?;
    for (kind, code, error) in [
        (3u8, 3u8, ECONNREFUSED),
        (3, 1, EHOSTUNREACH),
        (3, 0, ENETUNREACH),
        (11, 0, EHOSTUNREACH),
    ] {
        udp.send(b"question")?;
        let sent = await_frame(&frames, |frame| frame.ends_with(b"question"))?;
        let mut payload = vec![kind, code, 0, 0, 0, 0, 0, 0];
        payload.extend(&sent[14..]);
        let right = sum(&payload);
        payload[2..4].copy_from_slice(&right);
        // A router says it.
        tap.send(&frame(&sent[6..12], [10, 9, 0, 33], 1, &payload))?;
        let (number, how, offender) = report(udp.as_raw_fd())?;
        equal!((number as c_int, how), (error, [2, kind, code]));
        equal!(offender, [10, 9, 0, 33]);
        let pending = option(&udp, SOL_SOCKET, SO_ERROR)?;
        ensure!(pending == 0 || pending == error, "{pending} is pending");
    }
    // Too large for its path: the error is of this machine.
    set_option(&udp, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)?;
    let refused = udp.send(&[0; 2000]).err().and_then(|it| it.raw_os_error());
    equal!(refused, Some(EMSGSIZE));
    // A neighbour that is not there.
    let silent = UdpSocket::bind((Ipv4Addr::from(OWN), 0))?;
    set_option(&silent, IPPROTO_IP, IP_RECVERR, 1)?;
    silent.send_to(b"anybody", (Ipv4Addr::new(10, 9, 0, 99), 9))?;
    let (number, how, _) = report(silent.as_raw_fd())?;
    equal!((number as c_int, how), (EHOSTUNREACH, [2, 3, 1]));
    Ok(())
}

fn groups() -> Outcome {
    let tap = Tap::ready()?;
    let frames = tap.far();
    let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 7777))?;
    let group = Ipv4Addr::new(239, 1, 2, 3);
    udp.join_multicast_v4(&group, &Ipv4Addr::from(OWN))?;
    let report = await_frame(&frames, |frame| frame[12..14] == [8, 0] && frame[23] == 2)?;
    ensure!(
        report[..6] == [1, 0, 0x5e, 0, 0, 22],
        "to {:x?}",
        &report[..6]
    );
    ensure!(
        report[38] == 0x22 && report[46] == 4 && report[50..54] == group.octets(),
        "{report:x?}"
    );
    ensure!(
        read_text("/proc/net/igmp")?.contains("030201EF"),
        "not listed"
    );
    // What the other machine sends to the group arrives, with the interface's number.
    set_option(&udp, IPPROTO_IP, IP_PKTINFO, 1)?;
    let mut datagram = vec![0x1e, 0x61, 0x1e, 0x61, 0, 13, 0, 0];
    datagram.extend(b"group");
    let mut sent = frame(&[1, 0, 0x5e, 1, 2, 3], FAR, 17, &datagram);
    sent[30..34].copy_from_slice(&group.octets());
    sent[24..26].fill(0);
    let right = sum(&sent[14..34]);
    sent[24..26].copy_from_slice(&right);
    tap.send(&sent)?;
    let mut buffer = [0; 16];
    udp.set_read_timeout(Some(Duration::from_secs(20)))?;
    let (n, from) = udp.recv_from(&mut buffer)?;
    equal!((&buffer[..n], from.port()), (&b"group"[..], 0x1e61));
    udp.leave_multicast_v4(&group, &Ipv4Addr::from(OWN))?;
    await_frame(&frames, |frame| {
        frame[23] == 2 && frame[38] == 0x22 && frame[46] == 3
    })?;
    // To a group, by an interface.
    let out = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    set_option(&out, IPPROTO_IP, IP_MULTICAST_IF, u32::from_ne_bytes(OWN))?;
    out.send_to(b"to all", (group, 9))?;
    let sent = await_frame(&frames, |frame| frame.ends_with(b"to all"))?;
    equal!((sent[22], &sent[26..30]), (1, &OWN[..]));
    Ok(())
}
