//! Sending datagrams.

use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use crate::counters::Counter;
use abi::{Errno, Result};
use fbuf::{Aggregate, Source};
use nucleus::time;

use super::{Datagram, ErrorReport, Options, Protocol, Socket, table};
use crate::{
    ip::{self, LOOPBACK, Network, Route, Sending},
    link,
    packet::Head,
    timer::now,
};

/// The longest datagram in bytes: what an IPv4 header can describe, less the headers.
pub const MAX_V4: usize = 65507;
/// The longest datagram over IPv6.
pub const MAX_V6: usize = 65527;
/// Bytes of a UDP header.
pub(super) const HEADER: usize = 8;
/// The place of the checksum.
pub(super) const CHECKSUM: usize = 6;

/// The route of a socket's last datagram to one machine, until the configuration changes. What
/// changes with time only, as the MTUs of paths and which source is preferred, is looked up again
/// at `until`.
pub(super) struct KeptRoute {
    to: IpAddr,
    by: Option<u32>,
    until: u64,
    route: Route,
}

/// The time for which it holds, in nanoseconds.
const KEPT: u64 = 1_000_000_000;

/// How a datagram is sent.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions {
    /// The destination, if it is not the socket's peer.
    pub to: Option<SocketAddr>,
    /// The source, one of this machine's addresses, if it is not the usual one.
    pub from: Option<IpAddr>,
    /// Type of service, or traffic class.
    pub service: u8,
    /// Time to live, or hop limit.
    pub hops: u8,
    /// The number of the interface where it leaves; 0 leaves that to the socket and the routes.
    pub interface: u32,
}

/// Chooses the source address of a datagram: `from` if the caller gave it, else the socket's own
/// address, else the `usual` one for the destination.
pub(super) fn choose_source(
    network: &Network,
    from: Option<IpAddr>,
    local: Option<SocketAddr>,
    usual: IpAddr,
    to: IpAddr,
) -> Result<IpAddr> {
    let ip = match (from, local.map(|local| local.ip())) {
        (Some(ip), _) if !network.is_own(ip) => return Err(Errno::EINVAL),
        (Some(ip), _) => ip,
        (None, Some(ip)) if !ip.is_unspecified() && !ip.is_multicast() => ip,
        (None, _) => usual,
    };
    if ip.is_ipv4() == to.is_ipv4() {
        Ok(ip)
    } else {
        Err(Errno::ENETUNREACH)
    }
}

impl Socket {
    /// Sends all bytes of the source as one datagram. Messages of ICMP for IPv6 get their checksum.
    ///
    /// # Errors
    /// `EDESTADDRREQ`, `EMSGSIZE`, `EPIPE` after shutting, `EINVAL` for port 0 and for a source
    /// that is not this machine's, `ENETUNREACH`, `EACCES`, `EAGAIN` when no port is left, the
    /// pending error, that of the source, `ENOMEM`.
    pub fn send(self: &Arc<Socket>, data: &mut dyn Source, how: SendOptions) -> Result<usize> {
        // Errors of the call come before those of the socket.
        let (options, remote, to) = {
            let mut inner = self.inner();
            let to = how.to.or(inner.remote).ok_or(Errno::EDESTADDRREQ)?;
            let longest = if to.is_ipv4() { MAX_V4 } else { MAX_V6 };
            let is_raw = matches!(self.protocol(), Protocol::Raw(_));
            if data.left() > longest && !is_raw {
                return Err(Errno::EMSGSIZE);
            }
            if let Some(error) = inner.error.take() {
                return Err(error);
            }
            if inner.write_shut {
                return Err(Errno::EPIPE);
            }
            (inner.options, inner.remote, ip::destination(to))
        };
        match self.protocol() {
            Protocol::Raw(number) => {
                return self.send_packet(number, to.ip(), data, &options, how);
            }
            Protocol::Ping => return self.send_echo(to.ip(), data, &options, how),
            Protocol::Udp | Protocol::UdpLite => {}
        }
        self.send_datagram(to, remote == Some(to), data, &options, how)
    }

    /// Returns the usual source of datagrams to `to`, and the way there unless that is this
    /// machine. `interface` is the number of the one where they leave, 0 for any.
    ///
    /// # Errors
    /// `ENETUNREACH`; `EACCES` for a broadcast address that the socket must not send to.
    pub(super) fn way(
        &self,
        options: &Options,
        to: IpAddr,
        interface: u32,
    ) -> Result<(IpAddr, Option<Route>)> {
        let mut by = [interface, options.name.interface]
            .into_iter()
            .find(|it| *it != 0);
        if let Some(route) = self.kept_route(to, by) {
            return Ok((route.source, Some(route)));
        }
        match table::source(options, to) {
            Err(Errno::ENETUNREACH) => {}
            local => return local.map(|source| (source, None)),
        }
        if self.network.is_own(to) {
            return Ok((to, None));
        }
        // UDP-Lite has no packets.
        if self.protocol() == Protocol::UdpLite {
            return Err(Errno::ENETUNREACH);
        }
        if to.is_multicast() && by.is_none() && options.multicast_interface != 0 {
            by = Some(options.multicast_interface);
        }
        let route = self.network.route_by(to, by)?;
        let is_broadcast = matches!(to, IpAddr::V4(to) if route.interface.is_broadcast(to));
        if is_broadcast && !options.broadcast {
            return Err(Errno::EACCES);
        }
        if !is_broadcast && !to.is_multicast() {
            let kept = KeptRoute {
                to,
                by,
                until: now() + KEPT,
                route: route.clone(),
            };
            let old = self.route.lock().replace(kept);
            drop(old);
        }
        Ok((route.source, Some(route)))
    }

    /// Returns the route of the last datagram if it is that to `to`.
    fn kept_route(&self, to: IpAddr, by: Option<u32>) -> Option<Route> {
        let kept = self.route.lock();
        let kept = kept
            .as_ref()
            .filter(|kept| kept.to == to && kept.by == by)?;
        let holds = self.network.is_current(&kept.route) && now() < kept.until;
        holds.then(|| kept.route.clone())
    }

    /// Sends a datagram to another machine.
    fn send_on(
        &self,
        route: &Route,
        from: SocketAddr,
        to: SocketAddr,
        data: Aggregate,
        how: SendOptions,
        is_whole: bool,
    ) -> Result<()> {
        let mut head = Head::default();
        let header = head.push(HEADER);
        let len = (HEADER + data.len()) as u16;
        header[..2].copy_from_slice(&from.port().to_be_bytes());
        header[2..4].copy_from_slice(&to.port().to_be_bytes());
        header[4..6].copy_from_slice(&len.to_be_bytes());
        Counter::udp_sent.add(1);
        Counter::udp_sent_v6.add(to.is_ipv6().into());
        let sending = Sending {
            from: from.ip(),
            to: to.ip(),
            protocol: ip::UDP,
            service: how.service,
            hops: how.hops,
            checksum: Some(CHECKSUM),
            is_whole,
        };
        self.network.send(route, sending, head, data, 0)
    }

    /// Gives a datagram to a group to the members on this machine.
    fn loop_back(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        data: Aggregate,
        how: SendOptions,
        interface: u32,
    ) {
        let receivers = self.table().receivers_of(from, to, true, interface);
        receivers.enqueue(Datagram {
            data,
            from,
            to,
            at: time::since_epoch(),
            service: how.service,
            hops: how.hops,
            coverage: 0,
            interface,
        });
    }

    /// Reports that a datagram was larger than its path takes.
    fn report_too_big(&self, to: SocketAddr, mtu: u16) {
        let report = ErrorReport {
            error: Errno::EMSGSIZE,
            data: Aggregate::new(),
            to,
            offender: None,
            kind: 0,
            code: 0,
            info: mtu.into(),
        };
        self.fail(Errno::EMSGSIZE, Some(report));
        // The call says it, too.
        self.inner().error = None;
    }

    fn send_datagram(
        self: &Arc<Socket>,
        to: SocketAddr,
        to_peer: bool,
        data: &mut dyn Source,
        options: &Options,
        how: SendOptions,
    ) -> Result<usize> {
        let len = data.left();
        if to.port() == 0 {
            return Err(Errno::EINVAL);
        }
        let (usual, route) = self.way(options, to.ip(), how.interface)?;
        self.ensure_name()?;
        let local = self.inner().local.ok_or(Errno::EINVAL)?;
        let ip = choose_source(&self.network, how.from, Some(local), usual, to.ip())?;
        let mut bytes = Aggregate::new();
        if bytes.fill_from(data, len)? < len {
            return Err(Errno::EFAULT);
        }
        if let Some(route) = route {
            let from = SocketAddr::new(ip, local.port());
            let mtu = route.mtu;
            if to.ip().is_multicast() && options.multicast_loop {
                self.loop_back(from, to, bytes.clone(), how, route.interface.index());
            }
            let sent = self.send_on(&route, from, to, bytes, how, options.is_whole);
            if sent == Err(Errno::EMSGSIZE) && options.receive_errors {
                self.report_too_big(to, mtu);
            }
            return sent.map(|()| len);
        }
        let datagram = Datagram {
            data: bytes,
            from: SocketAddr::new(ip, local.port()),
            to,
            at: time::since_epoch(),
            service: how.service,
            hops: how.hops,
            coverage: match options.send_coverage {
                covered if usize::from(covered) < HEADER + len => covered,
                _ => 0,
            },
            interface: LOOPBACK,
        };
        if to.ip().is_multicast() && !options.multicast_loop {
            return Ok(len);
        }
        let v6 = u64::from(to.is_ipv6());
        Counter::udp_sent.add(1);
        Counter::udp_sent_v6.add(v6);
        link::count_packet(to.is_ipv6(), len);
        // References to the slices, for the report that may have to be made.
        let kept = options.receive_errors.then(|| datagram.data.clone());
        let receivers = self.table().receivers(datagram.from, to);
        if receivers.is_empty() && !to.ip().is_multicast() {
            Counter::udp_no_port.add(1);
            Counter::udp_no_port_v6.add(v6);
            if to_peer || options.receive_errors {
                self.unreachable(to, kept);
            }
        }
        receivers.enqueue(datagram);
        Ok(len)
    }
}
