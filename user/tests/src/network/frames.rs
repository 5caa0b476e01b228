//! Packets in fbufs of the kernel.

use super::packets::packet_socket;
use super::*;
use libfbuf::{Backend, Contents, Domain, Frames, Mode, Received};
use std::io;
use std::os::fd::AsFd;

pub const TESTS: &[Test] = &[
    ("network: packets in fbufs of the kernel", || {
        child(received)
    }),
    ("network: fbufs of the kernel for two processes", || {
        child(shared)
    }),
    ("network: fbufs of the kernel that are refused", || {
        child(refusals)
    }),
    (
        "network: fbufs of the kernel by the interface for C",
        || child(interface_for_c),
    ),
];

/// Pages of a chunk, and so the most packets.
const PAGES: usize = libfbuf::CHUNK / PAGE;

fn packet(number: usize, len: usize) -> Vec<u8> {
    let mut bytes = OWN_MAC_FOR_ALL.to_vec();
    bytes.extend(MAC);
    bytes.extend([0x88, 0xb5]);
    bytes.extend((number as u32).to_le_bytes());
    bytes.resize(len, number as u8);
    bytes
}

/// Every machine's address.
const OWN_MAC_FOR_ALL: [u8; 6] = [0xff; 6];

/// Takes packets until there are so many.
fn take(frames: &mut Frames, socket: &OwnedFd, count: usize) -> Result<Vec<Received>> {
    let mut all = Vec::new();
    while all.len() < count {
        let mut entry = poll_entry(socket.as_raw_fd(), POLLIN);
        call!(poll(&mut entry, 1, 20_000));
        ensure!(entry.revents & POLLIN != 0, "{} packets came", all.len());
        frames.take(socket.as_fd(), |it| all.push(it))?;
    }
    equal!(all.len(), count);
    Ok(all)
}

fn check(packet: &Received, wanted: &[u8]) -> Outcome {
    ensure!(packet.to_vec(70_000)? == wanted, "other bytes");
    // They cannot change: they may be borrowed.
    let bytes = packet
        .fragments()
        .map(|it| it.bytes().map_or(0, <[u8]>::len));
    equal!(bytes.sum::<usize>(), wanted.len());
    Ok(())
}

fn received() -> Outcome {
    let tap = Tap::ready()?;
    let domain = Domain::enter(Backend::Device)?;
    let socket = packet_socket(SOCK_RAW, 0x88b5, tap.index)?;
    let mut frames = Frames::new(&domain, socket.as_fd(), 1)?;
    let before = counter("fbuf_kernel_bytes_copied")?;
    let packets: Vec<Vec<u8>> = (0..10).map(|it| packet(it, 60 + 140 * it)).collect();
    for packet in &packets {
        tap.send(packet)?;
    }
    let mut all = take(&mut frames, &socket, packets.len())?;
    for (packet, wanted) in all.iter().zip(&packets) {
        check(packet, wanted)?;
    }
    let bytes: usize = packets.iter().map(Vec::len).sum();
    equal!(counter("fbuf_kernel_bytes_copied")? - before, bytes as u64);
    // Nobody writes them.
    let first = all[0].fragments().next().ok_or("no bytes")?.address();
    let zeros = File::open("/dev/zero")?;
    refused!(EFAULT, read(zeros.as_raw_fd(), first as *mut c_void, 1));
    // A hoarder gets no more, and the others come by a copy.
    for number in 0..PAGES {
        tap.send(&packet(number, 100))?;
        frames.take(socket.as_fd(), |it| all.push(it))?;
    }
    equal!(all.len(), PAGES);
    check(&all[packets.len()], &packet(0, 100))?;
    ensure!(counter("fbuf_kernel_missed")? > 0, "nothing was missed");
    let (_, has_others) = frames.take(socket.as_fd(), |_| {})?;
    ensure!(has_others, "others are lost");
    let mut buffer = [0u8; 200];
    for number in PAGES - packets.len()..PAGES {
        let fd = socket.as_raw_fd();
        let n = call!(recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), 0));
        ensure!(
            buffer[..n as usize] == packet(number, 100),
            "packet {number}"
        );
    }
    // The last one that was freed comes first.
    let freed = all.pop().ok_or("none")?;
    let place = freed.fragments().next().ok_or("no bytes")?.address();
    drop(freed);
    frames.take(socket.as_fd(), |_| {})?;
    tap.send(&packet(9, 99))?;
    let again = take(&mut frames, &socket, 1)?;
    check(&again[0], &packet(9, 99))?;
    equal!(
        again[0].fragments().next().map(|it| it.address()),
        Some(place)
    );
    let listing = fs::read_to_string("/proc/causeway/fbuf")?;
    ensure!(
        listing.contains("owner kernel there cached,volatile chunks 1/1 pages 512 members 1"),
        "{listing}"
    );
    // What was given stays when the socket goes.
    drop(socket);
    check(&all[1], &packets[1])?;
    let listing = fs::read_to_string("/proc/causeway/fbuf")?;
    ensure!(listing.contains("owner kernel gone"), "{listing}");
    Ok(())
}

/// Another process reads the same pages, as long as it is a member; one that is none gets nothing.
fn shared() -> Outcome {
    let tap = Tap::ready()?;
    let domain = Domain::enter(Backend::Device)?;
    let socket = packet_socket(SOCK_RAW, 0x88b5, tap.index)?;
    let mut frames = Frames::new(&domain, socket.as_fd(), 1)?;
    let own = libfbuf::Path::new(&domain, Mode::default(), 1)?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let reader = spawn(|| {
        let domain = Domain::enter(Backend::Device)?;
        let mut bytes = [0; 1];
        let path = libfbuf::receive_descriptor(theirs.as_fd(), &mut bytes)?;
        let own = libfbuf::Member::attach(&domain, path)?;
        libfbuf::send_descriptor(theirs.as_fd(), b"x", own.as_fd())?;
        let path = libfbuf::receive_descriptor(theirs.as_fd(), &mut bytes)?;
        let card = libfbuf::Member::attach(&domain, path)?;
        libfbuf::send_descriptor(theirs.as_fd(), b"x", card.as_fd())?;
        let mut message = own.receive()?.ok_or("no message")?;
        ensure!(
            message.contents().to_vec(1000)? == packet(7, 500),
            "other bytes"
        );
        message.secure()?;
        drop(message);
        Ok(())
    })?;
    let mut bytes = [0; 1];
    libfbuf::send_descriptor(ours.as_fd(), b"x", own.as_fd())?;
    libfbuf::receive_descriptor(ours.as_fd(), &mut bytes)?;
    tap.send(&packet(7, 500))?;
    let all = take(&mut frames, &socket, 1)?;
    let message = own.forward_frame(&all[0])?;
    let refused = own.send(libfbuf::To::All, &message);
    equal!(refused.map_err(|why| why.raw_os_error()), Err(Some(EPERM)));
    libfbuf::send_descriptor(ours.as_fd(), b"x", frames.member().as_fd())?;
    libfbuf::receive_descriptor(ours.as_fd(), &mut bytes)?;
    own.send(libfbuf::To::All, &message)?;
    wait_ok(reader)?;
    Ok(())
}

fn refusals() -> Outcome {
    let tap = Tap::ready()?;
    let domain = Domain::enter(Backend::Device)?;
    let number = |result: io::Result<Frames>| result.map(drop).map_err(|why| why.raw_os_error());
    let socket = packet_socket(SOCK_RAW, 0x88b5, tap.index)?;
    equal!(
        number(Frames::new(&domain, socket.as_fd(), 0)),
        Err(Some(EINVAL))
    );
    equal!(
        number(Frames::new(&domain, socket.as_fd(), 33)),
        Err(Some(EINVAL))
    );
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    equal!(
        number(Frames::new(&domain, udp.as_fd(), 1)),
        Err(Some(ENOTTY))
    );
    let frames = Frames::new(&domain, socket.as_fd(), 1)?;
    equal!(
        number(Frames::new(&domain, socket.as_fd(), 1)),
        Err(Some(EBUSY))
    );
    // Parts that the program does not have.
    for at in [0u64, 0x6000_0000_0000, u64::MAX] {
        let freed = [at];
        let mut words = [0, 0, freed.as_ptr() as u64, 1, 0, 0, 0, 0];
        let fd = socket.as_raw_fd();
        refused!(EINVAL, ioctl(fd, 0xc040_fb31, words.as_mut_ptr()));
    }
    let mut words = [0, 0, 8u64, 1, 0, 0, 0, 0];
    refused!(
        EFAULT,
        ioctl(socket.as_raw_fd(), 0xc040_fb31, words.as_mut_ptr())
    );
    drop(frames);
    Ok(())
}

/// What `fbuf.h` declares.
mod header {
    use super::*;

    unsafe extern "C" {
        pub fn fbuf_enter(backend: c_int) -> c_int;
        pub fn fbuf_path_new(mode: c_uint, chunks: usize, path: *mut *mut c_void) -> c_int;
        pub fn fbuf_path_free(path: *mut c_void);
        pub fn fbuf_data_length(data: *const c_void) -> u64;
        pub fn fbuf_data_read(
            data: *const c_void,
            offset: u64,
            to: *mut c_void,
            length: usize,
        ) -> usize;
        pub fn fbuf_data_free(data: *mut c_void);
        pub fn fbuf_frames_new(socket: c_int, chunks: usize, frames: *mut *mut c_void) -> c_int;
        pub fn fbuf_frames_take(
            frames: *mut c_void,
            socket: c_int,
            each: extern "C" fn(*mut c_void, *mut c_void),
            context: *mut c_void,
        ) -> c_int;
        pub fn fbuf_frames_descriptor(frames: *const c_void) -> c_int;
        pub fn fbuf_frames_forward(
            path: *const c_void,
            packet: *const c_void,
            data: *mut *mut c_void,
        ) -> c_int;
        pub fn fbuf_frames_free(frames: *mut c_void);
    }
}

fn interface_for_c() -> Outcome {
    use header::*;
    /// Adds a packet to a list.
    extern "C" fn add(list: *mut c_void, packet: *mut c_void) {
        // SAFETY: the list that `interface_for_c` passed, which nothing else uses meanwhile.
        unsafe { (*list.cast::<Vec<*mut c_void>>()).push(packet) };
    }
    let bytes_of = |data: *const c_void| {
        let mut bytes = [0u8; 300];
        // SAFETY: data of the library, and room for so many bytes.
        let n = unsafe { fbuf_data_read(data, 0, bytes.as_mut_ptr().cast(), bytes.len()) };
        bytes[..n].to_vec()
    };
    let tap = Tap::ready()?;
    let socket = packet_socket(SOCK_RAW, 0x88b5, tap.index)?;
    let fd = socket.as_raw_fd();
    let mut packets: Vec<*mut c_void> = Vec::new();
    let (mut path, mut frames, mut data) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the places outlive the calls.
    unsafe {
        equal!(fbuf_frames_new(fd, 1, &mut frames), -EPERM);
        equal!(fbuf_enter(0), 0);
        equal!(fbuf_path_new(0, 1, &mut path), 0);
        equal!(fbuf_frames_new(fd, 1, &mut frames), 0);
        ensure!(fbuf_frames_descriptor(frames) > 2, "no descriptor");
    }
    for number in 0..3 {
        tap.send(&packet(number, 100 + number))?;
    }
    while packets.len() < 3 {
        let mut entry = poll_entry(fd, POLLIN);
        call!(poll(&mut entry, 1, 20_000));
        let list = (&raw mut packets).cast();
        // SAFETY: the handle, and the list that `add` fills.
        equal!(unsafe { fbuf_frames_take(frames, fd, add, list) }, 0);
    }
    for (number, packet) in packets.iter().enumerate() {
        equal!(bytes_of(*packet), self::packet(number, 100 + number));
    }
    // SAFETY: handles of the library, each freed once.
    unsafe {
        equal!(fbuf_frames_forward(path, packets[1], &mut data), 0);
        packets.into_iter().for_each(|it| fbuf_data_free(it));
        equal!(fbuf_data_length(data), 101);
    }
    equal!(bytes_of(data), packet(1, 101));
    // SAFETY: as above.
    unsafe {
        fbuf_data_free(data);
        fbuf_path_free(path);
        fbuf_frames_free(frames);
    }
    Ok(())
}
