//! Interfaces: how they come, change, stay and go, and `/sys/class/net`.

use super::*;

pub const TESTS: &[Test] = &[
    ("network: an interface comes, changes and goes", interface),
    ("network: an interface stays without its program", kept),
    ("network: two threads name one file's interface", raced),
    ("network: /sys shows the interfaces", in_sys),
];

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

/// One of them succeeds, and only its interface comes and goes.
fn raced() -> Outcome {
    let links = || -> Result<usize> { Ok(fs::read_dir("/sys/class/net")?.count()) };
    let before = links()?;
    for round in 0..300 {
        let file = Arc::new(
            fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/net/tun")?,
        );
        let start = Arc::new(Barrier::new(2));
        let name = || {
            let (file, start) = (file.clone(), start.clone());
            thread::spawn(move || {
                let mut asked = request("", &((IFF_TAP | IFF_NO_PI) as u16).to_le_bytes());
                start.wait();
                let at = asked.as_mut_ptr();
                // SAFETY: the request is alive, and as long as it has to be.
                unsafe { ioctl(file.as_raw_fd(), TUNSETIFF as _, at) }
            })
        };
        let named = [name(), name()].map(|thread| thread.join().unwrap_or(-9));
        let has_named = named.iter().filter(|&&result| result == 0).count();
        equal!((has_named, links()?), (1, before + 1), round);
        drop(file);
        equal!(links()?, before, round);
    }
    Ok(())
}
