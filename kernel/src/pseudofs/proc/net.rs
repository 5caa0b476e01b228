//! `/proc/net`: sockets, the loopback interface and its addresses; `/proc/sys/net`.

use alloc::format;
use core::{
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering::Relaxed,
};

use abi::Result;
use fs::pseudofs::{Entry, Table, Text};
use net::counters::Counter;
use net::{Family, datagram::Protocol, tcp};

use super::{
    super::{shown, value},
    counts,
    sys::setting,
};
use crate::socket::{
    self,
    inet::{stack, state_number},
    netlink, unix,
};

/// Raw sockets of all numbers.
const RAW: Protocol = Protocol::Raw(0);

/// `/proc/PID/net`: the same for all, since there is one network.
pub fn directory() -> Table {
    let datagrams = [
        ("raw", Family::V4, RAW),
        ("raw6", Family::V6, RAW),
        ("udp", Family::V4, Protocol::Udp),
        ("udp6", Family::V6, Protocol::Udp),
        ("udplite", Family::V4, Protocol::UdpLite),
        ("udplite6", Family::V6, Protocol::UdpLite),
    ];
    let table = Table::new()
        .with("arp", shown(arp))
        .with("dev", shown(dev))
        .with("if_inet6", shown(if_inet6))
        .with("ipv6_route", shown(ipv6_route))
        .with("netlink", shown(netlink_sockets))
        .with("netstat", shown(counts::netstat))
        .with("pnp", Entry::text(pnp))
        .with("route", shown(route))
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
            _ => (0, 0),
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
    let bytes = Counter::loopback_bytes.total();
    let packets = Counter::loopback_packets.total();
    writeln!(
        out,
        "Inter-|   Receive                                                |  Transmit\n \
         face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs \
         drop fifo colls carrier compressed"
    );
    writeln!(
        out,
        "    lo: {bytes:7} {packets:7}    0    0    0     0          0         0 {bytes:8} \
         {packets:7}    0    0    0     0       0          0"
    );
}

fn route(out: &mut Text) {
    let start = out.len();
    write!(
        out,
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
    );
    pad(out, start, 127);
}

fn arp(out: &mut Text) {
    writeln!(
        out,
        "IP address       HW type     Flags       HW address            Mask     Device"
    );
}

fn if_inet6(out: &mut Text) {
    writeln!(out, "00000000000000000000000000000001 01 80 10 80       lo");
}

fn ipv6_route(out: &mut Text) {
    let (own, none) = (1, 0);
    writeln!(
        out,
        "{own:032x} 80 {none:032x} 00 {none:032x} 00000000 00000002 00000000 80200001       lo"
    );
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
        .with("ping_group_range", value("1\t0"))
        .with("tcp_available_congestion_control", value("cubic reno"))
        .with("tcp_congestion_control", value("cubic"))
        .with("tcp_fastopen", value("0"))
        .with("tcp_fin_timeout", value("60"))
        .with("tcp_keepalive_intvl", value("75"))
        .with("tcp_keepalive_probes", value("9"))
        .with("tcp_keepalive_time", value("7200"))
        .with("tcp_max_syn_backlog", value("4096"))
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
