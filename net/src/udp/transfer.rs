//! Sending, receiving and readiness.

use alloc::{sync::Arc, vec::Vec};
use core::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use abi::{Errno, Result};
use fbuf::{Aggregate, Source};
use nucleus::{PAGE_SIZE, counters::Counter, frame, time};

use super::{Options, Socket, table};
use crate::address;

/// The longest datagram: what an IPv4 header can tell, less headers.
pub const MAX_V4: usize = 65507;
/// The longest datagram over IPv6.
pub const MAX_V6: usize = 65527;
/// A header's bytes.
const HEADER: usize = 8;
/// What Linux reckons for keeping one datagram, besides its bytes.
const OVERHEAD: usize = 768;

/// A datagram that has been received.
#[derive(Clone, Debug)]
pub struct Datagram {
    pub data: Aggregate,
    pub from: SocketAddr,
    /// The address that it was sent to.
    pub to: SocketAddr,
    /// When, since the epoch.
    pub at: Duration,
    /// Type of service and time to live, or traffic class and hop limit, as sent.
    pub service: u8,
    pub hops: u8,
    /// How far its sum reaches, in bytes with the header's; 0 if over all of it.
    pub coverage: u16,
}

impl Datagram {
    fn cost(&self) -> usize {
        self.data.len() + OVERHEAD
    }
}

/// What a datagram is sent with.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// To whom, if not to the socket's peer.
    pub to: Option<SocketAddr>,
    /// From which of this machine's addresses, if not the usual one.
    pub from: Option<IpAddr>,
    pub service: u8,
    pub hops: u8,
}

/// What can be done with a socket without waiting.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Readiness {
    /// A read gives a datagram, an error or the end.
    pub readable: bool,
    /// An error is pending.
    pub error: bool,
    /// Reading was shut.
    pub read_hung_up: bool,
    /// Both directions were shut.
    pub hung_up: bool,
}

impl Socket {
    /// Sends all that the source has as one datagram.
    ///
    /// # Errors
    /// `EDESTADDRREQ`, `EMSGSIZE`, `EPIPE` after shutting, `EINVAL` for port 0, `ENETUNREACH`, `EACCES`, `EAGAIN` when no port
    /// is left, the pending error, that of the source, `ENOMEM`.
    pub fn send(self: &Arc<Socket>, data: &mut dyn Source, how: Manner) -> Result<usize> {
        let (options, remote) = {
            let mut inner = self.inner();
            if let Some(error) = inner.error.take() {
                return Err(error);
            }
            if inner.write_shut {
                return Err(Errno::EPIPE);
            }
            (inner.options, inner.remote)
        };
        let to = address::destination(how.to.or(remote).ok_or(Errno::EDESTADDRREQ)?);
        let len = data.left();
        let longest = if to.is_ipv4() { MAX_V4 } else { MAX_V6 };
        if len > longest {
            return Err(Errno::EMSGSIZE);
        }
        if to.port() == 0 {
            return Err(Errno::EINVAL);
        }
        let source = table::source(&options, to.ip())?;
        self.name()?;
        let local = self.inner().local.ok_or(Errno::EINVAL)?;
        let ip = match (how.from, local.ip()) {
            (Some(ip), _) if !address::is_own(ip) => return Err(Errno::EINVAL),
            (Some(ip), _) => ip,
            (None, ip) if ip.is_unspecified() || ip.is_multicast() => source,
            (None, ip) => ip,
        };
        if ip.is_ipv4() != to.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let mut bytes = Aggregate::new();
        if bytes.fill_from(data, len)? < len {
            return Err(Errno::EFAULT);
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
        };
        if to.ip().is_multicast() && !options.multicast_loop {
            return Ok(len);
        }
        let v6 = u64::from(to.is_ipv6());
        Counter::udp_sent.add(1);
        Counter::udp_sent_v6.add(v6);
        Counter::loopback_packets.add(1);
        Counter::loopback_packets_v6.add(v6);
        Counter::loopback_bytes.add(len as u64);
        // A handle of each slice, for the report that may have to be made.
        let kept = options.receive_errors.then(|| datagram.data.clone());
        let reached = self.deliver(datagram)?;
        if !reached && !to.ip().is_multicast() {
            Counter::udp_no_port.add(1);
            Counter::udp_no_port_v6.add(v6);
            if remote == Some(to) || options.receive_errors {
                self.unreachable(to, kept);
            }
        }
        Ok(len)
    }

    /// Puts a datagram into the queues of those that get it; returns whether there was anybody.
    fn deliver(&self, datagram: Datagram) -> Result<bool> {
        let mut first: Option<Arc<Socket>> = None;
        let mut others: Vec<Arc<Socket>> = Vec::new();
        {
            let table = self.table();
            table.receivers(datagram.from, datagram.to, |socket| {
                if first.is_none() {
                    first = Some(socket.clone());
                } else if others.try_reserve(1).is_ok() {
                    others.push(socket.clone());
                }
            });
        }
        for socket in others {
            socket.enqueue(datagram.clone());
        }
        let reached = first.is_some();
        if let Some(socket) = first {
            socket.enqueue(datagram);
        }
        Ok(reached)
    }

    /// Whether a datagram to several sockets is for this one too.
    pub(super) fn wants(&self, to: IpAddr) -> bool {
        let inner = self.inner();
        !to.is_multicast() || inner.groups.contains(&to) || inner.options.multicast_all
    }

    /// Adds a datagram, or drops it if there is no room.
    fn enqueue(&self, datagram: Datagram) {
        let Options {
            receive_buffer: limit,
            receive_coverage,
            ..
        } = self.inner().options;
        if let Some(wanted) = receive_coverage
            && datagram.coverage != 0
            && (wanted == 0 || datagram.coverage < wanted)
        {
            return;
        }
        let cost = datagram.cost();
        let v6 = u64::from(datagram.to.is_ipv6());
        let refused = {
            let mut queue = self.queue();
            // One is always taken when nothing waits, however small the buffer is.
            let fits = queue.cost == 0 || queue.cost + cost <= limit;
            // Frames for data are the programs'; a sender must not take the last ones.
            let fits = fits && !(frame::is_scarce() && datagram.data.len() > PAGE_SIZE);
            if fits && queue.datagrams.try_reserve(1).is_ok() {
                queue.cost += cost;
                queue.datagrams.push_back(datagram);
                None
            } else {
                queue.dropped += 1;
                Some(datagram)
            }
        };
        // Not freed under the spin lock.
        if refused.is_some() {
            Counter::udp_dropped.add(1);
            Counter::udp_dropped_v6.add(v6);
        } else {
            Counter::udp_received.add(1);
            Counter::udp_received_v6.add(v6);
            self.waits().readable.wake_all();
        }
    }

    /// Takes the next datagram, or a copy of it.
    ///
    /// # Errors
    /// `EAGAIN` when there is none, or the pending error.
    pub fn receive(&self, peek: bool) -> Result<Option<Datagram>> {
        {
            let mut queue = self.queue();
            if peek && let Some(datagram) = queue.datagrams.front() {
                return Ok(Some(datagram.clone()));
            }
            if let Some(datagram) = queue.datagrams.pop_front() {
                queue.cost -= datagram.cost();
                return Ok(Some(datagram));
            }
        }
        let mut inner = self.inner();
        if let Some(error) = inner.error.take() {
            return Err(error);
        }
        if inner.read_shut {
            return Ok(None);
        }
        Err(Errno::EAGAIN)
    }

    /// What can be done now.
    pub fn readiness(&self) -> Readiness {
        let (waiting, reported) = {
            let queue = self.queue();
            (!queue.datagrams.is_empty(), !queue.reports.is_empty())
        };
        let inner = self.inner();
        Readiness {
            readable: waiting || inner.read_shut || inner.error.is_some(),
            error: inner.error.is_some() || reported,
            read_hung_up: inner.read_shut,
            hung_up: inner.read_shut && inner.write_shut,
        }
    }
}
