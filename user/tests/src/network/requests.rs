//! Requests of netlink: lists of sockets, refusals, random messages.

use super::*;

pub const TESTS: &[Test] = &[
    ("network: sockets are listed with how they do", listing),
    ("network: thousands of lists are asked for at once", lists),
    ("network: users change nothing", users),
    ("network: random messages of netlink", random_messages),
];

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

/// Each process asks for thousands of lists in one datagram: together, they would be more than the
/// machine's memory. It gets as many as a queue may have.
fn lists() -> Outcome {
    const SOCKETS: usize = 900;
    const MOST: usize = 8 << 20;
    let mut pairs = Vec::new();
    for _ in 0..SOCKETS / 2 {
        pairs.push(UnixStream::pair()?);
    }
    let mut body = [0u8; 24];
    body[0] = AF_UNIX as u8;
    body[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    body[12] = 0x54;
    let asked = message(20, NLM_F_DUMP, &body, &[]).repeat(5000);
    let mut processes = Vec::new();
    for _ in 0..4 {
        processes.push(spawn(|| {
            call!(setuid(1000));
            let socket = netlink(4, 0)?;
            let fd = socket.as_raw_fd();
            let n = call!(send(fd, asked.as_ptr().cast(), asked.len(), 0));
            equal!(n as usize, asked.len());
            let mut buffer = vec![0u8; 65_536];
            let at = buffer.as_mut_ptr();
            refused!(ENOBUFS, recv(fd, at.cast(), 65_536, 0));
            let (mut entries, mut ends, mut bytes) = (0, 0, 0);
            loop {
                // SAFETY: the buffer is as long as that.
                let n = unsafe { recv(fd, at.cast(), 65_536, MSG_DONTWAIT) };
                if n < 0 {
                    break;
                }
                bytes += n as usize;
                let mut left = &buffer[..n as usize];
                while left.len() >= 16 {
                    let len = u32::from_le_bytes([left[0], left[1], left[2], left[3]]) as usize;
                    entries += usize::from(left[4] == 20 && ends == 0);
                    ends += usize::from(left[4] == 3);
                    left = &left[len.next_multiple_of(4).min(left.len())..];
                }
            }
            ensure!(entries >= SOCKETS, "the first list has {entries}");
            ensure!(
                (MOST / 2..=MOST).contains(&bytes),
                "{bytes} bytes in {ends}"
            );
            Ok(())
        })?);
    }
    for process in processes {
        wait_ok(process)?;
    }
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
