//! `/proc/net/snmp`, `snmp6` and `netstat`: the counters of the protocols.
//!
//! Events without a counter are 0.

use abi::Result;
use fs::pseudofs::Text;
use net::counters::Counter;
use net::tcp;

use crate::socket::inet::stack;

/// A line of names and a line of numbers.
fn lines(out: &mut Text, title: &str, names: &str, value: impl Fn(&str) -> i64) {
    writeln!(out, "{title}: {names}");
    write!(out, "{title}:");
    for name in names.split_whitespace() {
        write!(out, " {}", value(name));
    }
    writeln!(out);
}

fn total(counter: Counter) -> i64 {
    counter.total() as i64
}

/// A counter without the part that is IPv6's.
fn v4(all: Counter, v6: Counter) -> i64 {
    total(all).saturating_sub(total(v6)).max(0)
}

const IP: &str = "Forwarding DefaultTTL InReceives InHdrErrors InAddrErrors ForwDatagrams \
    InUnknownProtos InDiscards InDelivers OutRequests OutDiscards OutNoRoutes ReasmTimeout \
    ReasmReqds ReasmOKs ReasmFails FragOKs FragFails FragCreates";
const ICMP: &str = "InMsgs InErrors InCsumErrors InDestUnreachs InTimeExcds InParmProbs \
    InSrcQuenchs InRedirects InEchos InEchoReps InTimestamps InTimestampReps InAddrMasks \
    InAddrMaskReps OutMsgs OutErrors OutRateLimitGlobal OutRateLimitHost OutDestUnreachs \
    OutTimeExcds OutParmProbs OutSrcQuenchs OutRedirects OutEchos OutEchoReps OutTimestamps \
    OutTimestampReps OutAddrMasks OutAddrMaskReps";
const TCP: &str = "RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails \
    EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors";
const UDP: &str = "InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors \
    InCsumErrors IgnoredMulti MemErrors";
const IP_EXT: &str = "InNoRoutes InTruncatedPkts InMcastPkts OutMcastPkts InBcastPkts \
    OutBcastPkts InOctets OutOctets InMcastOctets OutMcastOctets InBcastOctets OutBcastOctets \
    InCsumErrors InNoECTPkts InECT1Pkts InECT0Pkts InCEPkts ReasmOverlaps";
const TCP_EXT: &str = "ListenOverflows ListenDrops";

/// ICMP's own messages and those that tell of a port without a socket.
fn icmp_messages() -> i64 {
    total(Counter::icmp_messages) + v4(Counter::udp_no_port, Counter::udp_no_port_v6)
}

/// `/proc/net/snmp`.
pub fn snmp(out: &mut Text) -> Result<()> {
    let packets = v4(Counter::loopback_packets, Counter::loopback_packets_v6);
    let received = packets + v4(Counter::ip_received, Counter::ip_received_v6);
    let refused = total(Counter::ip_refused);
    lines(out, "Ip", IP, |name| match name {
        "Forwarding" => 2,
        "DefaultTTL" => 64,
        "InReceives" => received,
        "InAddrErrors" => refused,
        "InDelivers" => (received - refused).max(0),
        "OutRequests" => packets + v4(Counter::ip_sent, Counter::ip_sent_v6),
        "ReasmReqds" => total(Counter::ip_fragments_received),
        "ReasmOKs" => total(Counter::ip_reassembled),
        "FragCreates" => total(Counter::ip_fragments_sent),
        _ => 0,
    });
    let unreachable = v4(Counter::udp_no_port, Counter::udp_no_port_v6);
    lines(out, "Icmp", ICMP, |name| match name {
        "InMsgs" | "OutMsgs" => icmp_messages(),
        "InErrors" | "InCsumErrors" => total(Counter::icmp_errors),
        "InDestUnreachs" | "OutDestUnreachs" => unreachable,
        "InEchos" | "OutEchos" => total(Counter::icmp_echo_requests),
        "InEchoReps" | "OutEchoReps" => total(Counter::icmp_echo_replies),
        _ => 0,
    });
    let types = [
        (0, total(Counter::icmp_echo_replies)),
        (3, unreachable),
        (8, total(Counter::icmp_echo_requests)),
    ];
    write!(out, "IcmpMsg:");
    for way in ["In", "Out"] {
        for (kind, _) in types.iter().filter(|(_, count)| *count != 0) {
            write!(out, " {way}Type{kind}");
        }
    }
    write!(out, "\nIcmpMsg:");
    for _ in ["In", "Out"] {
        for (_, count) in types.iter().filter(|(_, count)| *count != 0) {
            write!(out, " {count}");
        }
    }
    writeln!(out);
    let established = stack().tcp_sockets()?.iter().fold(0, |n, entry| {
        let counts = matches!(
            entry.state,
            Some(tcp::State::Established | tcp::State::CloseWait)
        );
        n + i64::from(counts)
    });
    lines(out, "Tcp", TCP, |name| match name {
        "RtoAlgorithm" => 1,
        "RtoMin" => 200,
        "RtoMax" => 120_000,
        "MaxConn" => -1,
        "ActiveOpens" => total(Counter::tcp_active_opens),
        "PassiveOpens" => total(Counter::tcp_passive_opens),
        "AttemptFails" => total(Counter::tcp_attempt_failures),
        "EstabResets" => total(Counter::tcp_established_resets),
        "CurrEstab" => established,
        "InSegs" | "OutSegs" => total(Counter::tcp_segments),
        "RetransSegs" => total(Counter::tcp_segments_repeated),
        "OutRsts" => total(Counter::tcp_resets_sent),
        _ => 0,
    });
    lines(out, "Udp", UDP, |name| match name {
        "InDatagrams" => v4(Counter::udp_received, Counter::udp_received_v6),
        "NoPorts" => unreachable,
        "InErrors" | "RcvbufErrors" => v4(Counter::udp_dropped, Counter::udp_dropped_v6),
        "OutDatagrams" => v4(Counter::udp_sent, Counter::udp_sent_v6),
        _ => 0,
    });
    Ok(())
}

/// `/proc/net/snmp6`.
pub fn snmp6(out: &mut Text) {
    let packets = total(Counter::loopback_packets_v6);
    let received = packets + total(Counter::ip_received_v6);
    let sent = packets + total(Counter::ip_sent_v6);
    let unreachable = total(Counter::udp_no_port_v6);
    let messages = total(Counter::icmp6_messages) + unreachable;
    let requests = total(Counter::icmp6_echo_requests);
    let replies = total(Counter::icmp6_echo_replies);
    for (name, value) in [
        ("Ip6InReceives", received),
        ("Ip6InDelivers", received),
        ("Ip6OutRequests", sent),
        ("Icmp6InMsgs", messages),
        ("Icmp6OutMsgs", messages),
        ("Icmp6InDestUnreachs", unreachable),
        ("Icmp6InEchos", requests),
        ("Icmp6InEchoReplies", replies),
        ("Icmp6OutDestUnreachs", unreachable),
        ("Icmp6OutEchos", requests),
        ("Icmp6OutEchoReplies", replies),
        ("Udp6InDatagrams", total(Counter::udp_received_v6)),
        ("Udp6NoPorts", unreachable),
        ("Udp6InErrors", total(Counter::udp_dropped_v6)),
        ("Udp6OutDatagrams", total(Counter::udp_sent_v6)),
        ("Udp6RcvbufErrors", total(Counter::udp_dropped_v6)),
    ] {
        writeln!(out, "{name:<32}\t{value}");
    }
}

/// `/proc/net/netstat`.
pub fn netstat(out: &mut Text) {
    lines(out, "TcpExt", TCP_EXT, |_| {
        total(Counter::tcp_listen_overflows)
    });
    let packets = v4(Counter::loopback_packets, Counter::loopback_packets_v6);
    lines(out, "IpExt", IP_EXT, |name| match name {
        "InOctets" => total(Counter::loopback_bytes) + total(Counter::ip_received_bytes),
        "OutOctets" => total(Counter::loopback_bytes) + total(Counter::ip_sent_bytes),
        "InNoECTPkts" => packets,
        _ => 0,
    });
}

/// `/proc/causeway/network`: bytes of cards by direction, passed and copied; checksums by whom,
/// segments that were cut; bytes of large calls by what became of them.
pub fn network(out: &mut Text) {
    use crate::counters::Counter as Own;
    for (name, counter) in [
        ("sent_bytes_passed", Own::card_sent_passed),
        ("sent_bytes_copied", Own::card_sent_copied),
        ("received_bytes_passed", Own::card_received_passed),
        ("received_bytes_copied", Own::card_received_copied),
    ] {
        writeln!(out, "{name} {}", counter.total());
    }
    for (name, counter) in [
        ("loopback_bytes", Counter::loopback_bytes),
        ("sums_made_by_kernel", Counter::sums_made),
        ("sums_made_by_device", Counter::sums_left_to_device),
        ("sums_checked_by_kernel", Counter::sums_checked),
        ("sums_checked_by_device", Counter::sums_checked_by_device),
        ("segments_cut_by_device", Counter::segments_cut),
        ("segments_repeated", Counter::tcp_segments_repeated),
        ("fragments_sent", Counter::ip_fragments_sent),
        ("fragments_received", Counter::ip_fragments_received),
        ("packets_reassembled", Counter::ip_reassembled),
    ] {
        writeln!(out, "{name} {}", total(counter));
    }
    // What is copied between programs and the kernel, by call.
    for (call, bytes) in vm::moved_bytes() {
        for (way, bytes) in vm::MOVED_NAMES.iter().zip(bytes) {
            writeln!(out, "{call}_{way} {bytes}");
        }
    }
}
