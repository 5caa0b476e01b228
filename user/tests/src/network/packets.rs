//! Packet sockets: filters, counts, rings.

use super::*;

pub const TESTS: &[Test] = &[
    ("network: packet sockets, filters, counts", packets),
    ("network: rings of packets", rings),
    ("network: blocks of a ring, and their time", timed_blocks),
];

pub(super) fn packet_socket(kind: c_int, protocol: u16, index: u32) -> Result<OwnedFd> {
    let socket = socket_of(AF_PACKET, kind, c_int::from(protocol.to_be()))?;
    // SAFETY: all zeros is a valid address.
    let mut name: sockaddr_ll = unsafe { zeroed() };
    name.sll_family = AF_PACKET as u16;
    name.sll_protocol = protocol.to_be();
    name.sll_ifindex = index as i32;
    let len = size_of::<sockaddr_ll>() as u32;
    call!(bind(socket.as_raw_fd(), (&raw const name).cast(), len));
    set_option(&socket, SOL_SOCKET, SO_RCVTIMEO, time_val(20_000_000))?;
    Ok(socket)
}

/// The filter "a frame of IPv4 with UDP", which wants `len` bytes.
fn udp_filter(len: u32) -> [sock_filter; 6] {
    let op = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    [
        op(0x28, 0, 0, 12),
        op(0x15, 0, 3, 0x800),
        op(0x30, 0, 0, 23),
        op(0x15, 0, 1, 17),
        op(6, 0, 0, len),
        op(6, 0, 0, 0),
    ]
}

fn packets() -> Outcome {
    let tap = Tap::ready()?;
    let frames = tap.far();
    let all = packet_socket(SOCK_RAW, 3, tap.index)?;
    let fd = all.as_raw_fd();
    let filter = udp_filter(44);
    let program = sock_fprog {
        len: 6,
        filter: filter.as_ptr().cast_mut(),
    };
    set_option(&fd, SOL_SOCKET, SO_ATTACH_FILTER, program)?;
    let udp = UdpSocket::bind((Ipv4Addr::from(OWN), 0))?;
    udp.send_to(b"question", (Ipv4Addr::from(FAR), 9))?;
    let sent = await_frame(&frames, |frame| frame.ends_with(b"question"))?;
    let mut buffer = [0u8; 100];
    let n = call!(recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0));
    equal!(n, 44);
    // No question for a neighbour is among them: the filter let UDP pass only.
    ensure!(buffer[..44] == sent[..44], "{:x?}", &buffer[..44]);
    // Without the header, from another machine.
    let cooked = packet_socket(SOCK_DGRAM, 0x88b5, tap.index)?;
    let mut own = sent[6..12].to_vec();
    own.extend(MAC);
    own.extend([0x88, 0xb5]);
    own.extend(b"experiment");
    tap.send(&own)?;
    let mut from = [0u8; 20];
    let mut len = 20;
    let n = call!(recvfrom(
        cooked.as_raw_fd(),
        buffer.as_mut_ptr().cast(),
        100,
        0,
        from.as_mut_ptr().cast(),
        &mut len
    ));
    ensure!(&buffer[..n as usize] == b"experiment", "{n} bytes");
    ensure!(from[10] == 0 && from[12..18] == MAC, "from {from:?}");
    // Sent with a header, and without.
    own[..6].copy_from_slice(&MAC);
    call!(send(fd, own.as_ptr().cast(), own.len(), 0));
    await_frame(&frames, |frame| frame == own)?;
    from[12..18].copy_from_slice(&MAC);
    let name = from.as_ptr().cast();
    call!(sendto(
        cooked.as_raw_fd(),
        b"cooked".as_ptr().cast(),
        6,
        0,
        name,
        20
    ));
    await_frame(&frames, |frame| {
        frame[12..14] == [0x88, 0xb5] && frame.ends_with(b"cooked")
    })?;
    for wanted in [[1u32, 0], [0, 0]] {
        let (mut counts, mut len) = ([9u32; 2], 8);
        call!(getsockopt(fd, 263, 6, counts.as_mut_ptr().cast(), &mut len));
        equal!(counts, wanted);
    }
    // Filters that can't be.
    for wrong in [&filter[..1], &[][..]] {
        let program = sock_fprog {
            len: wrong.len() as u16,
            filter: filter.as_ptr().cast_mut(),
        };
        let at = (&raw const program).cast();
        refused!(EINVAL, setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, at, 16));
    }
    Ok(())
}

/// A ring of version 3 with blocks of 8 KiB that are closed after a number of milliseconds.
fn block_ring(tap: &Tap, blocks: u32, time: u32) -> Result<(OwnedFd, *mut c_void)> {
    let socket = packet_socket(SOCK_RAW, 3, tap.index)?;
    let fd = socket.as_raw_fd();
    set_option(&fd, 263, 10, 2)?;
    let filter = udp_filter(65_535);
    let program = sock_fprog {
        len: 6,
        filter: filter.as_ptr().cast_mut(),
    };
    set_option(&fd, SOL_SOCKET, SO_ATTACH_FILTER, program)?;
    let shape = [8192, blocks, 2048, blocks * 4, time, 0, 0];
    set_option(&fd, 263, 5, shape)?;
    // SAFETY: a mapping of the ring, which the caller removes.
    let ring = unsafe {
        mmap(
            null_mut(),
            8192 * blocks as usize,
            READ_WRITE,
            MAP_SHARED,
            fd,
            0,
        )
    };
    ensure!(ring != MAP_FAILED, "no mapping: {}", errno());
    Ok((socket, ring))
}

/// A block that has room is the program's when its time is over, whether the program polls or not,
/// and has all packets that came until then; one that is full, at once.
fn timed_blocks() -> Outcome {
    const TIMED_OUT: u32 = 0x20;
    let tap = Tap::ready()?;
    let _frames = tap.far();
    let udp = UdpSocket::bind((Ipv4Addr::from(OWN), 0))?;
    let to = (Ipv4Addr::from(FAR), 9);
    let (socket, ring) = block_ring(&tap, 4, 1500)?;
    let word = |at: usize| {
        // SAFETY: inside the mapping, and aligned.
        unsafe { ring.byte_add(at).cast::<u32>().read_volatile() }
    };
    let fd = socket.as_raw_fd();
    let is_readable = |patience: c_int| -> Result<bool> {
        let mut entry = poll_entry(fd, POLLIN);
        call!(poll(&mut entry, 1, patience));
        Ok(entry.revents & POLLIN != 0)
    };
    let begin = Instant::now();
    for _ in 0..3 {
        udp.send_to(b"packet", to)?;
        // Slow machines may be at the end of the block's time.
        let is_early = !is_readable(0)?;
        ensure!(
            is_early || begin.elapsed() >= Duration::from_millis(1400),
            "readable too soon"
        );
    }
    ensure!(is_readable(20_000)?, "the block is not closed");
    ensure!(
        begin.elapsed() >= Duration::from_millis(1400),
        "{:?}",
        begin.elapsed()
    );
    equal!(word(8), 1 | TIMED_OUT);
    equal!(word(12), 3, "packets in the block");
    // Without a poll.
    udp.send_to(b"packet", to)?;
    let begin = Instant::now();
    while word(8192 + 8) == 0 {
        ensure!(
            begin.elapsed() < Duration::from_secs(20),
            "nothing closes the block"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    equal!(word(8192 + 8), 1 | TIMED_OUT);
    equal!(word(8192 + 12), 1, "packets in the block");
    // SAFETY: the mapping of the ring, whose pointers are not used any more.
    unsafe { munmap(ring, 4 * 8192) };
    // A block that is full: not by its time.
    let (socket, ring) = block_ring(&tap, 2, 100_000)?;
    let mut entry = poll_entry(socket.as_raw_fd(), POLLIN);
    for _ in 0..8 {
        udp.send_to(&[7; 1300], to)?;
    }
    call!(poll(&mut entry, 1, 20_000));
    ensure!(entry.revents & POLLIN != 0, "the full block is not closed");
    // SAFETY: inside the mapping, and aligned.
    let status = unsafe { ring.byte_add(8).cast::<u32>().read_volatile() };
    equal!(status, 1);
    // SAFETY: as above.
    unsafe { munmap(ring, 2 * 8192) };
    Ok(())
}

fn rings() -> Outcome {
    let tap = Tap::ready()?;
    let frames = tap.far();
    let udp = UdpSocket::bind((Ipv4Addr::from(OWN), 0))?;
    for version in [1, 2] {
        let socket = packet_socket(SOCK_RAW, 3, tap.index)?;
        let fd = socket.as_raw_fd();
        set_option(&fd, 263, 10, version)?;
        let filter = udp_filter(65_535);
        let program = sock_fprog {
            len: 6,
            filter: filter.as_ptr().cast_mut(),
        };
        set_option(&fd, SOL_SOCKET, SO_ATTACH_FILTER, program)?;
        // Blocks, slots; for version 3 also a time, and what is the program's.
        let shape: [u32; 7] = [8192, 2, 2048, 8, 10, 0, 0];
        if version == 1 {
            let shape: [u32; 4] = [shape[0], shape[1], shape[2], shape[3]];
            set_option(&fd, 263, 5, shape)?;
        } else {
            set_option(&fd, 263, 5, shape)?;
        }
        let len = 2 * 8192;
        // SAFETY: a mapping of the ring, which is unmapped at the end.
        let ring = unsafe { mmap(null_mut(), len, READ_WRITE, MAP_SHARED, fd, 0) };
        ensure!(ring != MAP_FAILED, "no mapping: {}", errno());
        let word = |at: usize| {
            // SAFETY: inside the mapping, and aligned.
            unsafe { ring.byte_add(at).cast::<u32>().read_volatile() }
        };
        let mut at = 0;
        for turn in 0..20u32 {
            udp.send_to(&turn.to_le_bytes(), (Ipv4Addr::from(FAR), 9))?;
            await_frame(&frames, |frame| frame.ends_with(&turn.to_le_bytes()))?;
            let mut entry = poll_entry(fd, POLLIN);
            call!(poll(&mut entry, 1, 20_000));
            ensure!(entry.revents & POLLIN != 0, "nothing in turn {turn}");
            let (status, packet) = match version {
                1 => (at, at),
                _ => (at + 8, at + word(at + 16) as usize),
            };
            ensure!(
                word(status) & 1 == 1,
                "turn {turn}: status {:#x}",
                word(status)
            );
            let (size, mac) = match version {
                1 => (word(packet + 8), word(packet + 12) & 0xffff),
                _ => (word(packet + 12), word(packet + 24) & 0xffff),
            };
            equal!(size, 14 + 20 + 8 + 4);
            // SAFETY: the packet's last bytes are inside the mapping.
            let last = unsafe {
                let end = packet + mac as usize + size as usize - 4;
                ring.byte_add(end).cast::<[u8; 4]>().read_unaligned()
            };
            equal!(last, turn.to_le_bytes());
            if version == 2 {
                equal!(word(at + 12), 1, "packets in a block");
            }
            // SAFETY: as above.
            unsafe { ring.byte_add(status).cast::<u32>().write_volatile(0) };
            at = match version {
                1 => (at + 2048) % len,
                _ => (at + 8192) % len,
            };
        }
        // SAFETY: the mapping made above, whose pointers are not used any more.
        unsafe { munmap(ring, len) };
    }
    // A ring of a mapped socket stays.
    let socket = packet_socket(SOCK_RAW, 3, tap.index)?;
    set_option(&socket, 263, 10, 1)?;
    set_option(&socket, 263, 5, [4096u32, 2, 2048, 4])?;
    let none = [0u32; 4];
    let at = (&raw const none).cast();
    refused!(EBUSY, setsockopt(socket.as_raw_fd(), 263, 5, at, 16));
    // Rings that can't be.
    let socket = packet_socket(SOCK_RAW, 3, tap.index)?;
    let fd = socket.as_raw_fd();
    set_option(&fd, 263, 10, 1)?;
    for wrong in [
        [4096u32, 2, 2048, 8],
        [100, 2, 100, 2],
        [4096, u32::MAX, 2048, u32::MAX],
        [8192, 2, 48, 340],
        [1 << 31, 1 << 10, 2048, 1 << 30],
    ] {
        let at = (&raw const wrong).cast();
        refused!(EINVAL, setsockopt(fd, 263, 5, at, 16));
    }
    // Blocks of version 3 whose private part, rounded up, leaves no room for a packet.
    let udp = UdpSocket::bind((Ipv4Addr::from(OWN), 0))?;
    for (reserve, private) in [(1, 3950), (1, 3951), (0, 3953), (0, u32::MAX)] {
        let socket = packet_socket(SOCK_DGRAM, 3, tap.index)?;
        let fd = socket.as_raw_fd();
        set_option(&fd, 263, 10, 2)?;
        set_option(&fd, 263, 12, reserve)?;
        let shape: [u32; 7] = [4096, 1, 2048, 2, 10, private, 0];
        let at = (&raw const shape).cast();
        // SAFETY: the shape is as long as that.
        let made = unsafe { setsockopt(fd, 263, 5, at, 28) };
        udp.send_to(b"packet", (Ipv4Addr::from(FAR), 9))?;
        ensure!(made == -1, "{reserve} {private}");
    }
    Ok(())
}
