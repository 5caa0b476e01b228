//! Netlink sockets: ports, queues and options.

use alloc::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Weak},
    vec::Vec,
};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use abi::{
    Errno, Result,
    raw::{general::CAP_NET_ADMIN, ioctl::FIONREAD, net as raw, netlink},
};
use core::ops::Bound::{Excluded, Unbounded};
use fs::Ready;

use nucleus::{
    PAGE_SIZE, VirtAddr, frame, random,
    sync::{Mutex, Rank, SpinLock},
    task::Watch,
    user,
};

use vm::account::{Kind, Stock};

use super::{
    diagnosis,
    message::{Answers, MOST_ANSWERS},
    name::{self, AF_NETLINK},
    route::{self, Asker},
};
use crate::{
    ipc::mqueue::Mailbox,
    process::thread,
    socket::{Address, Answer, Common, Incoming, Outgoing, Socket, Timeout, Value, Waited, common},
};

const AF_UNSPEC: u32 = 0;
/// The level of netlink's options.
const SOL_NETLINK: u32 = 270;
/// Groups of `NETLINK_ROUTE` (`RTNLGRP_MAX`).
const GROUPS: u32 = 36;
/// Linux's accounting for keeping one datagram, besides its bytes.
const OVERHEAD: usize = 768;
/// Bytes of a send buffer that a message can't use.
const RESERVED: usize = 32;
/// Ports for sockets of a process that has one already are looked for from here downwards.
const LAST_OF_OTHERS: u32 = 4096u32.wrapping_neg();

/// Options that are on or off.
const SWITCHES: [u32; 6] = [
    netlink::NETLINK_PKTINFO,
    netlink::NETLINK_BROADCAST_ERROR,
    netlink::NETLINK_NO_ENOBUFS,
    netlink::NETLINK_CAP_ACK,
    netlink::NETLINK_EXT_ACK,
    netlink::NETLINK_GET_STRICT_CHK,
];

/// The number of a protocol and a port of it.
type Key = (u32, u32);

/// The sockets by protocol and port. The kernel is at port 0.
static PORTS: Mutex<BTreeMap<Key, Weak<NetlinkSocket>>> =
    Mutex::new(net::rank::NET, BTreeMap::new());

/// Groups of `NETLINK_ROUTE` that ever had a member, bit by group, less 1.
static LISTENED: AtomicU64 = AtomicU64::new(0);

/// Tells whether a group of `NETLINK_ROUTE` may have members.
pub fn has_listeners(group: u32) -> bool {
    LISTENED.load(Relaxed) & 1 << (group - 1) != 0
}

/// Tells whether any group of `NETLINK_ROUTE` may have members.
pub fn has_any_listeners() -> bool {
    LISTENED.load(Relaxed) != 0
}

/// Sends news to the members of a group of `NETLINK_ROUTE`. One without room, and all without
/// memory, are told that they have missed something.
pub fn tell_group(group: u32, data: core::result::Result<&[u8], &Errno>) {
    let is_member = |socket: &NetlinkSocket| {
        let state = *socket.state.lock();
        socket.is_of(netlink::NETLINK_ROUTE) && state.groups & 1 << (group - 1) != 0
    };
    visit_sockets(is_member, |member| {
        let copied = match data {
            Ok(data) => nucleus::try_copy(data).map_err(Errno::from),
            Err(error) => Err(*error),
        };
        member.enqueue_or_fail(copied, (0, group), 0);
        true
    });
}

/// A netlink socket.
pub struct NetlinkSocket {
    common: Waited,
    own: Weak<NetlinkSocket>,
    state: SpinLock<State>,
    queue: SpinLock<Queue>,
    /// Bit by option number.
    options: AtomicU32,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// 0 until it has one.
    port: u32,
    /// Bit by group, less 1.
    groups: u64,
    /// To whom it sends.
    peer: u32,
    peer_groups: u32,
}

struct Queue {
    datagrams: VecDeque<Datagram>,
    /// Their cost, as it counts against the receive buffer.
    cost: usize,
    /// Charges them to the maker of the socket.
    stock: Stock,
}

impl Queue {
    fn cover(&self) {
        self.stock.cover(self.cost.div_ceil(PAGE_SIZE));
    }
}

/// A datagram that waits to be received.
#[derive(Clone)]
struct Datagram {
    data: Vec<u8>,
    /// The sender's port.
    from: u32,
    /// The group that it was sent to, 0 for none.
    group: u32,
}

/// One socket, as `/proc/net/netlink` shows it.
pub struct SocketEntry {
    pub port: u32,
    pub groups: u32,
    /// Bytes that wait.
    pub waiting: usize,
    pub inode: u64,
}

/// Visits all sockets with a port that `wanted` chooses, by port, until `visit` returns false.
fn visit_sockets(
    wanted: impl Fn(&NetlinkSocket) -> bool,
    visit: impl FnMut(Arc<NetlinkSocket>) -> bool,
) {
    let fill = |after: Option<Key>, take: &mut dyn FnMut(Key, Arc<NetlinkSocket>) -> bool| {
        let ports = PORTS.lock();
        let mut rest = ports.range((after.map_or(Unbounded, Excluded), Unbounded));
        rest.all(|(port, socket)| match socket.upgrade() {
            Some(socket) if wanted(&socket) => take(*port, socket),
            // The last reference is not dropped here, where the table is locked.
            _ => true,
        });
    };
    nucleus::visit_by_key(fill, visit);
}

/// Visits all sockets with a port.
pub fn list(mut visit: impl FnMut(SocketEntry)) {
    visit_sockets(
        |_| true,
        |socket| {
            let state = *socket.state.lock();
            let waiting = socket.queue.lock().cost;
            visit(SocketEntry {
                port: state.port,
                groups: state.groups as u32,
                waiting,
                inode: socket.common.inode,
            });
            true
        },
    );
}

impl NetlinkSocket {
    /// The netlink socket that a socket is, if it is one.
    pub fn of(socket: &Arc<dyn Socket>) -> Option<Arc<NetlinkSocket>> {
        let any: &dyn core::any::Any = &**socket;
        any.downcast_ref::<NetlinkSocket>()?.own.upgrade()
    }

    /// A socket without a port.
    pub fn make(kind: u32, protocol: u32) -> Arc<dyn Socket> {
        Arc::new_cyclic(|own| NetlinkSocket {
            common: Waited::new(AF_NETLINK, kind, protocol),
            own: own.clone(),
            state: SpinLock::new(Rank::Leaf, State::default()),
            queue: SpinLock::new(
                Rank::Leaf,
                Queue {
                    datagrams: VecDeque::new(),
                    cost: 0,
                    stock: Stock::of_current(Kind::Sockets),
                },
            ),
            options: AtomicU32::new(0),
        })
    }

    fn is_of(&self, protocol: u32) -> bool {
        self.common.protocol == protocol
    }

    fn key(&self, port: u32) -> Key {
        (self.common.protocol, port)
    }

    fn is_on(&self, option: u32) -> bool {
        self.options.load(Relaxed) & 1 << option != 0
    }

    /// Takes `port`, or any with 0: the process's id if it is free.
    ///
    /// # Errors
    /// `EADDRINUSE`; `EINVAL` if it has one already.
    fn take_port(&self, port: u32) -> Result<()> {
        let mut ports = PORTS.lock();
        if self.state.lock().port != 0 {
            return Err(Errno::EINVAL);
        }
        let port = match port {
            0 => {
                let process = thread::with_current(|thread| thread.process().pid()).unwrap_or(1);
                let mut port = process;
                while port == 0 || ports.contains_key(&self.key(port)) {
                    port = LAST_OF_OTHERS - random::u64() as u32 % (u32::MAX >> 1);
                }
                port
            }
            port if ports.contains_key(&self.key(port)) => return Err(Errno::EADDRINUSE),
            port => port,
        };
        ports.insert(self.key(port), self.own.clone());
        self.state.lock().port = port;
        Ok(())
    }

    /// Has a port, whichever.
    fn ensure_port(&self) -> Result<u32> {
        let port = self.state.lock().port;
        if port == 0 {
            match self.take_port(0) {
                // Another thread was faster.
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.state.lock().port)
    }

    /// Adds a datagram if there is room in the receive buffer and in `more` bytes.
    fn try_enqueue(&self, datagram: &mut Option<Datagram>, more: usize) -> Option<()> {
        let cost = datagram.as_ref()?.data.len() + OVERHEAD;
        {
            let mut queue = self.queue.lock();
            let fits =
                queue.cost == 0 || queue.cost + cost <= self.common.receive_buffer().max(more);
            if !fits || queue.datagrams.try_reserve(1).is_err() {
                return None;
            }
            queue.cost += cost;
            queue.datagrams.extend(datagram.take());
            queue.cover();
        }
        self.common.readers.wake_shared(false);
        Some(())
    }

    /// Adds a datagram from a port to a group, or tells the receiver that it has missed one without
    /// room or without memory for it; returns whether it was added.
    fn enqueue_or_fail(
        &self,
        data: Result<Vec<u8>>,
        (from, group): (u32, u32),
        more: usize,
    ) -> bool {
        let mut datagram = data.ok().map(|data| Datagram { data, from, group });
        let has_room = self.try_enqueue(&mut datagram, more).is_some();
        if !has_room && !self.is_on(netlink::NETLINK_NO_ENOBUFS) {
            self.common.set_error(Errno::ENOBUFS);
            self.common.readers.wake_all();
        }
        has_room
    }

    /// Sends to all that are in a group.
    fn send_to_group(&self, group: u32, from: u32, data: &[u8]) -> Result<()> {
        let is_member = |socket: &NetlinkSocket| {
            let state = *socket.state.lock();
            socket.is_of(self.common.protocol)
                && state.groups & 1 << (group - 1) != 0
                && state.port != from
        };
        let mut result = Ok(());
        visit_sockets(is_member, |member| {
            let copied = nucleus::try_copy(data);
            result = copied.map(|data| {
                member.enqueue_or_fail(Ok(data), (from, group), 0);
            });
            result.is_ok()
        });
        Ok(result?)
    }

    /// Takes the next datagram, or a copy of it.
    fn take(&self, peek: bool) -> Option<Result<Datagram>> {
        let datagram = {
            let mut queue = self.queue.lock();
            if peek {
                let next = queue.datagrams.front()?;
                let (from, group) = (next.from, next.group);
                let data = nucleus::try_copy(&next.data).map_err(Errno::from);
                return Some(data.map(|data| Datagram { data, from, group }));
            }
            let next = queue.datagrams.pop_front()?;
            queue.cost -= next.data.len() + OVERHEAD;
            queue.cover();
            next
        };
        self.common.writers.wake_shared(false);
        Some(Ok(datagram))
    }

    fn note_listens(&self, groups: u64) {
        if self.is_of(netlink::NETLINK_ROUTE) {
            LISTENED.fetch_or(groups, Relaxed);
        }
    }

    fn change_group(&self, value: &Value, join: bool) -> Result<()> {
        let group = value.int()? as u32;
        if !(1..=GROUPS).contains(&group) {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock();
        let bit = 1 << (group - 1);
        if join {
            self.note_listens(bit);
            state.groups |= bit;
        } else {
            state.groups &= !bit;
        }
        Ok(())
    }
}

impl Socket for NetlinkSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn option_changed(&self, name: u32) {
        self.common.option_changed(name);
    }

    fn bind(&self, address: &Address) -> Result<()> {
        let (port, groups) = name::read(address)?;
        let own = self.state.lock().port;
        match own {
            0 => self.take_port(port)?,
            own if own == port => {}
            _ => return Err(Errno::EINVAL),
        }
        let mut state = self.state.lock();
        self.note_listens(groups.into());
        // The name has room for the first 32 groups.
        state.groups = state.groups >> 32 << 32 | u64::from(groups);
        Ok(())
    }

    fn connect(&self, address: &Address, _: Timeout) -> Result<()> {
        let (peer, peer_groups) = match address.family() {
            Some(AF_UNSPEC) => (0, 0),
            _ => name::read(address)?,
        };
        if (peer != 0 || peer_groups != 0) && !common::may(CAP_NET_ADMIN) {
            return Err(Errno::EPERM);
        }
        self.ensure_port()?;
        let mut state = self.state.lock();
        state.peer = peer;
        state.peer_groups = peer_groups;
        Ok(())
    }

    fn name(&self) -> Result<Address> {
        let state = *self.state.lock();
        Ok(name::write(state.port, state.groups as u32))
    }

    fn peer_name(&self) -> Result<Address> {
        let state = *self.state.lock();
        Ok(name::write(state.peer, state.peer_groups))
    }

    fn send(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        if message.has(raw::MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        let len = message.data.left();
        if len == 0 {
            return Err(Errno::ENODATA);
        }
        let (to, groups) = match &message.to {
            Some(to) => name::read(to)?,
            None => {
                let state = *self.state.lock();
                (state.peer, state.peer_groups)
            }
        };
        let is_administrator = common::may(CAP_NET_ADMIN);
        if message.to.is_some() && (to != 0 || groups != 0) && !is_administrator {
            return Err(Errno::EPERM);
        }
        let port = self.ensure_port()?;
        if len > self.common.send_buffer().saturating_sub(RESERVED) {
            return Err(Errno::EMSGSIZE);
        }
        frame::check_not_scarce()?;
        let mut data = nucleus::try_filled(len, 0)?;
        message.data.take_all(&mut data)?;
        let group = name::first_group(groups);
        if group != 0 {
            self.send_to_group(group, port, &data)?;
        }
        if to == 0 {
            let asker = Asker {
                port,
                is_administrator,
                is_strict: self.is_on(netlink::NETLINK_GET_STRICT_CHK),
                caps_outcomes: self.is_on(netlink::NETLINK_CAP_ACK),
            };
            // A program that reads the answers before gets all of a list, however long that is.
            let has_room = self.queue.lock().cost <= self.common.receive_buffer();
            let more = if has_room { MOST_ANSWERS } else { 0 };
            let mut give = |data| self.enqueue_or_fail(data, (0, 0), more);
            let mut answers = Answers::new(&mut give);
            match self.is_of(netlink::NETLINK_ROUTE) {
                true => route::serve(&data, &asker, &mut answers),
                false => diagnosis::serve(&data, &asker, &mut answers),
            }
            return Ok(len);
        }
        let receiver = PORTS.lock().get(&self.key(to)).and_then(Weak::upgrade);
        let receiver = receiver.ok_or(Errno::ECONNREFUSED)?;
        let mut datagram = Some(Datagram {
            data,
            from: port,
            group: 0,
        });
        let enqueue = || receiver.try_enqueue(&mut datagram, 0);
        message.timeout.wait(&receiver.common.writers, enqueue)?;
        Ok(len)
    }

    fn receive(&self, message: &mut Incoming<'_>) -> Result<usize> {
        if message.has(raw::MSG_OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        if message.has(raw::MSG_ERRQUEUE) {
            return Err(Errno::EAGAIN);
        }
        let peek = message.peeks();
        let next = || match self.common.take_error() {
            Some(error) => Some(Err(error)),
            None => self.take(peek),
        };
        let datagram = message.timeout.wait(&self.common.readers, next)??;
        message.from = Some(name::write(
            datagram.from,
            match datagram.group {
                0 => 0,
                group => 1u32.checked_shl(group - 1).unwrap_or(0),
            },
        ));
        if self.is_on(netlink::NETLINK_PKTINFO) {
            let group = datagram.group.to_le_bytes();
            message
                .control
                .put(SOL_NETLINK, netlink::NETLINK_PKTINFO, &group);
        }
        let whole = datagram.data.len();
        let copied = whole.min(message.data.room());
        message.data.put_all(&datagram.data[..copied])?;
        if copied < whole {
            message.answer |= raw::MSG_TRUNC;
        }
        Ok(if message.has(raw::MSG_TRUNC) {
            whole
        } else {
            copied
        })
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.common.readers);
            watch.add(&self.common.writers);
        }
        let has_error = self.common.has_error();
        let mut ready = Ready::OUT | Ready::WRNORM;
        let waiting = !self.queue.lock().datagrams.is_empty();
        ready.set(Ready::IN | Ready::RDNORM, waiting);
        ready.set(Ready::ERR, has_error);
        ready
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        if command != FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let next = self
            .queue
            .lock()
            .datagrams
            .front()
            .map_or(0, |d| d.data.len());
        user::write(argument, &(next as i32))?;
        Ok(0)
    }

    fn set_option(&self, level: u32, name: u32, value: &Value) -> Result<()> {
        if level != SOL_NETLINK {
            return Err(Errno::ENOPROTOOPT);
        }
        match name {
            netlink::NETLINK_ADD_MEMBERSHIP => return self.change_group(value, true),
            netlink::NETLINK_DROP_MEMBERSHIP => return self.change_group(value, false),
            _ if SWITCHES.contains(&name) => {}
            _ => return Err(Errno::ENOPROTOOPT),
        }
        if value.int()? != 0 {
            self.options.fetch_or(1 << name, Relaxed);
        } else {
            self.options.fetch_and(!(1 << name), Relaxed);
        }
        Ok(())
    }

    fn option(&self, level: u32, name: u32) -> Result<Answer> {
        if level != SOL_NETLINK {
            return Err(Errno::ENOPROTOOPT);
        }
        match name {
            netlink::NETLINK_LIST_MEMBERSHIPS => {
                let groups = self.state.lock().groups;
                Ok(Answer::Bytes(groups.to_le_bytes().to_vec()))
            }
            _ if SWITCHES.contains(&name) => Ok(Answer::flag(self.is_on(name))),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    fn release(&self) {
        let port = self.state.lock().port;
        if port != 0 {
            PORTS.lock().remove(&self.key(port));
        }
        let datagrams = core::mem::take(&mut self.queue.lock().datagrams);
        drop(datagrams);
    }
}

impl Mailbox for NetlinkSocket {
    fn deliver(&self, data: Vec<u8>) {
        self.enqueue_or_fail(Ok(data), (0, 0), 0);
    }
}
