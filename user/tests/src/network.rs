//! Interfaces, addresses and routes that programs change, and packets beyond this machine: the
//! other machine is this program, at the far end of a `tap`.

pub mod shown;
pub mod zero_copy;

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("network: an interface comes, changes and goes", interface),
    ("network: an interface stays without its program", kept),
    ("network: /sys shows the interfaces", in_sys),
    (
        "network: headers of TCP say what its program has chosen",
        chosen,
    ),
    ("network: routes are chosen by prefix and metric", routes),
    (
        "network: neighbours are learnt, fixed and forgotten",
        neighbours,
    ),
    ("network: echoes of another machine", echoes),
    (
        "network: errors of another machine and of its silence",
        errors,
    ),
    ("network: packet sockets, filters, counts", packets),
    ("network: rings of packets", rings),
    ("network: groups are told to the link", groups),
    ("network: sockets are listed with how they do", listing),
    ("network: users change nothing", users),
    ("network: random messages of netlink", random_messages),
];

const SIOCSIFADDR: u64 = 0x8916;
const SIOCSIFNETMASK: u64 = 0x891c;
const SIOCSIFFLAGS: u64 = 0x8914;
const SIOCGIFFLAGS: u64 = 0x8913;
const SIOCGIFINDEX: u64 = 0x8933;
const TUNSETIFF: u64 = 0x4004_54ca;
const TUNSETPERSIST: u64 = 0x4004_54cb;
const MAC: [u8; 6] = [2, 9, 9, 9, 9, 9];
const OWN: [u8; 4] = [10, 9, 0, 1];
const FAR: [u8; 4] = [10, 9, 0, 2];

/// A tap whose interface is up, and a thread at its far end.
struct Tap {
    file: Arc<File>,
    name: String,
    index: u32,
}

fn request(name: &str, value: &[u8]) -> [u8; 40] {
    let mut request = [0; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..16 + value.len()].copy_from_slice(value);
    request
}

fn socket_of(family: c_int, kind: c_int, protocol: c_int) -> Result<OwnedFd> {
    let fd = call!(socket(family, kind | SOCK_CLOEXEC, protocol));
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(ip: [u8; 4], port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[0] = AF_INET as u8;
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip);
    bytes
}

impl Tap {
    /// Makes a tap that is down.
    fn make() -> Result<Tap> {
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        let mut asked = request("", &((IFF_TAP | IFF_NO_PI) as u16).to_le_bytes());
        call!(ioctl(file.as_raw_fd(), TUNSETIFF as _, asked.as_mut_ptr()));
        let name = asked[..16].split(|byte| *byte == 0).next().unwrap_or(&[]);
        let name = String::from_utf8_lossy(name).into_owned();
        let socket = socket_of(AF_INET, SOCK_DGRAM, 0)?;
        let mut asked = request(&name, &[]);
        call!(ioctl(
            socket.as_raw_fd(),
            SIOCGIFINDEX as _,
            asked.as_mut_ptr()
        ));
        let index = u32::from_le_bytes([asked[16], asked[17], asked[18], asked[19]]);
        Ok(Tap {
            file: Arc::new(file),
            name,
            index,
        })
    }

    fn set_up(&self, up: bool) -> Outcome {
        let socket = socket_of(AF_INET, SOCK_DGRAM, 0)?;
        let mut asked = request(&self.name, &[u8::from(up), 0x10]);
        call!(ioctl(
            socket.as_raw_fd(),
            SIOCSIFFLAGS as _,
            asked.as_mut_ptr()
        ));
        Ok(())
    }

    /// As `make`, up, with 10.9.0.1/24.
    fn ready() -> Result<Tap> {
        let tap = Tap::make()?;
        tap.set_up(true)?;
        let socket = socket_of(AF_INET, SOCK_DGRAM, 0)?;
        for (command, value) in [
            (SIOCSIFADDR, address(OWN, 0)),
            (SIOCSIFNETMASK, address([255, 255, 255, 0], 0)),
        ] {
            let mut asked = request(&tap.name, &value);
            call!(ioctl(socket.as_raw_fd(), command as _, asked.as_mut_ptr()));
        }
        Ok(tap)
    }

    /// Starts the other machine: it answers questions for its address, and passes on the other
    /// frames.
    fn far(&self) -> mpsc::Receiver<Vec<u8>> {
        let (file, (frames, received)) = (self.file.clone(), mpsc::channel());
        thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok(n) = (&*file).read(&mut buffer) {
                let frame = &buffer[..n];
                let asks = n >= 42 && frame[12..14] == [8, 6] && frame[21] == 1;
                if asks && frame[38..42] == FAR {
                    let mut answer = frame[6..12].to_vec();
                    answer.extend(MAC);
                    answer.extend(&frame[12..20]);
                    answer.extend([0, 2]);
                    answer.extend(MAC);
                    answer.extend(FAR);
                    answer.extend(&frame[22..32]);
                    let _ = (&*file).write(&answer);
                } else if frames.send(frame.to_vec()).is_err() {
                    return;
                }
            }
        });
        received
    }

    fn send(&self, frame: &[u8]) -> Outcome {
        let n = (&*self.file).write(frame)?;
        equal!(n, frame.len());
        Ok(())
    }
}

fn sum(bytes: &[u8]) -> [u8; 2] {
    let mut total = 0u64;
    for pair in bytes.chunks(2) {
        total += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
    }
    while total > 0xffff {
        total = (total >> 16) + (total & 0xffff);
    }
    (!(total as u16)).to_be_bytes()
}

/// A frame of IPv4 to this machine.
fn frame(to_mac: &[u8], from: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = to_mac.to_vec();
    bytes.extend(MAC);
    bytes.extend([8, 0, 0x45, 0]);
    bytes.extend((20 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
    bytes.extend(from);
    bytes.extend(OWN);
    let header = sum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&header);
    bytes.extend(payload);
    bytes
}

/// Waits for a frame that fits.
fn await_frame(frames: &mpsc::Receiver<Vec<u8>>, fits: impl Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let mut others = 0;
    loop {
        let Ok(frame) = frames.recv_timeout(Duration::from_secs(20)) else {
            return Err(Failure::from(format!("no such frame among {others}")));
        };
        if fits(&frame) {
            return Ok(frame);
        }
        others += 1;
    }
}

/// A netlink socket of a protocol, in groups.
fn netlink(protocol: c_int, groups: u32) -> Result<OwnedFd> {
    let socket = socket_of(AF_NETLINK, SOCK_RAW, protocol)?;
    // SAFETY: all zeros is a valid address.
    let mut name: sockaddr_nl = unsafe { zeroed() };
    name.nl_family = AF_NETLINK as u16;
    name.nl_groups = groups;
    let len = size_of::<sockaddr_nl>() as u32;
    call!(bind(socket.as_raw_fd(), (&raw const name).cast(), len));
    let time = time_val(20_000_000);
    set_option(&socket, SOL_SOCKET, SO_RCVTIMEO, time)?;
    Ok(socket)
}

/// A request: type, flags, the structure behind the head, attributes.
fn message(kind: u16, flags: c_int, body: &[u8], attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    bytes[4..6].copy_from_slice(&kind.to_le_bytes());
    bytes[6..8].copy_from_slice(&(flags as u16 | 1).to_le_bytes());
    bytes[8] = 7;
    bytes.extend(body);
    for (kind, value) in attributes {
        bytes.extend((4 + value.len() as u16).to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(*value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// Receives a datagram, and splits it: types and messages.
fn receive(socket: &OwnedFd) -> Result<Vec<(u16, Vec<u8>)>> {
    let mut buffer = vec![0u8; 65_536];
    let n = call!(recv(
        socket.as_raw_fd(),
        buffer.as_mut_ptr().cast(),
        buffer.len(),
        0
    ));
    let (mut left, mut all) = (&buffer[..n as usize], Vec::new());
    while left.len() >= 16 {
        let len = u32::from_le_bytes([left[0], left[1], left[2], left[3]]) as usize;
        ensure!((16..=left.len()).contains(&len), "{len} of {}", left.len());
        all.push((u16::from_le_bytes([left[4], left[5]]), left[..len].to_vec()));
        left = &left[len.next_multiple_of(4).min(left.len())..];
    }
    Ok(all)
}

/// Sends a request with an acknowledgement; returns its number.
fn ask(socket: &OwnedFd, request: &[u8]) -> Result<i32> {
    let n = call!(send(
        socket.as_raw_fd(),
        request.as_ptr().cast(),
        request.len(),
        0
    ));
    equal!(n as usize, request.len());
    loop {
        for (kind, bytes) in receive(socket)? {
            if kind == NLMSG_ERROR as u16 {
                return Ok(i32::from_le_bytes([
                    bytes[16], bytes[17], bytes[18], bytes[19],
                ]));
            }
        }
    }
}

/// Lists: all messages until the end.
fn list(socket: &OwnedFd, request: &[u8]) -> Result<Vec<(u16, Vec<u8>)>> {
    let n = call!(send(
        socket.as_raw_fd(),
        request.as_ptr().cast(),
        request.len(),
        0
    ));
    equal!(n as usize, request.len());
    let mut all = Vec::new();
    loop {
        for (kind, bytes) in receive(socket)? {
            match kind {
                3 => return Ok(all),
                2 => return Err(Failure::from(format!("an error: {bytes:?}"))),
                _ => all.push((kind, bytes)),
            }
        }
    }
}

/// The attribute of a message behind a structure of `head` bytes.
fn attribute(bytes: &[u8], head: usize, wanted: u16) -> Option<&[u8]> {
    let mut left = bytes.get(16 + head..)?;
    while left.len() >= 4 {
        let len = usize::from(u16::from_le_bytes([left[0], left[1]]));
        let kind = u16::from_le_bytes([left[2], left[3]]) & 0x3fff;
        if len < 4 || len > left.len() {
            return None;
        }
        if kind == wanted {
            return Some(&left[4..len]);
        }
        left = &left[len.next_multiple_of(4).min(left.len())..];
    }
    None
}

/// A `struct ifaddrmsg`, a `struct rtmsg`, a `struct ndmsg`.
fn ifaddr(bits: u8, index: u32) -> Vec<u8> {
    let mut body = vec![AF_INET as u8, bits, 0, 0];
    body.extend(index.to_le_bytes());
    body
}

fn rt(bits: u8) -> Vec<u8> {
    vec![AF_INET as u8, bits, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0]
}

fn nd(index: u32, state: u16) -> Vec<u8> {
    let mut body = vec![AF_INET as u8, 0, 0, 0];
    body.extend(index.to_le_bytes());
    body.extend(state.to_le_bytes());
    body.extend([0, 0]);
    body
}

const ACK: c_int = NLM_F_ACK;
const CREATE: c_int = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;

fn interface() -> Outcome {
    // RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE.
    let news = netlink(NETLINK_ROUTE, 1 | 0x10 | 0x40)?;
    let socket = netlink(NETLINK_ROUTE, 0)?;
    // `ip` asks so whether there is this request.
    let empty = message(RTM_NEWLINK, ACK, &[0; 16], &[]);
    equal!(ask(&socket, &empty)?, -ENODEV);
    let tap = Tap::make()?;
    let index = tap.index.to_le_bytes();
    let mut told = Vec::new();
    let mut await_news = |wanted: u16| -> Outcome {
        while !told.contains(&wanted) {
            told.extend(receive(&news)?.into_iter().map(|(kind, _)| kind));
        }
        told.clear();
        Ok(())
    };
    await_news(RTM_NEWLINK)?;
    // Up, with a name and an MTU of its own.
    let mut body = [0; 16];
    body[4..8].copy_from_slice(&index);
    body[8] = 1;
    body[12] = 1;
    let change = [
        (IFLA_MTU, &1400u32.to_le_bytes()[..]),
        (IFLA_IFNAME, b"far0\0"),
    ];
    equal!(ask(&socket, &message(RTM_NEWLINK, ACK, &body, &change))?, 0);
    await_news(RTM_NEWLINK)?;
    for wrong in [9u32, 70_000] {
        let change = [(IFLA_MTU, &wrong.to_le_bytes()[..])];
        let answer = ask(&socket, &message(RTM_NEWLINK, ACK, &body, &change))?;
        equal!(answer, -EINVAL, wrong);
    }
    let mut named = request("far0", &[]);
    call!(ioctl(
        socket.as_raw_fd(),
        SIOCGIFFLAGS as _,
        named.as_mut_ptr()
    ));
    ensure!(named[16] & 0x43 == 0x43, "flags {:#x}", named[16]);
    // An address with its route.
    let add = |flags, ip: &[u8]| message(RTM_NEWADDR, flags, &ifaddr(24, tap.index), &[(2, ip)]);
    equal!(ask(&socket, &add(CREATE, &OWN))?, 0);
    await_news(RTM_NEWADDR)?;
    equal!(ask(&socket, &add(CREATE, &OWN))?, -EEXIST);
    equal!(ask(&socket, &add(NLM_F_ACK | NLM_F_REPLACE, &OWN))?, 0);
    equal!(ask(&socket, &add(CREATE, &[224, 0, 0, 9]))?, -EINVAL);
    let all = list(&socket, &message(RTM_GETROUTE, NLM_F_DUMP, &rt(0), &[]))?;
    let near = all.iter().filter(|(_, bytes)| {
        attribute(bytes, 12, RTA_DST) == Some(&[10, 9, 0, 0]) && bytes[17] == 24
    });
    equal!(near.count(), 1);
    let text = read_text("/proc/net/route")?;
    ensure!(text.contains("far0\t0000090A\t00000000\t0001"), "{text}");
    ensure!(
        read_text("/proc/net/dev")?.contains("  far0:"),
        "no interface"
    );
    let removal = message(RTM_DELADDR, ACK, &ifaddr(24, tap.index), &[(2, &OWN)]);
    equal!(ask(&socket, &removal)?, 0);
    await_news(RTM_DELADDR)?;
    equal!(ask(&socket, &removal)?, -EADDRNOTAVAIL);
    // `lo` keeps what it has.
    let own = message(RTM_DELADDR, ACK, &ifaddr(8, 1), &[(2, &[127, 0, 0, 1])]);
    equal!(ask(&socket, &own)?, -EOPNOTSUPP);
    drop(tap);
    await_news(RTM_DELLINK)?;
    refused!(
        ENODEV,
        ioctl(socket.as_raw_fd(), SIOCGIFFLAGS as _, named.as_mut_ptr())
    );
    Ok(())
}

fn in_sys() -> Outcome {
    let tap = Tap::make()?;
    let folder = format!("/sys/class/net/{}", tap.name);
    let file = |name: &str| read_text(&format!("{folder}/{name}"));
    let mut names = Vec::new();
    for entry in fs::read_dir("/sys/class/net")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    ensure!(
        names.contains(&"lo".to_string()) && names.contains(&tap.name),
        "{names:?}"
    );
    let device = fs::canonicalize(&folder)?;
    let wanted = format!("/sys/devices/virtual/net/{}", tap.name);
    equal!(device.to_string_lossy(), wanted);
    equal!(file("operstate")?, "down\n");
    equal!(file("flags")?, "0x1002\n");
    let carrier = fs::read(format!("{folder}/carrier"));
    equal!(carrier.err().and_then(|it| it.raw_os_error()), Some(EINVAL));
    tap.set_up(true)?;
    for (name, wanted) in [
        ("operstate", "up\n"),
        ("flags", "0x1003\n"),
        ("carrier", "1\n"),
        ("mtu", "1500\n"),
        ("type", "1\n"),
        ("addr_len", "6\n"),
        ("broadcast", "ff:ff:ff:ff:ff:ff\n"),
    ] {
        equal!(file(name)?, wanted, name);
    }
    equal!(file("ifindex")?, format!("{}\n", tap.index));
    let socket = socket_of(AF_INET, SOCK_DGRAM, 0)?;
    let mut asked = request(&tap.name, &[]);
    call!(ioctl(
        socket.as_raw_fd(),
        SIOCGIFHWADDR as _,
        asked.as_mut_ptr()
    ));
    let own: Vec<String> = asked[18..24].iter().map(|it| format!("{it:02x}")).collect();
    equal!(file("address")?, format!("{}\n", own.join(":")));
    let count = |name: &str| -> Result<u64> {
        let text = file(&format!("statistics/{name}"))?;
        text.trim().parse().map_err(|_| Failure::from(text))
    };
    let before = [count("rx_packets")?, count("rx_bytes")?];
    (&*tap.file).write_all(&[0xff; 60])?;
    equal!(
        [count("rx_packets")?, count("rx_bytes")?],
        [before[0] + 1, before[1] + 60]
    );
    let open = fs::File::open(format!("{folder}/mtu"))?;
    drop(tap);
    ensure!(!fs::exists(&folder)?, "a folder of no interface");
    let gone = (&open).read(&mut [0; 8]);
    equal!(gone.err().and_then(|it| it.raw_os_error()), Some(ENODEV));
    Ok(())
}

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

fn kept() -> Outcome {
    let tap = Tap::make()?;
    tap.set_up(true)?;
    let (name, fd) = (tap.name.clone(), tap.file.as_raw_fd());
    call!(ioctl(fd, TUNSETPERSIST as _, 1));
    drop(tap);
    let socket = socket_of(AF_INET, SOCK_DGRAM, 0)?;
    let mut asked = request(&name, &[]);
    call!(ioctl(
        socket.as_raw_fd(),
        SIOCGIFFLAGS as _,
        asked.as_mut_ptr()
    ));
    // Up, and not running.
    equal!(asked[16] & 0x41, 1);
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    let flags = |flags: c_int| ((flags | IFF_NO_PI) as u16).to_le_bytes();
    let mut other = request(&name, &flags(IFF_TUN));
    refused!(
        EINVAL,
        ioctl(file.as_raw_fd(), TUNSETIFF as _, other.as_mut_ptr())
    );
    let mut again = request(&name, &flags(IFF_TAP));
    call!(ioctl(file.as_raw_fd(), TUNSETIFF as _, again.as_mut_ptr()));
    call!(ioctl(
        socket.as_raw_fd(),
        SIOCGIFFLAGS as _,
        asked.as_mut_ptr()
    ));
    equal!(asked[16] & 0x41, 0x41);
    let busy = fs::File::open("/dev/net/tun")?;
    refused!(
        EBUSY,
        ioctl(busy.as_raw_fd(), TUNSETIFF as _, again.as_mut_ptr())
    );
    call!(ioctl(file.as_raw_fd(), TUNSETPERSIST as _, 0));
    drop(file);
    refused!(
        ENODEV,
        ioctl(socket.as_raw_fd(), SIOCGIFFLAGS as _, asked.as_mut_ptr())
    );
    Ok(())
}

fn routes() -> Outcome {
    let (first, second) = (Tap::ready()?, Tap::make()?);
    second.set_up(true)?;
    let socket = netlink(NETLINK_ROUTE, 0)?;
    let address = message(
        RTM_NEWADDR,
        CREATE,
        &ifaddr(24, second.index),
        &[(2, &[10, 8, 0, 1])],
    );
    equal!(ask(&socket, &address)?, 0);
    let route = |kind, flags, to: &[u8], bits, gateway: &[u8], metric: u32| {
        let metric = metric.to_le_bytes();
        let mut attributes = vec![(RTA_GATEWAY, gateway), (RTA_PRIORITY, &metric[..])];
        if bits > 0 {
            attributes.push((RTA_DST, to));
        }
        message(kind, flags, &rt(bits), &attributes)
    };
    let (near, far) = ([10, 9, 0, 2], [10, 8, 0, 2]);
    for (to, bits, gateway, metric, answer) in [
        ([0; 4], 0, near, 0, 0),
        ([0; 4], 0, far, 0, -EEXIST),
        ([0; 4], 0, far, 5, 0),
        ([77, 0, 0, 0], 8, far, 0, 0),
        ([77, 1, 0, 0], 16, near, 9, 0),
        ([77, 1, 0, 0], 16, far, 8, 0),
        ([77, 1, 0, 1], 16, far, 8, -EINVAL),
        ([78, 0, 0, 0], 8, [5, 5, 5, 5], 0, 0),
        ([79, 0, 0, 0], 8, OWN, 0, -EINVAL),
    ] {
        let asked = route(RTM_NEWROUTE, CREATE, &to, bits, &gateway, metric);
        let got = ask(&socket, &asked)?;
        // A gateway behind another one is no neighbour.
        let answer = if gateway == [5, 5, 5, 5] {
            -ENETUNREACH
        } else {
            answer
        };
        equal!(got, answer, to, gateway);
    }
    let way = |to: [u8; 4]| -> Result<u32> {
        let body = [AF_INET as u8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let asked = message(RTM_GETROUTE, 0, &body, &[(RTA_DST, &to)]);
        call!(send(
            socket.as_raw_fd(),
            asked.as_ptr().cast(),
            asked.len(),
            0
        ));
        let answer = receive(&socket)?;
        let index = attribute(&answer[0].1, 12, RTA_OIF).unwrap_or(&[0; 4]);
        Ok(u32::from_le_bytes([index[0], index[1], index[2], index[3]]))
    };
    for (to, wanted) in [
        ([1, 1, 1, 1], first.index),
        ([10, 8, 0, 77], second.index),
        ([77, 2, 0, 1], second.index),
        ([77, 1, 0, 1], second.index),
        ([127, 0, 0, 1], 1),
        (OWN, 1),
    ] {
        equal!(way(to)?, wanted, to);
    }
    let gone = route(RTM_DELROUTE, ACK, &[77, 1, 0, 0], 16, &far, 8);
    equal!(ask(&socket, &gone)?, 0);
    equal!(ask(&socket, &gone)?, -ESRCH);
    equal!(way([77, 1, 0, 1])?, first.index);
    // A route to nowhere.
    let mut body = rt(8);
    body[7] = RTN_UNREACHABLE;
    let nowhere = message(RTM_NEWROUTE, CREATE, &body, &[(RTA_DST, &[66, 0, 0, 0])]);
    equal!(ask(&socket, &nowhere)?, 0);
    let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let error = udp.send_to(b"x", (Ipv4Addr::new(66, 0, 0, 1), 9)).err();
    equal!(error.and_then(|it| it.raw_os_error()), Some(EHOSTUNREACH));
    body[7] = 0;
    let nowhere = message(RTM_DELROUTE, ACK, &body, &[(RTA_DST, &[66, 0, 0, 0])]);
    equal!(ask(&socket, &nowhere)?, 0);
    Ok(())
}

fn neighbours() -> Outcome {
    let tap = Tap::ready()?;
    let frames = tap.far();
    let socket = netlink(NETLINK_ROUTE, 0)?;
    let udp = UdpSocket::bind((Ipv4Addr::from(OWN), 0))?;
    udp.send_to(b"hello", (Ipv4Addr::from(FAR), 9))?;
    let sent = await_frame(&frames, |frame| frame.ends_with(b"hello"))?;
    ensure!(sent[..6] == MAC, "to {:x?}", &sent[..6]);
    let states = || -> Result<Vec<(Vec<u8>, u16)>> {
        let all = list(&socket, &message(RTM_GETNEIGH, NLM_F_DUMP, &nd(0, 0), &[]))?;
        let own = all
            .into_iter()
            .filter(|(_, it)| it[20..24] == tap.index.to_le_bytes());
        let described = own.map(|(_, it)| {
            let ip = attribute(&it, 12, 1).unwrap_or(&[]).to_vec();
            (ip, u16::from_le_bytes([it[24], it[25]]))
        });
        Ok(described.collect())
    };
    equal!(states()?, [(FAR.to_vec(), 2)]);
    let arp = read_text("/proc/net/arp")?;
    ensure!(
        arp.contains("10.9.0.2") && arp.contains("02:09:09:09:09:09"),
        "{arp}"
    );
    let fixed = [(1u16, &[10, 9, 0, 7][..]), (2, &[2, 0, 0, 0, 0, 7])];
    equal!(
        ask(
            &socket,
            &message(RTM_NEWNEIGH, CREATE, &nd(tap.index, 0x80), &fixed)
        )?,
        0
    );
    equal!(
        ask(
            &socket,
            &message(RTM_NEWNEIGH, CREATE, &nd(tap.index, 0x80), &fixed)
        )?,
        -EEXIST
    );
    ensure!(
        states()?.contains(&(vec![10, 9, 0, 7], 0x80)),
        "{:?}",
        states()?
    );
    udp.send_to(b"fixed", (Ipv4Addr::new(10, 9, 0, 7), 9))?;
    let sent = await_frame(&frames, |frame| frame.ends_with(b"fixed"))?;
    ensure!(sent[..6] == [2, 0, 0, 0, 0, 7], "to {:x?}", &sent[..6]);
    let gone = message(RTM_DELNEIGH, ACK, &nd(tap.index, 0), &fixed[..1]);
    equal!(ask(&socket, &gone)?, 0);
    equal!(ask(&socket, &gone)?, -ENOENT);
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

fn packet_socket(kind: c_int, protocol: u16, index: u32) -> Result<OwnedFd> {
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
        report[..6] == [1, 0, 0x5e, 1, 2, 3],
        "to {:x?}",
        &report[..6]
    );
    ensure!(
        report[38] == 0x16 && report[42..46] == group.octets(),
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
    await_frame(&frames, |frame| frame[23] == 2 && frame[38] == 0x17)?;
    // To a group, by an interface.
    let out = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    set_option(&out, IPPROTO_IP, IP_MULTICAST_IF, u32::from_ne_bytes(OWN))?;
    out.send_to(b"to all", (group, 9))?;
    let sent = await_frame(&frames, |frame| frame.ends_with(b"to all"))?;
    equal!((sent[22], &sent[26..30]), (1, &OWN[..]));
    Ok(())
}

fn listing() -> Outcome {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let (_server, _) = listener.accept()?;
    client.write_all(&[0; 1000])?;
    let socket = netlink(4, 0)?;
    let mut body = [0u8; 56];
    // All states of TCP, with `TCP_INFO` and the congestion control.
    body[..3].copy_from_slice(&[AF_INET as u8, 6, 1 << 1 | 1 << 3]);
    body[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let all = list(&socket, &message(20, NLM_F_DUMP, &body, &[]))?;
    let of = |state: u8, own: usize| {
        let fits = |bytes: &&(u16, Vec<u8>)| {
            bytes.1[17] == state && bytes.1[20 + own..22 + own] == port.to_be_bytes()
        };
        all.iter().find(fits).map(|(_, bytes)| bytes.clone())
    };
    ensure!(of(10, 0).is_some(), "no listener");
    let ours = of(1, 2).ok_or_else(|| Failure::from("no connection".to_string()))?;
    let info = attribute(&ours, 72, 2).unwrap_or(&[]);
    ensure!(info.len() > 200 && info[0] == 1, "{} bytes", info.len());
    let sent = u64::from_le_bytes(info[120..128].try_into().unwrap_or_default());
    equal!(sent, 1000, "bytes acknowledged");
    equal!(attribute(&ours, 72, 4), Some(&b"cubic\0"[..]));
    // A local socket, with its name.
    let path = "/tmp/network-listing";
    let _ = fs::remove_file(path);
    let _local = UnixListener::bind(path)?;
    let mut body = [0u8; 24];
    body[0] = AF_UNIX as u8;
    body[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    body[12] = 1;
    let all = list(&socket, &message(20, NLM_F_DUMP, &body, &[]))?;
    let named = |(_, bytes): &(u16, Vec<u8>)| {
        attribute(bytes, 16, 0).is_some_and(|name| name.starts_with(path.as_bytes()))
    };
    ensure!(all.iter().any(named), "no local socket among {}", all.len());
    fs::remove_file(path)?;
    Ok(())
}

fn users() -> Outcome {
    let index = 1u32;
    child(|| {
        call!(setuid(1000));
        refused!(EPERM, socket(AF_PACKET, SOCK_RAW, 0x300));
        refused!(EPERM, socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
        let socket = netlink(NETLINK_ROUTE, 0)?;
        for asked in [
            message(RTM_NEWADDR, CREATE, &ifaddr(24, index), &[(2, &OWN)]),
            message(RTM_NEWROUTE, CREATE, &rt(8), &[(RTA_DST, &[9, 0, 0, 0])]),
            message(RTM_NEWLINK, ACK, &[0; 16], &[(IFLA_IFNAME, b"lo\0")]),
            message(RTM_NEWNEIGH, CREATE, &nd(index, 0x80), &[]),
            message(RTM_DELLINK, ACK, &[0; 16], &[]),
        ] {
            equal!(ask(&socket, &asked)?, -EPERM);
        }
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        let mut asked = request("", &((IFF_TAP | IFF_NO_PI) as u16).to_le_bytes());
        refused!(
            EPERM,
            ioctl(file.as_raw_fd(), TUNSETIFF as _, asked.as_mut_ptr())
        );
        let mut asked = request("lo", &address([127, 0, 0, 2], 0));
        let fd = socket.as_raw_fd();
        refused!(EPERM, ioctl(fd, SIOCSIFADDR as _, asked.as_mut_ptr()));
        let low = TcpListener::bind((Ipv4Addr::LOCALHOST, 80)).err();
        equal!(low.and_then(|it| it.raw_os_error()), Some(EACCES));
        Ok(())
    })
}

fn random_messages() -> Outcome {
    let tap = Tap::ready()?;
    let mut numbers = Numbers::new(19);
    for protocol in [NETLINK_ROUTE, 4] {
        let socket = netlink(protocol, 0)?;
        let fd = socket.as_raw_fd();
        set_option(&fd, 270, NETLINK_GET_STRICT_CHK, 1)?;
        let mut buffer = vec![0u8; 65_536];
        for turn in 0..4000 {
            let kind = match protocol {
                NETLINK_ROUTE => 16 + numbers.below(30) as u16,
                _ => 18 + numbers.below(4) as u16,
            };
            let mut bytes = message(kind, numbers.below(0x1000) as c_int, &[], &[]);
            let len = numbers.below(120);
            bytes.extend((0..len).map(|_| match numbers.below(3) {
                0 => numbers.below(256) as u8,
                1 => numbers.below(12) as u8,
                _ => 0,
            }));
            // Mostly the interface of this test, and a family that is known.
            if bytes.len() >= 24 && turn % 4 != 0 {
                bytes[16] = [2, 10, 1, 0][turn % 4];
                bytes[20..24].copy_from_slice(&tap.index.to_le_bytes());
            }
            let whole = match numbers.below(20) {
                0 => numbers.below(1 << 16) as usize,
                _ => bytes.len(),
            };
            bytes[..4].copy_from_slice(&(whole as u32).to_le_bytes());
            // `lo` stays as it is for the other tests, and so do the routes.
            call!(send(fd, bytes.as_ptr().cast(), bytes.len(), 0));
            let at = buffer.as_mut_ptr();
            // SAFETY: the buffer is as long as that.
            while unsafe { recv(fd, at.cast(), buffer.len(), MSG_DONTWAIT) } >= 0 {}
        }
    }
    Ok(())
}
