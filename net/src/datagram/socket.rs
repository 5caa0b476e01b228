//! One datagram socket: its names, its options, its groups.
#![allow(missing_docs, reason = "fields and variants whose names say it")]

use alloc::{sync::Arc, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use abi::{Errno, Result};
use nucleus::sync::{Mutex, MutexGuard, Rank, SpinGuard, SpinLock};

use super::{Filter, SocketTable, queue::Queue, send::KeptRoute};
use crate::{
    Family, Waits,
    ip::{self, Network},
    ports::{self, Hold, NameOptions, Search},
};

/// Bytes of the receive buffer, overhead included: Linux's `net.core.rmem_default`.
const RECEIVE_BUFFER: usize = 212_992;
/// The most groups that a socket may join: Linux's `igmp_max_memberships`.
const MAX_GROUPS: usize = 20;

/// The protocol of a datagram socket. UDP and UDP-Lite have ports of their own each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Udp,
    UdpLite,
    /// Echoes of ICMP; ports are their identifiers.
    Ping,
    /// Packets of the IP protocol with this number. Ports are ignored, names are addresses.
    Raw(u8),
}

impl Protocol {
    /// Tells whether sockets are bound to ports; raw ones are not.
    pub fn has_ports(self) -> bool {
        !matches!(self, Protocol::Raw(_))
    }
}

/// The options of `setsockopt` on which the protocol acts.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub name: NameOptions,
    /// The socket may send to broadcast addresses.
    pub broadcast: bool,
    /// Bytes.
    pub receive_buffer: usize,
    /// The number of the interface where datagrams to groups leave; 0 leaves that to the routes.
    pub multicast_interface: u32,
    /// Datagrams are not cut into fragments (`IP_MTU_DISCOVER`).
    pub is_whole: bool,
    /// The program makes the header of IP, too (`IP_HDRINCL`).
    pub has_header: bool,
    /// Datagrams that the socket sends to groups are received on this machine.
    pub multicast_loop: bool,
    /// The socket also receives from groups that other sockets joined (`IP_MULTICAST_ALL`).
    pub multicast_all: bool,
    /// Errors are reported to a socket without a peer too (`IP_RECVERR`).
    pub receive_errors: bool,
    /// Bytes that checksums cover, the header's 8 included; 0 for all (UDP-Lite).
    pub send_coverage: u16,
    /// Refuses datagrams with a checksum over a part shorter than this; 0 refuses all with a
    /// checksum over a part (UDP-Lite).
    pub receive_coverage: Option<u16>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: NameOptions::default(),
            broadcast: false,
            receive_buffer: RECEIVE_BUFFER,
            multicast_interface: 0,
            is_whole: false,
            has_header: false,
            multicast_loop: true,
            multicast_all: true,
            receive_errors: false,
            send_coverage: 0,
            receive_coverage: None,
        }
    }
}

/// A datagram socket.
pub struct Socket {
    table: Arc<Mutex<SocketTable>>,
    pub(super) network: Arc<Network>,
    family: Family,
    protocol: Protocol,
    waits: Waits,
    /// Names and groups change only under the table's lock too.
    state: SpinLock<Inner>,
    queue: SpinLock<Queue>,
    pub(super) route: SpinLock<Option<KeptRoute>>,
}

/// The state that the spin lock guards.
#[derive(Default)]
pub(super) struct Inner {
    pub options: Options,
    /// The types of messages that a raw socket does not receive.
    pub filter: Filter,
    pub hold: Option<Hold>,
    /// `bind` has asked for the port, or for a raw socket's address.
    bound: bool,
    /// A raw socket has port 0 here, and no address if it receives at all of them.
    pub local: Option<SocketAddr>,
    /// The local address that was given to `bind`.
    bound_to: Option<IpAddr>,
    pub remote: Option<SocketAddr>,
    pub error: Option<Errno>,
    pub read_shut: bool,
    pub write_shut: bool,
    pub groups: Vec<Membership>,
}

/// A group that the socket has joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Membership {
    group: IpAddr,
    /// The number of the interface as the program gave it; 0 for any.
    interface: u32,
    /// The number of the interface where it was joined; `None` while the link is not told of it.
    at: Option<u32>,
}

/// A snapshot of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    pub options: Options,
    /// Bytes of all datagrams that wait.
    pub unread: usize,
    /// Bytes of the next datagram.
    pub next: usize,
    /// Datagrams that were dropped for lack of room.
    pub dropped: u64,
}

impl Socket {
    /// Creates a socket without a name; a raw one enters the table at once.
    pub(crate) fn new(
        table: &Arc<Mutex<SocketTable>>,
        network: &Arc<Network>,
        family: Family,
        protocol: Protocol,
        options: Options,
    ) -> Arc<Socket> {
        let inner = Inner {
            options,
            ..Inner::default()
        };
        let socket = Arc::new(Socket {
            table: table.clone(),
            network: network.clone(),
            family,
            protocol,
            waits: Waits::default(),
            state: SpinLock::new(Rank::Leaf, inner),
            queue: SpinLock::new(Rank::Leaf, Queue::new()),
            route: SpinLock::new(Rank::Leaf, None),
        });
        if let Protocol::Raw(number) = protocol {
            network.note_raw(true);
            if let Err(error) = table.lock().add(number.into(), &socket) {
                // It receives nothing, and the caller looks for that.
                socket.inner().error = Some(error);
            }
        }
        socket
    }

    /// Returns the version of IP for which it was created.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns its protocol.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Locks the table of its protocol.
    pub(super) fn table(&self) -> MutexGuard<'_, SocketTable> {
        self.table.lock()
    }

    /// Returns its wait queues.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    pub(super) fn inner(&self) -> SpinGuard<'_, Inner> {
        self.state.lock()
    }

    pub(super) fn queue(&self) -> SpinGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Returns its options.
    pub fn options(&self) -> Options {
        self.inner().options
    }

    /// Returns the number of datagrams that were dropped for lack of room.
    pub fn dropped(&self) -> u64 {
        self.queue.lock().dropped
    }

    /// Returns its local name.
    pub fn local(&self) -> Option<SocketAddr> {
        self.inner().local
    }

    /// Returns its peer.
    pub fn remote(&self) -> Option<SocketAddr> {
        self.inner().remote
    }

    /// Returns a snapshot of it.
    pub fn summary(&self) -> Summary {
        let (unread, next, dropped) = {
            let queue = self.queue.lock();
            let unread = queue.datagrams.iter().map(|d| d.data.len()).sum();
            let next = queue.datagrams.front().map_or(0, |d| d.data.len());
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
        }
    }

    /// Takes the pending error, which is reported once.
    pub fn take_error(&self) -> Option<Errno> {
        self.inner().error.take()
    }

    /// Changes options.
    pub fn set_options(&self, change: impl FnOnce(&mut Options)) {
        let (old, new, hold) = {
            let mut inner = self.inner();
            let old = inner.options.name;
            change(&mut inner.options);
            (old, inner.options.name, inner.hold)
        };
        if let Some(hold) = hold.filter(|_| old.interface != new.interface) {
            let mut table = self.table();
            let interface = new.interface;
            let kept = table
                .ports
                .change(hold, |binding| binding.interface = interface);
            debug_assert_eq!(kept, hold, "a socket of datagrams shares its binding");
        }
    }

    /// Gives the socket a name. Port 0 lets the stack choose a port. A raw socket receives only
    /// what is sent to the address, unless that is unspecified, and may be bound again.
    ///
    /// # Errors
    /// `EINVAL` if it has a name, `EADDRNOTAVAIL` for an address that is not this machine's,
    /// `EADDRINUSE`.
    pub fn bind(self: &Arc<Socket>, address: SocketAddr) -> Result<()> {
        let ip = address.ip();
        let has_ports = self.protocol.has_ports();
        let own = ip.is_unspecified() || self.network.is_own(ip) || has_ports && ip.is_multicast();
        if !own {
            return Err(Errno::EADDRNOTAVAIL);
        }
        if !has_ports {
            let mut inner = self.inner();
            inner.bound = !ip.is_unspecified();
            inner.bound_to = inner.bound.then_some(ip);
            inner.local = inner.bound_to.map(|ip| SocketAddr::new(ip, 0));
            return Ok(());
        }
        ports::search(|search| {
            let mut table = self.table();
            let done = self.bind_in(&mut table, address, search)?;
            if done.is_some() {
                let mut inner = self.inner();
                inner.bound = address.port() != 0;
                inner.bound_to = Some(ip);
            }
            Ok(done)
        })
    }

    /// Takes one step to bind the socket. `None` if the search for a port is to go on.
    fn bind_in(
        self: &Arc<Socket>,
        table: &mut SocketTable,
        address: SocketAddr,
        search: &mut Search,
    ) -> Result<Option<()>> {
        let options = {
            let inner = self.inner();
            if inner.hold.is_some() {
                return Err(Errno::EINVAL);
            }
            inner.options
        };
        let Some(hold) = table.ports.bind_name(address, &options.name, search)? else {
            return Ok(None);
        };
        if let Err(error) = table.add(hold.port, self) {
            table.ports.release(hold);
            return Err(error);
        }
        let mut inner = self.inner();
        inner.hold = Some(hold);
        inner.local = Some(SocketAddr::new(address.ip(), hold.port));
        Ok(Some(()))
    }

    /// Gives a socket without a name one, for sending.
    ///
    /// # Errors
    /// `EAGAIN` when no port is left, as on Linux.
    pub(super) fn ensure_name(self: &Arc<Socket>) -> Result<()> {
        if self.inner().hold.is_some() {
            return Ok(());
        }
        let any = SocketAddr::new(self.family.unspecified(), 0);
        match ports::search(|search| self.bind_in(&mut self.table(), any, search)) {
            Err(Errno::EADDRINUSE) => Err(Errno::EAGAIN),
            // Another thread has bound it meanwhile.
            Err(Errno::EINVAL) => Ok(()),
            other => other,
        }
    }

    /// Makes `to` the peer: the only sender from which it receives, and the usual destination.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EACCES` for a broadcast address without `SO_BROADCAST`, `EAGAIN` when no
    /// port is left.
    pub fn connect(self: &Arc<Socket>, to: SocketAddr) -> Result<()> {
        let to = ip::destination(to);
        let (source, _) = self.way(&self.options(), to.ip(), 0)?;
        if !self.protocol.has_ports() {
            self.inner().remote = Some(SocketAddr::new(to.ip(), 0));
            return Ok(());
        }
        self.ensure_name()?;
        let table = self.table();
        let mut inner = self.inner();
        let ip = match inner.local.map(|local| local.ip()) {
            Some(ip) if !ip.is_unspecified() && inner.bound_to == Some(ip) => ip,
            _ => source,
        };
        if ip.is_ipv4() != to.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        inner.local = inner.local.map(|local| SocketAddr::new(ip, local.port()));
        inner.remote = Some(to);
        drop(inner);
        drop(table);
        Ok(())
    }

    /// Forgets the peer, and releases the name unless `bind` gave it.
    pub fn disconnect(&self) {
        let mut table = self.table();
        let hold = {
            let mut inner = self.inner();
            inner.remote = None;
            if inner.bound {
                let ip = inner.bound_to.unwrap_or(self.family.unspecified());
                inner.local = inner.local.map(|local| SocketAddr::new(ip, local.port()));
                None
            } else {
                inner.local = None;
                inner.bound_to = None;
                inner.hold.take()
            }
        };
        table.release(hold, self);
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

    /// Joins a multicast group on the interface with a number; 0 leaves that to the routes.
    ///
    /// # Errors
    /// `EINVAL` for an address that is no group, `EADDRINUSE` if it is a member, `ENOBUFS` if it is
    /// in too many groups, or its user's or all sockets together are, `ENOMEM`.
    pub fn join(&self, group: IpAddr, interface: u32) -> Result<()> {
        if !group.is_multicast() {
            return Err(Errno::EINVAL);
        }
        let at = self.network.interface_for(group, interface);
        let mut table = self.table();
        {
            let mut inner = self.inner();
            let is_it = |own: &Membership| (own.group, own.interface) == (group, interface);
            if inner.groups.iter().any(is_it) {
                return Err(Errno::EADDRINUSE);
            }
            if inner.groups.len() == MAX_GROUPS {
                return Err(Errno::ENOBUFS);
            }
            inner.groups.try_reserve(1)?;
            inner.groups.push(Membership {
                group,
                interface,
                at: None,
            });
        }
        table.join(group);
        drop(table);
        let user = self.inner().options.name.user;
        if let Err(error) = self.network.join(group, at, user) {
            // Another thread may have left it meanwhile.
            let _ = self.leave(group, interface);
            return Err(error);
        }
        let is_member = {
            let mut inner = self.inner();
            let is_it = |own: &&mut Membership| {
                (own.group, own.interface, own.at) == (group, interface, None)
            };
            let own = inner.groups.iter_mut().find(is_it);
            own.map(|own| own.at = Some(at)).is_some()
        };
        if !is_member {
            // Another thread has left it meanwhile.
            self.network.leave(group, at);
        }
        Ok(())
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if it is not a member.
    pub fn leave(&self, group: IpAddr, interface: u32) -> Result<()> {
        let mut table = self.table();
        let left = {
            let mut inner = self.inner();
            let is_it = |own: &Membership| {
                own.group == group && (interface == 0 || own.interface == interface)
            };
            let at = inner.groups.iter().position(is_it);
            inner.groups.remove(at.ok_or(Errno::EADDRNOTAVAIL)?)
        };
        table.leave(group);
        drop(table);
        if let Some(at) = left.at {
            self.network.leave(group, at);
        }
        Ok(())
    }

    /// Tells whether a datagram to several sockets is for this one too.
    pub(super) fn is_member(&self, to: IpAddr, interface: u32) -> bool {
        let inner = self.inner();
        let is_it = |own: &Membership| own.group == to && [0, interface].contains(&own.interface);
        !to.is_multicast() || inner.options.multicast_all || inner.groups.iter().any(is_it)
    }

    /// Releases the name, the groups and the queue: the last descriptor is closed.
    pub fn close(&self) {
        let mut table = self.table();
        let (hold, groups) = {
            let mut inner = self.inner();
            (inner.hold.take(), core::mem::take(&mut inner.groups))
        };
        for own in &groups {
            table.leave(own.group);
        }
        table.release(hold, self);
        if let Protocol::Raw(number) = self.protocol {
            table.remove(number.into(), self);
            self.network.note_raw(false);
        }
        drop(table);
        for own in groups {
            if let Some(at) = own.at {
                self.network.leave(own.group, at);
            }
        }
        let left = self.queue.lock().take_all();
        drop(left);
    }
}
