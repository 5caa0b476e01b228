//! Counters of protocols: see [`nucleus::counters`].

// Places are left free for the counters of `fs`, which stands beside this crate.
nucleus::counters! {
    from fbuf::counters::END + 16;
    /// Packets over the loopback interface: segments, datagrams, and writes that took their place.
    loopback_packets,
    /// Bytes of data over it.
    loopback_bytes,
    /// Packets of IPv6 among them.
    loopback_packets_v6,
    /// Segments of TCP among them, and writes that took their place.
    tcp_segments,
    /// Connections that were asked for.
    tcp_active_opens,
    /// Connections that were asked for at a listener.
    tcp_passive_opens,
    /// Connections that did not come about.
    tcp_attempt_failures,
    /// Connections that were ended by a reset.
    tcp_established_resets,
    /// Resets sent.
    tcp_resets_sent,
    /// Requests for a connection for which a listener had no room.
    tcp_listen_overflows,
    /// Datagrams of UDP that were sent.
    udp_sent,
    /// Those of IPv6 among them.
    udp_sent_v6,
    /// Datagrams put into a socket's queue.
    udp_received,
    /// Those of IPv6 among them.
    udp_received_v6,
    /// Datagrams to ports without a socket.
    udp_no_port,
    /// Those of IPv6 among them.
    udp_no_port_v6,
    /// Datagrams for which a socket had no room.
    udp_dropped,
    /// Those of IPv6 among them.
    udp_dropped_v6,
    /// Messages of ICMP, each sent and received.
    icmp_messages,
    /// Requests for an echo among them.
    icmp_echo_requests,
    /// Echoes among them.
    icmp_echo_replies,
    /// Messages of ICMP that were wrong.
    icmp_errors,
    /// Packets of IP that arrived at other interfaces than loopback.
    ip_received,
    /// Those of IPv6 among them.
    ip_received_v6,
    /// Bytes of all of them.
    ip_received_bytes,
    /// Packets with a wrong header, or for other machines.
    ip_refused,
    /// Packets that were sent at other interfaces than loopback.
    ip_sent,
    /// Those of IPv6 among them.
    ip_sent_v6,
    /// Bytes of all of them.
    ip_sent_bytes,
    /// Fragments that arrived, and packets that were made of them.
    ip_fragments_received,
    /// See above.
    ip_reassembled,
    /// Fragments that were sent.
    ip_fragments_sent,
    /// Transport checksums that the kernel made.
    sums_made,
    /// Those that were left to the device.
    sums_left_to_device,
    /// Transport checksums that the kernel checked.
    sums_checked,
    /// Those that the device had checked.
    sums_checked_by_device,
    /// Segments into which devices cut packets.
    segments_cut,
    /// Segments of TCP that were sent again.
    tcp_segments_repeated,
    /// Messages of ICMP for IPv6.
    icmp6_messages,
    /// Requests for an echo among them.
    icmp6_echo_requests,
    /// Echoes among them.
    icmp6_echo_replies,
}
