//! `/proc/net`: sockets, interfaces, their addresses, routes and neighbours; `/proc/sys/net`.

use alloc::{format, string::String, vec::Vec};
use core::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::atomic::Ordering::Relaxed,
};

use abi::{Errno, Result};
use fs::pseudofs::{Entry, Table, Text};
use net::{
    Family,
    datagram::Protocol,
    ip::{AddressState, Interface, RouteKind, scope_of},
    tcp,
};

use super::{
    super::{shown, value},
    counts,
    sys::setting,
};
use crate::socket::{
    self,
    inet::{PING_GROUPS, interface, stack, state_number},
    netlink, packet, unix,
};

/// Raw sockets of all numbers.
const RAW: Protocol = Protocol::Raw(0);

/// `/proc/PID/net`: the same for all, since there is one network.
pub fn directory() -> Table {
    let datagrams = [
        ("icmp", Family::V4, Protocol::Ping),
        ("icmp6", Family::V6, Protocol::Ping),
        ("raw", Family::V4, RAW),
        ("raw6", Family::V6, RAW),
        ("udp", Family::V4, Protocol::Udp),
        ("udp6", Family::V6, Protocol::Udp),
        ("udplite", Family::V4, Protocol::UdpLite),
        ("udplite6", Family::V6, Protocol::UdpLite),
    ];
    let table = Table::new()
        .with("arp", Entry::text(arp))
        .with("dev", shown(dev))
        .with("dev_mcast", shown(dev_mcast))
        .with("if_inet6", Entry::text(if_inet6))
        .with("igmp", Entry::text(igmp))
        .with("igmp6", shown(igmp6))
        .with("ipv6_route", Entry::text(ipv6_route))
        .with("netlink", shown(netlink_sockets))
        .with("netstat", shown(counts::netstat))
        .with("packet", shown(packet_sockets))
        .with("pnp", Entry::text(pnp))
        .with("route", Entry::text(route))
        .with("snmp", Entry::text(counts::snmp))
        .with("snmp6", shown(counts::snmp6))
        .with("sockstat", Entry::text(sockstat))
        .with("sockstat6", Entry::text(sockstat6))
        .with("tcp", Entry::text(|out| tcp_sockets(out, Family::V4)))
        .with("tcp6", Entry::text(|out| tcp_sockets(out, Family::V6)))
        .with(
            "unix",
            shown(|out| unix::listing::list(&mut |text| out.push(text))),
        );
    datagrams
        .into_iter()
        .fold(table, |table, (name, family, protocol)| {
            table.with(
                name,
                Entry::text(move |out| datagram_sockets(out, family, protocol)),
            )
        })
}

/// The servers for names, as `/etc/resolv.conf` has them.
fn pnp(out: &mut Text) -> Result<()> {
    let resolver = stack().configurator().resolver()?;
    match resolver.told_by {
        Some(_) => writeln!(out, "#PROTO: DHCP"),
        None => writeln!(out, "#MANUAL"),
    }
    if let Ok(domain) = core::str::from_utf8(&resolver.domain)
        && !domain.is_empty()
    {
        writeln!(out, "domain {domain}");
    }
    for server in &resolver.servers {
        writeln!(out, "nameserver {server}");
    }
    if let Some(server) = resolver.told_by {
        writeln!(out, "bootserver {server}");
    }
    Ok(())
}

/// Ends a line that Linux fills with spaces to `width` bytes.
fn pad(out: &mut Text, start: usize, width: usize) {
    let len = out.len() - start;
    writeln!(out, "{:1$}", "", width.saturating_sub(len));
}

/// An address and a port, each word of the address in the machine's order.
fn name(out: &mut Text, family: Family, name: Option<SocketAddr>) {
    let name = name.unwrap_or(SocketAddr::new(family.unspecified(), 0));
    let bytes: &[u8] = match (family, name.ip()) {
        (Family::V4, IpAddr::V4(ip)) => &ip.octets(),
        (Family::V4, IpAddr::V6(_)) => &[0; 4],
        (Family::V6, IpAddr::V4(ip)) => &ip.to_ipv6_mapped().octets(),
        (Family::V6, IpAddr::V6(ip)) => &ip.octets(),
    };
    for word in bytes.chunks_exact(4) {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        write!(out, "{word:08X}");
    }
    write!(out, ":{:04X}", name.port());
}

/// The heading of a list of connections, or of datagram sockets.
fn heading(out: &mut Text, family: Family, datagrams: bool) {
    let start = out.len();
    out.push(match family {
        Family::V4 if datagrams => b"   sl  local_address rem_address   ",
        Family::V4 => b"  sl  local_address rem_address   ",
        Family::V6 => {
            b"  sl  local_address                         remote_address                        "
        }
    });
    out.push(b"st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode");
    if datagrams {
        out.push(b" ref pointer drops");
    }
    pad(out, start, width(family, datagrams));
}

/// The width of its lines.
fn width(family: Family, datagrams: bool) -> usize {
    match family {
        Family::V4 if datagrams => 127,
        Family::V4 => 149,
        Family::V6 => 0,
    }
}

fn tcp_sockets(out: &mut Text, family: Family) -> Result<()> {
    heading(out, family, false);
    let entries = stack().tcp_sockets()?;
    let shown = entries.iter().filter(|entry| {
        let own = entry.socket.as_ref().map(|socket| socket.family());
        own.unwrap_or(Family::of(entry.local.ip())) == family
    });
    for (n, entry) in shown.enumerate() {
        let start = out.len();
        let state = entry.state.unwrap_or(tcp::State::Listen);
        let summary = entry.socket.as_ref().map(|socket| socket.summary());
        write!(out, "{n:4}: ");
        name(out, family, Some(entry.local));
        write!(out, " ");
        name(out, family, entry.remote);
        let (sent, unread) = match (&summary, state) {
            (Some(summary), tcp::State::Listen) => (0, summary.waiting),
            (Some(summary), _) => (summary.unsent, summary.unread),
            (None, _) => (0, 0),
        };
        let number = state_number(state);
        // Timer 3 runs for connections that are over.
        let (timer, when) = match state {
            tcp::State::TimeWait => (
                3,
                entry.left / (1_000_000_000 / u64::from(crate::process::CLOCK_TICKS)),
            ),
            _ => match entry.socket.as_ref().and_then(|socket| socket.info()) {
                Some(info) => (
                    info.timer.into(),
                    info.timer_left / (1_000_000_000 / u64::from(crate::process::CLOCK_TICKS)),
                ),
                None => (0, 0),
            },
        };
        let (user, inode) = summary.map_or((0, 0), |s| (s.options.name.user, s.options.name.tag));
        write!(
            out,
            " {number:02X} {sent:08X}:{unread:08X} {timer:02X}:{when:08X} 00000000 {user:5} {:8} \
             {inode} 1 0000000000000000",
            0
        );
        match state {
            tcp::State::TimeWait => {}
            tcp::State::Listen => write!(out, " 100 0 0 10 0"),
            _ => write!(out, " 20 0 0 10 -1"),
        }
        pad(out, start, width(family, false));
    }
    Ok(())
}

/// Lists the sockets of a protocol. Raw ones show the protocol's number in the port's place.
fn datagram_sockets(out: &mut Text, family: Family, protocol: Protocol) -> Result<()> {
    heading(out, family, true);
    let sockets = stack().datagram_sockets(protocol)?;
    for socket in sockets.iter().filter(|socket| socket.family() == family) {
        let start = out.len();
        let summary = socket.summary();
        let local = match socket.protocol() {
            Protocol::Raw(number) => {
                let address = summary.local.map(|local| local.ip());
                let address = address.unwrap_or(family.unspecified());
                Some(SocketAddr::new(address, number.into()))
            }
            _ => summary.local,
        };
        write!(out, "{:5}: ", local.map_or(0, |local| local.port()));
        name(out, family, local);
        write!(out, " ");
        name(out, family, summary.remote);
        let state = if summary.remote.is_some() { 1 } else { 7 };
        let (user, inode) = (summary.options.name.user, summary.options.name.tag);
        write!(
            out,
            " {state:02X} {:08X}:{:08X} 00:00000000 00000000 {user:5} {:8} {inode} 2 \
             0000000000000000 {}",
            0, summary.unread, 0, summary.dropped
        );
        pad(out, start, width(family, true));
    }
    Ok(())
}

fn packet_sockets(out: &mut Text) {
    writeln!(
        out,
        "sk               RefCnt Type Proto  Iface R Rmem   User   Inode "
    );
    packet::list(|entry| {
        writeln!(
            out,
            "{:016x} {:<6} {:<4} {:04x}   {:<5} {} {:<6} {:<6} {:<6}",
            0,
            2,
            entry.kind,
            entry.protocol,
            entry.interface,
            1,
            entry.waiting,
            entry.owner,
            entry.inode
        );
    });
}

fn netlink_sockets(out: &mut Text) {
    writeln!(
        out,
        "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode"
    );
    netlink::list(|entry| {
        let start = out.len();
        write!(
            out,
            "{:016x} {:<3} {:<10} {:08x} {:<8} {:<8} {:<5} {:<8} {:<8} {:<8}",
            0, 0, entry.port, entry.groups, entry.waiting, 0, 0, 2, 0, entry.inode
        );
        pad(out, start, 0);
    });
}

fn dev(out: &mut Text) {
    writeln!(
        out,
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs \
         drop fifo colls carrier compressed"
    );
    for it in stack().network().interfaces() {
        let counts = interface::traffic(&it);
        write!(out, "{:>6}: ", text(&it));
        writeln!(
            out,
            "{:7} {:7} {:4} {:4}    0     0          0 {:9} {:8} {:7} {:4} {:4}    0     0       0 \
             {:10}",
            counts.received_bytes,
            counts.received_packets,
            counts.received_errors,
            counts.received_dropped,
            counts.received_multicast,
            counts.sent_bytes,
            counts.sent_packets,
            counts.sent_errors,
            counts.sent_dropped,
            0
        );
    }
}

/// The name of an interface. Programs choose it of any bytes but a few.
fn text(interface: &Interface) -> String {
    String::from_utf8_lossy(interface.name().as_bytes()).into_owned()
}

fn name_of(index: u32) -> String {
    let found = stack().network().interface(index);
    found.map_or(String::from("*"), |it| text(&it))
}

/// The bytes of an address as a number of this machine.
fn word(ip: Ipv4Addr) -> u32 {
    u32::from_ne_bytes(ip.octets())
}

fn route(out: &mut Text) -> Result<()> {
    let start = out.len();
    write!(
        out,
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    );
    pad(out, start, 127);
    for entry in stack().network().routes()? {
        let IpAddr::V4(to) = entry.prefix.network() else {
            continue;
        };
        let gateway = match entry.gateway {
            Some(IpAddr::V4(gateway)) => gateway,
            _ => Ipv4Addr::UNSPECIFIED,
        };
        // RTF_UP, RTF_GATEWAY, RTF_HOST, RTF_REJECT.
        let mut flags = 1;
        flags |= u32::from(entry.gateway.is_some()) * 2;
        flags |= u32::from(entry.prefix.bits() == 32) * 4;
        flags |= u32::from(entry.kind != RouteKind::Unicast) * 0x200;
        let start = out.len();
        write!(
            out,
            "{}\t{:08X}\t{:08X}\t{flags:04X}\t0\t0\t{}\t{:08X}\t{}\t0\t0",
            name_of(entry.interface),
            word(to),
            word(gateway),
            entry.metric,
            word(interface::mask_of(entry.prefix.bits())),
            entry.mtu
        );
        pad(out, start, 127);
    }
    Ok(())
}

fn arp(out: &mut Text) -> Result<()> {
    writeln!(
        out,
        "IP address       HW type     Flags       HW address            Mask     Device"
    );
    for it in stack().network().interfaces() {
        for entry in it.neighbour_list()? {
            let IpAddr::V4(ip) = entry.ip else { continue };
            let flags = (u32::from(entry.mac.is_some()) << 1) | (u32::from(entry.is_fixed) << 2);
            let [a, b, c, d, e, f] = entry.mac.map_or([0; 6], |mac| mac.0);
            let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
            writeln!(
                out,
                "{:<16} 0x1         0x{flags:<10x}{mac:<20}  *        {}",
                format!("{ip}"),
                text(&it)
            );
        }
    }
    Ok(())
}

fn hexadecimal(ip: Ipv6Addr) -> String {
    format!("{:032x}", u128::from(ip))
}

fn if_inet6(out: &mut Text) -> Result<()> {
    for it in stack().network().interfaces() {
        for address in it.addresses()? {
            let IpAddr::V6(ip) = address.ip else { continue };
            // Scopes with the numbers of IPv6 inside the kernel: host, link, the world.
            let scope = match scope_of(address.ip) {
                254 => 0x10,
                253 => 0x20,
                _ => 0,
            };
            let flags = match address.state {
                AddressState::Valid if address.valid_until.is_none() => 0x80,
                AddressState::Valid => 0,
                AddressState::Tentative => 0xc0,
                AddressState::Duplicate => 0xc8,
            };
            writeln!(
                out,
                "{} {:02x} {:02x} {scope:02x} {flags:02x} {:>8}",
                hexadecimal(ip),
                it.index(),
                address.prefix.bits(),
                text(&it)
            );
        }
    }
    Ok(())
}

fn ipv6_route(out: &mut Text) -> Result<()> {
    let none = hexadecimal(Ipv6Addr::UNSPECIFIED);
    let mut line = |to, bits, gateway: &str, metric: u32, flags: u32, name: &str| {
        writeln!(
            out,
            "{} {bits:02x} {none} 00 {gateway} {metric:08x} 00000002 00000000 {flags:08x} {name:>8}",
            hexadecimal(to)
        );
    };
    let network = stack().network();
    for entry in network.routes()? {
        let IpAddr::V6(to) = entry.prefix.network() else {
            continue;
        };
        let gateway = match entry.gateway {
            Some(IpAddr::V6(gateway)) => hexadecimal(gateway),
            _ => none.clone(),
        };
        let flags = 1 | (u32::from(entry.gateway.is_some()) << 1);
        let flags = flags | (u32::from(entry.kind != RouteKind::Unicast) << 9);
        let metric = if entry.metric == 0 { 256 } else { entry.metric };
        let name = name_of(entry.interface);
        line(to, entry.prefix.bits(), &gateway, metric, flags, &name);
    }
    for it in network.interfaces() {
        for address in it.addresses()? {
            // RTF_UP, RTF_NONEXTHOP, RTF_LOCAL.
            if let IpAddr::V6(ip) = address.ip {
                line(ip, 128, &none, 0, 0x8020_0001, &text(&it));
            }
        }
    }
    Ok(())
}

/// The groups of each interface: of IPv4, of IPv6, and as addresses of the link.
fn visit_groups(mut visit: impl FnMut(&Interface, IpAddr, u32)) {
    let network = stack().network();
    network.visit_groups(|index, group, members| {
        if let Some(interface) = network.interface(index) {
            visit(&interface, group, members);
        }
    });
}

fn igmp(out: &mut Text) -> Result<()> {
    writeln!(
        out,
        "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter"
    );
    for it in stack().network().interfaces() {
        let mut groups = Vec::new();
        groups.try_reserve(1)?;
        groups.push((Ipv4Addr::new(224, 0, 0, 1), 1));
        let mut result: Result<()> = Ok(());
        visit_groups(|interface, group, members| {
            if let (true, IpAddr::V4(group)) = (interface.index() == it.index(), group) {
                result = result.and(groups.try_reserve(1).map_err(Into::into));
                if groups.len() < groups.capacity() {
                    groups.push((group, members));
                }
            }
        });
        result?;
        let now = nucleus::time::since_boot().as_nanos() as u64;
        let querier = match it.has_old_querier(true, now) {
            true => "V2",
            false => "V3",
        };
        writeln!(
            out,
            "{}\t{:<10}: {:5}      {querier}",
            it.index(),
            text(&it),
            groups.len()
        );
        for (group, members) in groups {
            writeln!(
                out,
                "\t\t\t\t{:08X} {members:5} 0:00000000\t\t0",
                word(group)
            );
        }
    }
    Ok(())
}

fn igmp6(out: &mut Text) {
    visit_groups(|interface, group, members| {
        if let IpAddr::V6(group) = group {
            writeln!(
                out,
                "{:<4} {:<15} {} {members:5} 00000004 0",
                interface.index(),
                text(interface),
                hexadecimal(group)
            );
        }
    });
}

fn dev_mcast(out: &mut Text) {
    visit_groups(|interface, group, members| {
        if interface.mac().is_some() {
            let mac = net::ip::group_mac(group).0;
            let mac: String = mac.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(
                out,
                "{:<4} {:<15} {members:<5} 0     {mac}",
                interface.index(),
                text(interface)
            );
        }
    });
}

/// Sockets in use: of TCP, UDP, UDP-Lite and raw ones for each family, and those of TCP without a
/// descriptor.
fn count() -> Result<([[usize; 2]; 4], usize)> {
    let place = |family| usize::from(family == Family::V6);
    let (mut used, mut over) = ([[0; 2]; 4], 0);
    for entry in stack().tcp_sockets()? {
        match entry.socket {
            Some(socket) => used[0][place(socket.family())] += 1,
            None => over += 1,
        }
    }
    for (protocol, counts) in [Protocol::Udp, Protocol::UdpLite, RAW]
        .into_iter()
        .zip(&mut used[1..])
    {
        for socket in stack().datagram_sockets(protocol)? {
            counts[place(socket.family())] += 1;
        }
    }
    Ok((used, over))
}

fn sockstat(out: &mut Text) -> Result<()> {
    let (used, over) = count()?;
    let all: usize = used.iter().flatten().sum();
    let [[tcp, tcp6], [udp, _], [udp_lite, _], [raw, _]] = used;
    writeln!(out, "sockets: used {all}");
    writeln!(
        out,
        "TCP: inuse {tcp} orphan 0 tw {over} alloc {} mem 0",
        tcp + tcp6
    );
    writeln!(out, "UDP: inuse {udp} mem 0\nUDPLITE: inuse {udp_lite}");
    writeln!(out, "RAW: inuse {raw}\nFRAG: inuse 0 memory 0");
    Ok(())
}

fn sockstat6(out: &mut Text) -> Result<()> {
    let [[_, tcp], [_, udp], [_, udp_lite], [_, raw]] = count()?.0;
    writeln!(out, "TCP6: inuse {tcp}\nUDP6: inuse {udp}");
    writeln!(
        out,
        "UDPLITE6: inuse {udp_lite}\nRAW6: inuse {raw}\nFRAG6: inuse 0 memory 0"
    );
    Ok(())
}

/// `ping_group_range`: two numbers.
fn ping_groups() -> Entry {
    let show = |out: &mut Text| {
        let [first, last] = [0, 1].map(|n| PING_GROUPS[n].load(Relaxed));
        writeln!(out, "{first}\t{last}");
    };
    shown(show).writable(|text| {
        let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
        let mut numbers = text.split_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next().and_then(|it| it.ok()).ok_or(Errno::EINVAL);
        let (first, last) = (next()?, next()?);
        if first.max(last) > i32::MAX as u32 {
            return Err(Errno::EINVAL);
        }
        // Linux takes an empty range for none.
        let (first, last) = if first > last { (1, 0) } else { (first, last) };
        PING_GROUPS[0].store(first, Relaxed);
        PING_GROUPS[1].store(last, Relaxed);
        Ok(())
    })
}

/// `tcp_mem`: three numbers of pages. Buffers grow by themselves up to the second one.
fn tcp_memory() -> String {
    let pressure = net::stream::most_growth() / nucleus::PAGE_SIZE;
    let least = pressure / 4 * 3;
    format!("{least}\t{pressure}\t{}", 2 * least)
}

/// `/proc/sys/net`.
pub fn settings() -> Table {
    let ports = net::ports::EPHEMERAL;
    let ports = format!("{}\t{}", ports.start(), ports.end());
    let core = Table::new()
        .with("netdev_max_backlog", value("1000"))
        .with("optmem_max", value("20480"))
        .with("rmem_default", value("212992"))
        .with("rmem_max", value("212992"))
        .with(
            "somaxconn",
            setting(
                || socket::BACKLOG_MAX.load(Relaxed) as usize,
                |max| socket::BACKLOG_MAX.store(max as u32, Relaxed),
            ),
        )
        .with("wmem_default", value("212992"))
        .with("wmem_max", value("212992"));
    let v4 = Table::new()
        .with("ip_default_ttl", value("64"))
        .with("ip_forward", value("0"))
        .with("ip_local_port_range", value(ports))
        .with("ip_nonlocal_bind", value("0"))
        .with("ip_unprivileged_port_start", value("1024"))
        .with("ping_group_range", ping_groups())
        .with("tcp_available_congestion_control", value("cubic reno"))
        .with("tcp_congestion_control", value("cubic"))
        .with("tcp_fastopen", value("0"))
        .with("tcp_fin_timeout", value("60"))
        .with("tcp_keepalive_intvl", value("75"))
        .with("tcp_keepalive_probes", value("9"))
        .with("tcp_keepalive_time", value("7200"))
        .with("tcp_max_syn_backlog", value("4096"))
        .with("tcp_mem", value(tcp_memory()))
        .with("tcp_moderate_rcvbuf", value("1"))
        .with("tcp_rmem", value("4096\t131072\t6291456"))
        .with("tcp_syn_retries", value("6"))
        .with("tcp_tw_reuse", value("2"))
        .with("tcp_wmem", value("4096\t16384\t4194304"));
    let interface = || Entry::directory(Table::new().with("disable_ipv6", value(0)));
    let conf = Table::new()
        .with("all", interface())
        .with("default", interface())
        .with("lo", interface());
    let v6 = Table::new()
        .with("bindv6only", value("0"))
        .with("conf", Entry::directory(conf));
    Table::new()
        .with("core", Entry::directory(core))
        .with("ipv4", Entry::directory(v4))
        .with("ipv6", Entry::directory(v6))
}
