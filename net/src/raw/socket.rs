//! One raw socket: its names, its filter, its queue.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use abi::{Errno, Result};
use fbuf::Source;
use nucleus::{
    PAGE_SIZE,
    counters::Counter,
    frame,
    sync::{Rank, SpinGuard, SpinLock},
    time,
};

use super::{ICMP, ICMP_V6, Packet, echo};
use crate::{Family, Stack, Waits, address, udp::Datagram};

/// Bytes that wait to be received, with what it takes to keep them: Linux's `net.core.rmem_default`.
const RECEIVE_BUFFER: usize = 212_992;
/// What Linux reckons for keeping one packet, besides its bytes.
const OVERHEAD: usize = 768;
/// Where a message of ICMP for IPv6 has its sum.
const SUM_V6: usize = 2;

/// Messages of ICMP that a socket doesn't get: bit by type.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Filter(pub [u32; 8]);

impl Filter {
    /// Whether it keeps messages of a type away.
    pub fn blocks(&self, kind: u8) -> bool {
        self.0[usize::from(kind) / 32] >> (kind % 32) & 1 != 0
    }
}

/// What `setsockopt` sets, as far as the protocol acts by it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes.
    pub receive_buffer: usize,
    pub filter: Filter,
    /// Who made the socket.
    pub user: u32,
    /// What the floor above calls it: an inode's number.
    pub tag: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            receive_buffer: RECEIVE_BUFFER,
            filter: Filter::default(),
            user: 0,
            tag: 0,
        }
    }
}

/// What a packet is sent with.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// To whom, if not to the socket's peer.
    pub to: Option<IpAddr>,
    /// From which of this machine's addresses, if not the usual one.
    pub from: Option<IpAddr>,
    pub service: u8,
    pub hops: u8,
}

/// A raw socket.
pub struct Socket {
    stack: Arc<Stack>,
    family: Family,
    protocol: u8,
    waits: Waits,
    state: SpinLock<Inner>,
    queue: SpinLock<Queue>,
}

/// What the state's lock guards.
#[derive(Default)]
struct Inner {
    options: Options,
    local: Option<IpAddr>,
    remote: Option<IpAddr>,
    read_shut: bool,
    write_shut: bool,
}

/// What the queue's lock guards.
#[derive(Default)]
struct Queue {
    packets: VecDeque<Datagram>,
    /// What they cost, as it counts against the receive buffer.
    cost: usize,
    dropped: u64,
}

/// A socket at one time, for those who only look.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub local: Option<IpAddr>,
    pub remote: Option<IpAddr>,
    pub options: Options,
    /// Bytes of all packets that wait.
    pub unread: usize,
    /// Bytes of the next packet.
    pub next: usize,
    /// Packets for which there was no room.
    pub dropped: u64,
    pub read_shut: bool,
    pub write_shut: bool,
}

impl Socket {
    /// A socket that gets all packets of a protocol, from now on.
    pub fn new(stack: &Arc<Stack>, family: Family, protocol: u8, options: Options) -> Arc<Socket> {
        let socket = Arc::new(Socket {
            stack: stack.clone(),
            family,
            protocol,
            waits: Waits::default(),
            state: SpinLock::new(
                Rank::Leaf,
                Inner {
                    options,
                    ..Inner::default()
                },
            ),
            queue: SpinLock::new(Rank::Leaf, Queue::default()),
        });
        stack.raw.lock().push(socket.clone());
        socket
    }

    /// The version of IP that it was made for.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The protocol's number.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Who waits for it.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    fn inner(&self) -> SpinGuard<'_, Inner> {
        self.state.lock()
    }

    /// All that is known of it.
    pub fn summary(&self) -> Summary {
        let (unread, next, dropped) = {
            let queue = self.queue.lock();
            let unread = queue.packets.iter().map(|packet| packet.data.len()).sum();
            let next = queue.packets.front().map_or(0, |packet| packet.data.len());
            (unread, next, queue.dropped)
        };
        let inner = self.inner();
        Summary {
            local: inner.local,
            remote: inner.remote,
            options: inner.options,
            unread,
            next,
            dropped,
            read_shut: inner.read_shut,
            write_shut: inner.write_shut,
        }
    }

    /// Changes options.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) {
        change(&mut self.inner().options);
    }

    /// Gets only what is sent to `address`, unless that is unspecified, and sends from there.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` for an address that is not this machine's.
    pub fn bind(&self, address: IpAddr) -> Result<()> {
        if !address.is_unspecified() && !address::is_own(address) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        self.inner().local = (!address.is_unspecified()).then_some(address);
        Ok(())
    }

    /// Sends to `to` and receives from there only, from now on; `None` ends that.
    ///
    /// # Errors
    /// `ENETUNREACH`.
    pub fn connect(&self, to: Option<IpAddr>) -> Result<()> {
        let to = to.map(|to| address::destination(SocketAddr::new(to, 0)).ip());
        if let Some(to) = to {
            address::source_for(to)?;
        }
        self.inner().remote = to;
        Ok(())
    }

    /// Shuts the socket for receiving, for sending, or both.
    ///
    /// # Errors
    /// `ENOTCONN` without a peer; it is shut all the same.
    pub fn shut(&self, read: bool, write: bool) -> Result<()> {
        let connected = {
            let mut inner = self.inner();
            inner.read_shut |= read;
            inner.write_shut |= write;
            inner.remote.is_some()
        };
        self.waits.wake_all();
        if connected {
            Ok(())
        } else {
            Err(Errno::ENOTCONN)
        }
    }

    /// Sends all that the source has as one packet. Messages of ICMP for IPv6 get their sum.
    ///
    /// # Errors
    /// `EDESTADDRREQ`, `EMSGSIZE`, `EPIPE` after shutting, `EINVAL` for a source that is not this machine's, `ENETUNREACH`,
    /// `ENOMEM`, that of the source.
    pub fn send(&self, data: &mut dyn Source, how: Manner) -> Result<usize> {
        let (local, remote, write_shut) = {
            let inner = self.inner();
            (inner.local, inner.remote, inner.write_shut)
        };
        if write_shut {
            return Err(Errno::EPIPE);
        }
        let to = how.to.or(remote).ok_or(Errno::EDESTADDRREQ)?;
        let to = address::destination(SocketAddr::new(to, 0)).ip();
        let usual = address::source_for(to)?;
        let from = how.from.or(local).unwrap_or(usual);
        if !address::is_own(from) {
            return Err(Errno::EINVAL);
        }
        if from.is_ipv4() != to.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let len = data.left();
        let mut packet = Packet::new(from, to, self.protocol, data)?;
        packet.service = how.service;
        packet.hops = how.hops;
        if self.protocol == ICMP_V6 {
            packet.set_sum(SUM_V6);
        }
        if packet.hops == 0 && to.is_ipv6() {
            // It goes no further than from here to here; only a router would care.
            packet.hops = 1;
        }
        self.stack.deliver_raw(&packet)?;
        if let Some(answer) = echo::answer(&packet) {
            self.stack.deliver_raw(&answer)?;
        }
        Ok(len)
    }

    /// Whether a packet is for this socket.
    fn wants(&self, packet: &Packet) -> bool {
        if Family::of(packet.to) != self.family || packet.protocol != self.protocol {
            return false;
        }
        let inner = self.inner();
        let is_icmp = self.protocol == ICMP || self.protocol == ICMP_V6;
        let filtered = is_icmp
            && packet
                .start()
                .first()
                .is_some_and(|&kind| inner.options.filter.blocks(kind));
        inner.local.is_none_or(|local| local == packet.to)
            && inner.remote.is_none_or(|remote| remote == packet.from)
            && !inner.read_shut
            && !filtered
    }

    /// Adds a packet, or drops it if there is no room.
    fn enqueue(&self, packet: Datagram) {
        let limit = self.inner().options.receive_buffer;
        let cost = packet.data.len() + OVERHEAD;
        let refused = {
            let mut queue = self.queue.lock();
            let fits = queue.cost == 0 || queue.cost + cost <= limit;
            // Frames for data are the programs'; a sender must not take the last ones.
            let fits = fits && !(frame::is_scarce() && packet.data.len() > PAGE_SIZE);
            if fits && queue.packets.try_reserve(1).is_ok() {
                queue.cost += cost;
                queue.packets.push_back(packet);
                None
            } else {
                queue.dropped += 1;
                Some(packet)
            }
        };
        // Not freed under the spin lock.
        if refused.is_none() {
            self.waits.readable.wake_all();
        }
    }

    /// Takes the next packet, or a copy of it. `None` after reading was shut.
    ///
    /// # Errors
    /// `EAGAIN` when there is none.
    pub fn receive(&self, peek: bool) -> Result<Option<Datagram>> {
        {
            let mut queue = self.queue.lock();
            if peek && let Some(packet) = queue.packets.front() {
                return Ok(Some(packet.clone()));
            }
            if let Some(packet) = queue.packets.pop_front() {
                queue.cost -= packet.data.len() + OVERHEAD;
                return Ok(Some(packet));
            }
        }
        if self.inner().read_shut {
            Ok(None)
        } else {
            Err(Errno::EAGAIN)
        }
    }

    /// Whether [`receive`](Socket::receive) has something to tell.
    pub fn is_readable(&self) -> bool {
        !self.queue.lock().packets.is_empty() || self.inner().read_shut
    }

    /// The last descriptor is gone.
    pub fn close(&self) {
        let own = {
            let mut sockets = self.stack.raw.lock();
            let at = sockets
                .iter()
                .position(|other| core::ptr::eq(&**other, self));
            at.map(|at| sockets.swap_remove(at))
        };
        let packets = core::mem::take(&mut self.queue.lock().packets);
        drop(packets);
        drop(own);
    }
}

impl Stack {
    /// Puts a packet into the queues of those that want it.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn deliver_raw(&self, packet: &Packet) -> Result<()> {
        Counter::loopback_packets.add(1);
        Counter::loopback_packets_v6.add(packet.to.is_ipv6().into());
        Counter::loopback_bytes.add(packet.len() as u64);
        count(packet);
        let mut wanting: Vec<Arc<Socket>> = Vec::new();
        {
            let sockets = self.raw.lock();
            for socket in sockets.iter().filter(|socket| socket.wants(packet)) {
                wanting.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                wanting.push(socket.clone());
            }
        }
        for socket in wanting {
            socket.enqueue(Datagram {
                data: packet.bytes()?,
                from: SocketAddr::new(packet.from, 0),
                to: SocketAddr::new(packet.to, 0),
                at: time::since_epoch(),
                service: packet.service,
                hops: packet.hops,
                coverage: 0,
            });
        }
        Ok(())
    }

    /// All raw sockets.
    pub fn raw_sockets(&self) -> Vec<Arc<Socket>> {
        self.raw.lock().clone()
    }
}

/// Counts a message of ICMP, which is sent and received at once.
fn count(packet: &Packet) {
    let kind = packet.start().first().copied();
    match (packet.protocol, kind) {
        (ICMP, kind) => {
            Counter::icmp_messages.add(1);
            match kind {
                Some(8) => Counter::icmp_echo_requests.add(1),
                Some(0) => Counter::icmp_echo_replies.add(1),
                _ => {}
            }
        }
        (ICMP_V6, kind) => {
            Counter::icmp6_messages.add(1);
            match kind {
                Some(128) => Counter::icmp6_echo_requests.add(1),
                Some(129) => Counter::icmp6_echo_replies.add(1),
                _ => {}
            }
        }
        _ => {}
    }
}
