//! Datagrams, echoes and packets that come from other machines, and messages about those that were
//! sent there.

use core::net::SocketAddr;

use abi::Errno;
use fbuf::{Aggregate, BytesSource};
use nucleus::{sync::Mutex, time};

use super::{
    Datagram, ErrorReport, Protocol, Socket, SocketTable,
    packets::Shown,
    send::{CHECKSUM, HEADER},
    table::Receivers,
};
use crate::{
    counters::Counter,
    ip::{Received, Refusal, Report},
};

/// Takes a packet of UDP for the sockets of a table.
pub(crate) fn receive(table: &Mutex<SocketTable>, packet: &mut Received) -> Option<Refusal> {
    let header: [u8; HEADER] = *packet.first(HEADER).first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (from, to, len) = (word(0), word(2), usize::from(word(4)));
    // The datagram fills its packet; only IPv4 may go without a checksum.
    let is_unsummed = word(CHECKSUM) == 0;
    packet.is_right |= is_unsummed && packet.from.is_ipv4();
    let is_wrong = is_unsummed && packet.from.is_ipv6() && !packet.is_right;
    if len != packet.data.len() || to == 0 || is_wrong || !packet.is_intact() {
        return None;
    }
    let (from, to) = (
        SocketAddr::new(packet.from, from),
        SocketAddr::new(packet.to, to),
    );
    let receivers = table
        .lock()
        .receivers_of(from, to, packet.is_for_many, packet.interface);
    if receivers.is_empty() {
        Counter::udp_no_port.add(1);
        Counter::udp_no_port_v6.add(to.is_ipv6().into());
        return Some(Refusal::Port);
    }
    packet.data.clip_front(HEADER);
    receivers.enqueue(datagram(packet, from, to));
    None
}

/// Makes a datagram of what a packet has.
fn datagram(packet: &mut Received, from: SocketAddr, to: SocketAddr) -> Datagram {
    Datagram {
        data: core::mem::take(&mut packet.data),
        from,
        to,
        at: time::since_epoch(),
        service: packet.service,
        hops: packet.hops,
        coverage: 0,
        interface: packet.interface,
    }
}

/// Takes an echo reply for the socket with its identifier.
pub(crate) fn receive_echo(table: &Mutex<SocketTable>, packet: &mut Received) {
    let Some(header) = packet.first(HEADER).first_chunk::<HEADER>() else {
        return;
    };
    let identifier = u16::from_be_bytes([header[4], header[5]]);
    let (from, to) = (
        SocketAddr::new(packet.from, 0),
        SocketAddr::new(packet.to, identifier),
    );
    let datagram = datagram(packet, from, to);
    let receivers = table.lock().receivers_of(
        datagram.from,
        datagram.to,
        packet.is_for_many,
        packet.interface,
    );
    receivers.enqueue(datagram);
}

/// Shows a packet to the raw sockets of its protocol; `header` is that of IPv4. Returns whether
/// there are any.
pub(crate) fn show_raw(table: &Mutex<SocketTable>, packet: &Received, header: &[u8]) -> bool {
    // Not of the headers that were copied, which long ones of IPv6 may fill.
    let mut kind = [0];
    packet.data.peek(0, &mut kind);
    let shown = Shown {
        from: packet.from,
        to: packet.to,
        protocol: packet.protocol,
        // An empty packet counts as one of type 0.
        kind: Some(kind[0]),
        interface: packet.interface,
    };
    let receivers = table.lock().packet_receivers(&shown);
    if receivers.is_empty() {
        return false;
    }
    let mut data = Aggregate::new();
    let mut payload = packet.data.clone();
    let n = header.len();
    let filled = data.fill_from(&mut BytesSource::new(header), n);
    if filled == Ok(n) && data.join(&mut payload).is_ok() {
        receivers.enqueue(Datagram {
            data,
            from: SocketAddr::new(packet.from, 0),
            to: SocketAddr::new(packet.to, 0),
            at: time::since_epoch(),
            service: packet.service,
            hops: packet.hops,
            coverage: 0,
            interface: packet.interface,
        });
    }
    true
}

/// Tells the socket that sent a datagram what became of it; `quote` is what the message repeats of
/// its payload.
pub(crate) fn take_report(table: &Mutex<SocketTable>, report: &Report, quote: &[u8]) {
    if let Some(socket) = senders(table, report).first() {
        socket.hear(report, quote);
    }
}

/// Returns the socket that may have sent the datagram that a message is about.
fn senders(table: &Mutex<SocketTable>, report: &Report) -> Receivers {
    let table = table.lock();
    table.receivers_of(report.to, report.from, false, 0)
}

/// Tells whether a socket may have sent the datagram that a message is about.
pub(crate) fn has_sender(table: &Mutex<SocketTable>, report: &Report) -> bool {
    !senders(table, report).is_empty()
}

/// Returns the raw sockets that may have sent the packet that a message is about.
fn raw_senders(table: &Mutex<SocketTable>, report: &Report) -> Receivers {
    let shown = Shown {
        from: report.to.ip(),
        to: report.from.ip(),
        protocol: report.protocol,
        kind: None,
        interface: 0,
    };
    table.lock().packet_receivers(&shown)
}

/// As [`has_sender`], for raw sockets.
pub(crate) fn has_raw_sender(table: &Mutex<SocketTable>, report: &Report) -> bool {
    !raw_senders(table, report).is_empty()
}

/// Tells the raw sockets of a protocol what became of a packet.
pub(crate) fn take_raw_report(table: &Mutex<SocketTable>, report: &Report, quote: &[u8]) {
    raw_senders(table, report).visit(|socket| socket.hear(report, quote));
}

impl Socket {
    /// Takes a message about something that it has sent.
    fn hear(&self, report: &Report, quote: &[u8]) {
        let (is_peer, hears) = {
            let inner = self.inner();
            let is_peer = match self.protocol() {
                Protocol::Raw(_) => inner.remote.is_some(),
                Protocol::Ping => inner.remote.is_some_and(|it| it.ip() == report.to.ip()),
                _ => inner.remote == Some(report.to),
            };
            (is_peer, inner.options.receive_errors)
        };
        let error: Errno = report.error();
        if hears {
            let mut data = Aggregate::new();
            if data.fill_from(&mut BytesSource::new(quote), quote.len()) != Ok(quote.len()) {
                return;
            }
            let report = ErrorReport {
                error,
                data,
                to: report.to,
                offender: report.offender,
                kind: report.kind,
                code: report.code,
                info: report.info,
            };
            self.fail(error, Some(report));
        } else if is_peer && report.is_final() {
            self.fail(error, None);
        }
    }
}
