//! `/proc/net`: sockets, the loopback interface and its addresses; `/proc/sys/net`.

use core::{
    net::{IpAddr, SocketAddr},
    sync::atomic::Ordering::Relaxed,
};

use fs::pseudofs::{Entry, Table, Text};
use net::{Family, datagram::Protocol, tcp};
use nucleus::counters::Counter;

use super::{
    counts,
    sys::{number, setting, value},
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
    let file = |show: fn(&mut Text)| {
        Entry::text(move |out| {
            show(out);
            Ok(())
        })
    };
    Table::new()
        .with("arp", file(arp))
        .with("dev", file(dev))
        .with("if_inet6", file(if_inet6))
        .with("ipv6_route", file(ipv6_route))
        .with("netlink", file(netlink_sockets))
        .with("netstat", file(counts::netstat))
        .with("raw", file(|out| datagram_sockets(out, Family::V4, RAW)))
        .with("raw6", file(|out| datagram_sockets(out, Family::V6, RAW)))
        .with("route", file(route))
        .with("snmp", file(counts::snmp))
        .with("snmp6", file(counts::snmp6))
        .with("sockstat", file(sockstat))
        .with("sockstat6", file(sockstat6))
        .with("tcp", file(|out| tcp_sockets(out, Family::V4)))
        .with("tcp6", file(|out| tcp_sockets(out, Family::V6)))
        .with(
            "udp",
            file(|out| datagram_sockets(out, Family::V4, Protocol::Udp)),
        )
        .with(
            "udp6",
            file(|out| datagram_sockets(out, Family::V6, Protocol::Udp)),
        )
        .with(
            "udplite",
            file(|out| datagram_sockets(out, Family::V4, Protocol::UdpLite)),
        )
        .with(
            "udplite6",
            file(|out| datagram_sockets(out, Family::V6, Protocol::UdpLite)),
        )
        .with("unix", file(|out| out.push(&unix::listing::text())))
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

fn tcp_heading(out: &mut Text, family: Family) {
    let start = out.len();
    if family == Family::V6 {
        writeln!(
            out,
            "  sl  local_address                         remote_address                        \
             st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
        );
        return;
    }
    write!(
        out,
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
         timeout inode"
    );
    pad(out, start, 149);
}

fn tcp_sockets(out: &mut Text, family: Family) {
    tcp_heading(out, family);
    let entries = stack().tcp_sockets();
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
        let (user, inode) = summary.map_or((0, 0), |s| (s.options.user, s.options.tag));
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
        pad(out, start, if family == Family::V4 { 149 } else { 0 });
    }
}

fn udp_heading(out: &mut Text, family: Family) {
    let start = out.len();
    if family == Family::V6 {
        writeln!(
            out,
            "  sl  local_address                         remote_address                        \
             st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops"
        );
        return;
    }
    write!(
        out,
        "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  \
         timeout inode ref pointer drops"
    );
    pad(out, start, 127);
}

/// Lists the sockets of a protocol. Raw ones show the protocol's number in the port's place.
fn datagram_sockets(out: &mut Text, family: Family, protocol: Protocol) {
    udp_heading(out, family);
    let sockets = stack().datagram_sockets(protocol);
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
        let (user, inode) = (summary.options.user, summary.options.tag);
        write!(
            out,
            " {state:02X} {:08X}:{:08X} 00:00000000 00000000 {user:5} {:8} {inode} 2 \
             0000000000000000 {}",
            0, summary.unread, 0, summary.dropped
        );
        pad(out, start, if family == Family::V4 { 127 } else { 0 });
    }
}

fn netlink_sockets(out: &mut Text) {
    writeln!(
        out,
        "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode"
    );
    for entry in netlink::list() {
        let start = out.len();
        write!(
            out,
            "{:016x} {:<3} {:<10} {:08x} {:<8} {:<8} {:<5} {:<8} {:<8} {:<8}",
            0, 0, entry.port, entry.groups, entry.waiting, 0, 0, 2, 0, entry.inode
        );
        pad(out, start, 0);
    }
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

/// Sockets in use: of TCP in all states, and of those without a descriptor.
struct Count {
    tcp: [usize; 2],
    over: usize,
    udp: [usize; 2],
    udp_lite: [usize; 2],
    raw: [usize; 2],
}

fn count() -> Count {
    let place = |family| usize::from(family == Family::V6);
    let mut count = Count {
        tcp: [0; 2],
        over: 0,
        udp: [0; 2],
        udp_lite: [0; 2],
        raw: [0; 2],
    };
    for entry in stack().tcp_sockets() {
        match entry.socket {
            Some(socket) => count.tcp[place(socket.family())] += 1,
            None => count.over += 1,
        }
    }
    for (protocol, counts) in [
        (Protocol::Udp, &mut count.udp),
        (Protocol::UdpLite, &mut count.udp_lite),
        (RAW, &mut count.raw),
    ] {
        for socket in stack().datagram_sockets(protocol) {
            counts[place(socket.family())] += 1;
        }
    }
    count
}

fn sockstat(out: &mut Text) {
    let Count {
        tcp,
        over,
        udp,
        udp_lite,
        raw,
    } = count();
    let all: usize = [tcp, udp, udp_lite, raw].into_iter().flatten().sum();
    writeln!(out, "sockets: used {all}");
    writeln!(
        out,
        "TCP: inuse {} orphan 0 tw {over} alloc {} mem 0",
        tcp[0],
        tcp[0] + tcp[1]
    );
    writeln!(out, "UDP: inuse {} mem 0", udp[0]);
    writeln!(
        out,
        "UDPLITE: inuse {}\nRAW: inuse {}\nFRAG: inuse 0 memory 0",
        udp_lite[0], raw[0]
    );
}

fn sockstat6(out: &mut Text) {
    let Count {
        tcp,
        udp,
        udp_lite,
        raw,
        ..
    } = count();
    writeln!(out, "TCP6: inuse {}\nUDP6: inuse {}", tcp[1], udp[1]);
    writeln!(
        out,
        "UDPLITE6: inuse {}\nRAW6: inuse {}\nFRAG6: inuse 0 memory 0",
        udp_lite[1], raw[1]
    );
}

/// `/proc/sys/net`.
pub fn settings() -> Table {
    let ephemeral = || {
        let ports = net::ports::EPHEMERAL;
        Entry::text(move |out| {
            writeln!(out, "{}\t{}", ports.start(), ports.end());
            Ok(())
        })
    };
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
        .with("ip_local_port_range", ephemeral())
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
    let interface = || {
        let conf = Table::new().with("disable_ipv6", number(0));
        Entry::directory(conf)
    };
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
