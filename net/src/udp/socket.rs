//! One UDP socket: its names, its state, its queue.

use alloc::{collections::VecDeque, sync::Arc, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use abi::{Errno, Result};
use nucleus::{
    random,
    sync::{MutexGuard, Rank, SpinGuard, SpinLock},
};

use super::{Datagram, Table, report::Reports};
use crate::{
    Family, Stack, Waits,
    address::{self, Cover},
    ports::{Binding, Hold},
};

/// Bytes that wait to be received, with what it takes to keep them: Linux's `net.core.rmem_default`.
pub const RECEIVE_BUFFER: usize = 212_992;
/// Groups that a socket may be in: Linux's `igmp_max_memberships`.
const MAX_GROUPS: usize = 20;

/// Which of the two protocols, each of which has ports of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Udp,
    UdpLite,
}

/// What `setsockopt` sets, as far as the protocol acts by it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub reuse_address: bool,
    pub reuse_port: bool,
    /// An IPv6 socket does without IPv4.
    pub v6_only: bool,
    /// May send to broadcast addresses.
    pub broadcast: bool,
    /// Bytes.
    pub receive_buffer: usize,
    /// Who made the socket.
    pub user: u32,
    /// What the floor above calls it: an inode's number.
    pub tag: u64,
    /// Datagrams to groups go out by the loopback interface; without, there is no way for them.
    pub multicast_by_loopback: bool,
    /// Datagrams that it sends to groups are received on this machine.
    pub multicast_loop: bool,
    /// It gets what is sent to groups that others have joined (`IP_MULTICAST_ALL`).
    pub multicast_all: bool,
    /// Errors are reported to a socket without a peer too (`IP_RECVERR`).
    pub receive_errors: bool,
    /// Bytes of a datagram that its sum covers, the header's 8 included; 0 for all (UDP-Lite).
    pub send_coverage: u16,
    /// Datagrams whose sum covers only a part, and that less than this, are refused; 0 refuses all those (UDP-Lite).
    pub receive_coverage: Option<u16>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            reuse_address: false,
            reuse_port: false,
            v6_only: false,
            broadcast: false,
            receive_buffer: RECEIVE_BUFFER,
            user: 0,
            tag: 0,
            multicast_by_loopback: false,
            multicast_loop: true,
            multicast_all: true,
            receive_errors: false,
            send_coverage: 0,
            receive_coverage: None,
        }
    }
}

/// A UDP socket.
pub struct Socket {
    pub(super) stack: Arc<Stack>,
    family: Family,
    protocol: Protocol,
    waits: Waits,
    /// Changed by holders of the table's lock; read by anybody.
    state: SpinLock<Inner>,
    queue: SpinLock<Queue>,
}

/// What the state's lock guards.
pub(super) struct Inner {
    pub options: Options,
    pub hold: Option<Hold>,
    /// The port was asked for by `bind`.
    bound: bool,
    pub local: Option<SocketAddr>,
    /// The local address that `bind` was given.
    bound_to: Option<IpAddr>,
    pub remote: Option<SocketAddr>,
    pub error: Option<Errno>,
    pub read_shut: bool,
    pub write_shut: bool,
    pub groups: Vec<IpAddr>,
}

/// What the queue's lock guards.
pub(super) struct Queue {
    pub datagrams: VecDeque<Datagram>,
    /// What they cost, as it counts against the receive buffer.
    pub cost: usize,
    /// Datagrams for which there was no room.
    pub dropped: u64,
    pub reports: Reports,
}

/// A socket at one time, for those who only look.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    pub options: Options,
    /// Bytes of all datagrams that wait.
    pub unread: usize,
    /// Bytes of the next datagram.
    pub next: usize,
    /// Datagrams for which there was no room.
    pub dropped: u64,
}

impl Socket {
    /// A socket without a name.
    pub fn new(
        stack: &Arc<Stack>,
        family: Family,
        protocol: Protocol,
        options: Options,
    ) -> Arc<Socket> {
        Arc::new(Socket {
            stack: stack.clone(),
            family,
            protocol,
            waits: Waits::default(),
            state: SpinLock::new(
                Rank::Leaf,
                Inner {
                    options,
                    hold: None,
                    bound: false,
                    local: None,
                    bound_to: None,
                    remote: None,
                    error: None,
                    read_shut: false,
                    write_shut: false,
                    groups: Vec::new(),
                },
            ),
            queue: SpinLock::new(
                Rank::Leaf,
                Queue {
                    datagrams: VecDeque::new(),
                    cost: 0,
                    dropped: 0,
                    reports: Reports::new(),
                },
            ),
        })
    }

    /// The version of IP that it was made for.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The protocol that it was made for.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Who is bound where, of its protocol.
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.stack.datagrams(self.protocol).lock()
    }

    /// Who waits for it.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    pub(super) fn inner(&self) -> SpinGuard<'_, Inner> {
        self.state.lock()
    }

    pub(super) fn queue(&self) -> SpinGuard<'_, Queue> {
        self.queue.lock()
    }

    /// All that is known of it.
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
        change(&mut self.inner().options);
    }

    /// Gives the socket a name. Port 0 lets the stack choose one.
    ///
    /// # Errors
    /// `EINVAL` if it has one, `EADDRNOTAVAIL` for an address that is not this machine's, `EADDRINUSE`.
    pub fn bind(self: &Arc<Socket>, address: SocketAddr) -> Result<()> {
        let ip = address.ip();
        let own = ip.is_unspecified() || address::is_own(ip) || ip.is_multicast();
        if !own {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let mut table = self.table();
        self.bind_in(&mut table, address)?;
        let mut inner = self.inner();
        inner.bound = address.port() != 0;
        inner.bound_to = Some(ip);
        Ok(())
    }

    fn bind_in(self: &Arc<Socket>, table: &mut Table, address: SocketAddr) -> Result<()> {
        let options = {
            let inner = self.inner();
            if inner.hold.is_some() {
                return Err(Errno::EINVAL);
            }
            inner.options
        };
        let binding = Binding {
            cover: Cover::of(address.ip(), options.v6_only),
            reuse_address: options.reuse_address,
            reuse_port: options.reuse_port,
            user: options.user,
            listening: false,
            automatic: false,
        };
        let hold = match address.port() {
            0 => table.ports.bind_any(binding, random::u64())?,
            port => table.ports.bind(port, binding)?,
        };
        table.add(hold.port, self);
        let mut inner = self.inner();
        inner.hold = Some(hold);
        inner.local = Some(SocketAddr::new(address.ip(), hold.port));
        Ok(())
    }

    /// Gives a socket without a name one, for sending.
    ///
    /// # Errors
    /// `EAGAIN` when no port is left, as on Linux.
    pub(super) fn name(self: &Arc<Socket>) -> Result<()> {
        if self.inner().hold.is_some() {
            return Ok(());
        }
        let mut table = self.table();
        let any = SocketAddr::new(self.family.unspecified(), 0);
        match self.bind_in(&mut table, any) {
            Err(Errno::EADDRINUSE) => Err(Errno::EAGAIN),
            // Another thread was faster.
            Err(Errno::EINVAL) => Ok(()),
            other => other,
        }
    }

    /// Sends to `to` and receives from there only, from now on.
    ///
    /// # Errors
    /// `ENETUNREACH`, `EACCES` for a broadcast address that the socket must not send to, `EAGAIN` when no port is left.
    pub fn connect(self: &Arc<Socket>, to: SocketAddr) -> Result<()> {
        let to = address::destination(to);
        let options = self.inner().options;
        let source = super::table::source(&options, to.ip())?;
        self.name()?;
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

    /// Ends a connection, and gives back the name if the connection gave it.
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
        table.remove(hold, self);
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

    /// Joins a multicast group on the loopback interface.
    ///
    /// # Errors
    /// `EINVAL` for what is no group, `EADDRINUSE` if it is in it, `ENOBUFS` if it is in too many.
    pub fn join(&self, group: IpAddr) -> Result<()> {
        if !group.is_multicast() {
            return Err(Errno::EINVAL);
        }
        let mut table = self.table();
        {
            let mut inner = self.inner();
            if inner.groups.contains(&group) {
                return Err(Errno::EADDRINUSE);
            }
            if inner.groups.len() == MAX_GROUPS {
                return Err(Errno::ENOBUFS);
            }
            inner.groups.push(group);
        }
        table.join(group);
        Ok(())
    }

    /// Leaves a group.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if it is not in it.
    pub fn leave(&self, group: IpAddr) -> Result<()> {
        let mut table = self.table();
        {
            let mut inner = self.inner();
            let at = inner.groups.iter().position(|other| *other == group);
            inner.groups.remove(at.ok_or(Errno::EADDRNOTAVAIL)?);
        }
        table.leave(group);
        Ok(())
    }

    /// The last descriptor is gone.
    pub fn close(&self) {
        let mut table = self.table();
        let (hold, groups) = {
            let mut inner = self.inner();
            (inner.hold.take(), core::mem::take(&mut inner.groups))
        };
        for group in groups {
            table.leave(group);
        }
        table.remove(hold, self);
        drop(table);
        let left = {
            let mut queue = self.queue.lock();
            queue.cost = 0;
            let reports = core::mem::take(&mut queue.reports);
            (core::mem::take(&mut queue.datagrams), reports)
        };
        drop(left);
    }
}
