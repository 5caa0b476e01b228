//! Who is bound where, and who gets a datagram.

use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result};

use super::{Options, Socket};
use crate::{
    address::{self, Cover},
    ports::{Hold, Ports, Rule},
};

/// The loopback network's broadcast address.
const BROADCAST: Ipv4Addr = Ipv4Addr::new(127, 255, 255, 255);
/// The groups that every machine is in.
const ALL_NODES_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// UDP's part of a stack.
pub struct Table {
    pub(super) ports: Ports,
    /// By port, in the order in which they were bound.
    sockets: BTreeMap<u16, Vec<Arc<Socket>>>,
    /// Multicast groups, and how many sockets are in each.
    groups: BTreeMap<IpAddr, usize>,
}

/// Whether a datagram to `to` may go to several sockets.
fn is_for_many(to: IpAddr) -> bool {
    to.is_multicast() || to == IpAddr::V4(BROADCAST)
}

/// The address that a datagram to `to` carries as its sender's.
///
/// # Errors
/// `ENETUNREACH`; `EACCES` for a broadcast address that the socket must not send to.
pub(super) fn source(options: &Options, to: IpAddr) -> Result<IpAddr> {
    if to == IpAddr::V4(BROADCAST) && !options.broadcast {
        return Err(Errno::EACCES);
    }
    if to.is_multicast() && options.multicast_by_loopback {
        return Ok(match to {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address::source_for(to)
}

impl Table {
    /// Nobody is bound.
    pub fn new() -> Table {
        Table {
            ports: Ports::new(Rule::Always),
            sockets: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }

    /// Adds a socket that has a port.
    pub(super) fn add(&mut self, port: u16, socket: &Arc<Socket>) {
        self.sockets.entry(port).or_default().push(socket.clone());
    }

    /// Takes a socket out and gives its port back.
    pub(super) fn remove(&mut self, hold: Option<Hold>, socket: &Socket) {
        let Some(hold) = hold else { return };
        self.ports.release(hold);
        if let Some(sockets) = self.sockets.get_mut(&hold.port) {
            sockets.retain(|other| !core::ptr::eq(&**other, socket));
            if sockets.is_empty() {
                self.sockets.remove(&hold.port);
            }
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

    /// Whether somebody on this machine is in the group.
    fn is_joined(&self, group: IpAddr) -> bool {
        group == ALL_NODES_V4 || group == ALL_NODES_V6 || self.groups.contains_key(&group)
    }

    /// The one socket that gets a datagram, or the first of several: calls `each` for all of them.
    pub(super) fn receivers(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        mut each: impl FnMut(&Arc<Socket>),
    ) {
        let Some(sockets) = self.sockets.get(&to.port()) else {
            return;
        };
        if is_for_many(to.ip()) {
            if to.ip().is_multicast() && !self.is_joined(to.ip()) {
                return;
            }
            let wanting = sockets
                .iter()
                .filter(|socket| score(socket, from, to.ip()) > 0 && socket.wants(to.ip()));
            wanting.for_each(each);
            return;
        }
        if let [only] = &sockets[..] {
            if score(only, from, to.ip()) > 0 {
                each(only);
            }
            return;
        }
        let best = sockets
            .iter()
            .map(|socket| score(socket, from, to.ip()))
            .max()
            .unwrap_or(0);
        if best == 0 {
            return;
        }
        let fitting = || {
            let sockets = sockets.iter();
            sockets.filter(|socket| score(socket, from, to.ip()) == best)
        };
        let sharing = |socket: &&Arc<Socket>| socket.inner().options.reuse_port;
        let count = fitting().filter(sharing).count();
        // Sockets that share the port share the senders; of others the last one that was bound gets everything.
        let chosen = if count > 0 {
            fitting().filter(sharing).nth(spread(from) % count)
        } else {
            fitting().next_back()
        };
        if let Some(socket) = chosen {
            each(socket);
        }
    }

    /// All sockets that have a name.
    pub fn list(&self) -> impl Iterator<Item = &Arc<Socket>> {
        self.sockets.values().flatten()
    }
}

impl Default for Table {
    fn default() -> Table {
        Table::new()
    }
}

/// A number that is the same for all datagrams of a sender.
fn spread(from: SocketAddr) -> usize {
    let ip = match from.ip() {
        IpAddr::V4(ip) => u64::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip) as u64,
    };
    let mixed = (ip << 16 | u64::from(from.port())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 33) as usize
}

/// How well a socket fits a datagram: 0 not at all.
fn score(socket: &Socket, from: SocketAddr, to: IpAddr) -> u32 {
    let inner = socket.inner();
    let connected = match inner.remote {
        Some(remote) if remote == from => 4,
        Some(_) => return 0,
        None => 0,
    };
    let Some(local) = inner.local else { return 0 };
    match Cover::of(local.ip(), inner.options.v6_only).score(to) {
        0 => 0,
        fit => fit + connected,
    }
}
