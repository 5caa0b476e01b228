//! Routes and neighbours, as netlink changes them.

use super::*;

pub const TESTS: &[Test] = &[
    ("network: routes are chosen by prefix and metric", routes),
    (
        "network: neighbours are learnt, fixed and forgotten",
        neighbours,
    ),
];

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
