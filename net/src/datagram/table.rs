//! The bindings of a protocol, and the receivers of a datagram.

use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result};

use super::{Datagram, Options, Socket};
use crate::{
    ip::{self, Cover, LOOPBACK},
    ports::{Hold, Ports, Rule},
};

/// The loopback network's broadcast address.
const BROADCAST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);
/// The groups of which every machine is a member.
const ALL_NODES_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The sockets of a protocol. Guarded by a lock of `rank::NET`.
pub struct SocketTable {
    pub(super) ports: Ports,
    /// By port, in the order of binding; raw sockets by the number of their protocol.
    sockets: BTreeMap<u16, Vec<Arc<Socket>>>,
    /// Multicast groups with their number of members.
    groups: BTreeMap<IpAddr, usize>,
}

/// Tells whether a datagram to `to` may have several receivers.
fn is_for_many(to: IpAddr) -> bool {
    to.is_multicast() || to == IpAddr::V4(BROADCAST)
}

/// Returns the usual source address of a datagram to `to`.
///
/// # Errors
/// `ENETUNREACH`; `EACCES` for a broadcast address that the socket must not send to.
pub(super) fn source(options: &Options, to: IpAddr) -> Result<IpAddr> {
    if to == IpAddr::V4(BROADCAST) && !options.broadcast {
        return Err(Errno::EACCES);
    }
    if to.is_multicast() && options.multicast_interface == LOOPBACK {
        return Ok(match to {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    ip::source_for(to)
}

/// The sockets that receive one datagram. Only groups and broadcasts have more than one receiver,
/// and so need memory.
#[derive(Default)]
pub(super) struct Receivers {
    first: Option<Arc<Socket>>,
    others: Vec<Arc<Socket>>,
}

impl Receivers {
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub fn first(&self) -> Option<&Arc<Socket>> {
        self.first.as_ref()
    }

    /// Adds a socket; it misses the datagram when memory is short.
    pub fn add(&mut self, socket: &Arc<Socket>) {
        if self.first.is_none() {
            self.first = Some(socket.clone());
        } else if self.others.try_reserve(1).is_ok() {
            self.others.push(socket.clone());
        }
    }

    /// Visits each.
    pub fn visit(&self, mut visit: impl FnMut(&Socket)) {
        let all = self.first.iter().chain(&self.others);
        all.for_each(|socket| visit(socket));
    }

    /// Adds the datagram to the queue of each.
    pub fn enqueue(self, datagram: Datagram) {
        for socket in self.others {
            socket.enqueue(datagram.clone());
        }
        if let Some(socket) = self.first {
            socket.enqueue(datagram);
        }
    }
}

impl SocketTable {
    /// Adds a socket at its port, or at its protocol's number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn add(&mut self, key: u16, socket: &Arc<Socket>) -> Result<()> {
        let sockets = self.sockets.entry(key).or_default();
        let room = sockets.try_reserve(1);
        if room.is_ok() {
            sockets.push(socket.clone());
        } else if sockets.is_empty() {
            self.sockets.remove(&key);
        }
        Ok(room?)
    }

    /// Removes a socket from its port, or from its protocol's number.
    pub(super) fn remove(&mut self, key: u16, socket: &Socket) {
        if let Some(sockets) = self.sockets.get_mut(&key) {
            sockets.retain(|other| !core::ptr::eq(&**other, socket));
            if sockets.is_empty() {
                self.sockets.remove(&key);
            }
        }
    }

    /// Removes a socket and releases its port, if it has one.
    pub(super) fn release(&mut self, hold: Option<Hold>, socket: &Socket) {
        if let Some(hold) = hold {
            self.ports.release(hold);
            self.remove(hold.port, socket);
        }
    }

    pub(super) fn join(&mut self, group: IpAddr) {
        *self.groups.entry(group).or_default() += 1;
    }

    pub(super) fn leave(&mut self, group: IpAddr) {
        if let Some(count) = self.groups.get_mut(&group) {
            *count -= 1;
            if *count == 0 {
                self.groups.remove(&group);
            }
        }
    }

    /// Tells whether a socket of this machine is a member of the group.
    fn is_joined(&self, group: IpAddr) -> bool {
        group == ALL_NODES_V4 || group == ALL_NODES_V6 || self.groups.contains_key(&group)
    }

    /// Returns the sockets at a port, or of a protocol.
    pub(super) fn bound_to(&self, key: u16) -> &[Arc<Socket>] {
        self.sockets.get(&key).map_or(&[], |sockets| sockets)
    }

    /// Returns the receivers of a datagram: one, or all that fit for a group or a broadcast.
    pub(super) fn receivers(&self, from: SocketAddr, to: SocketAddr) -> Receivers {
        self.receivers_of(from, to, is_for_many(to.ip()), LOOPBACK)
    }

    /// As [`receivers`](SocketTable::receivers), for a datagram that may be `for_many` and has
    /// arrived at an interface; 0 for any.
    pub(super) fn receivers_of(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        for_many: bool,
        interface: u32,
    ) -> Receivers {
        let mut receivers = Receivers::default();
        let sockets = self.bound_to(to.port());
        let score = |socket: &Socket, from, to| score(socket, from, to, interface);
        if for_many {
            if !to.ip().is_multicast() || self.is_joined(to.ip()) {
                let fitting = sockets
                    .iter()
                    .filter(|socket| score(socket, from, to.ip()) > 0)
                    .filter(|socket| socket.is_member(to.ip(), interface));
                fitting.for_each(|socket| receivers.add(socket));
            }
            return receivers;
        }
        if let [only] = sockets {
            if score(only, from, to.ip()) > 0 {
                receivers.add(only);
            }
            return receivers;
        }
        let best = sockets
            .iter()
            .map(|socket| score(socket, from, to.ip()))
            .max()
            .unwrap_or(0);
        if best == 0 {
            return receivers;
        }
        let fitting = || {
            let sockets = sockets.iter();
            sockets.filter(|socket| score(socket, from, to.ip()) == best)
        };
        let sharing = |socket: &&Arc<Socket>| socket.inner().options.name.reuse_port;
        let count = fitting().filter(sharing).count();
        // Sockets with `SO_REUSEPORT` share the senders; else the last one bound gets everything.
        let chosen = if count > 0 {
            fitting().filter(sharing).nth(spread(from) % count)
        } else {
            fitting().next_back()
        };
        if let Some(socket) = chosen {
            receivers.add(socket);
        }
        receivers
    }

    /// Lists all sockets.
    pub fn list(&self) -> impl Iterator<Item = &Arc<Socket>> {
        self.sockets.values().flatten()
    }
}

impl Default for SocketTable {
    fn default() -> SocketTable {
        SocketTable {
            ports: Ports::new(Rule::Always),
            sockets: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }
}

/// Returns a hash of the sender's address.
fn spread(from: SocketAddr) -> usize {
    let ip = match from.ip() {
        IpAddr::V4(ip) => u64::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip) as u64,
    };
    let mixed = (ip << 16 | u64::from(from.port())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 33) as usize
}

/// Returns how well a socket fits a datagram; 0 means that it must not receive it.
fn score(socket: &Socket, from: SocketAddr, to: IpAddr, interface: u32) -> u32 {
    let inner = socket.inner();
    if interface != 0 && ![0, interface].contains(&inner.options.name.interface) {
        return 0;
    }
    let connected = match inner.remote {
        Some(remote) if remote == from => 4,
        Some(_) => return 0,
        None => 0,
    };
    let Some(local) = inner.local else { return 0 };
    match Cover::of(local.ip(), inner.options.name.v6_only).score(to) {
        0 => 0,
        fit => fit + connected,
    }
}
