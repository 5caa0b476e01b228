//! Packet sockets.

use alloc::sync::{Arc, Weak};
use core::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use abi::{
    Errno, Result,
    raw::{if_packet as packet, ioctl::FIONREAD, net as raw},
};
use fbuf::Aggregate;
use fs::Ready;
use net::{
    ip::Interface,
    link::{Direction, Mac, Tap},
    packet::{Checksum, Packet},
};
use nucleus::{
    PAGE_SIZE, VirtAddr, frame,
    sync::{Mutex, OnceArc, Rank, SpinLock},
    task::Watch,
    time, user,
};
use vm::{
    Pager,
    account::{Account, Charge, Kind},
};

use super::{
    fbufs::Fbufs,
    list::{self, Entry, Listed},
    name::{AF_PACKET, Name},
    queue::Queue,
    ring::{self, Added, Ring, Shape},
    seen::{ETHERNET, Seen},
};
use crate::{
    bpf::Program,
    ipc::fbuf::request,
    process::signal::timer::{Punctual, WakeUp},
    socket::{
        Address, Answer, Common, Incoming, Outgoing, Socket, Value, Waited,
        inet::{interface, stack},
    },
};

/// The level of the options.
const SOL_PACKET: u32 = 263;
/// Packets of all protocols.
const ALL: u16 = 3;
/// The longest frame that a program sends, besides the interface's MTU.
const MAX: usize = 65_535;
/// `sendto` to a socket without a protocol.
const AUXILIARY: usize = 20;

/// A packet socket.
pub struct PacketSocket {
    common: Waited,
    own: Weak<PacketSocket>,
    /// The header of the link is left out (`SOCK_DGRAM`).
    is_cooked: bool,
    /// `ETH_P_*`, 0 for none.
    protocol: AtomicU32,
    /// 0 for all interfaces.
    interface: AtomicU32,
    /// It is among the network's taps. Locked while that changes, so that the two agree.
    is_tapping: Mutex<bool>,
    filter: SpinLock<Option<Arc<Filter>>>,
    queue: Queue,
    ring: OnceArc<Ring>,
    /// Fbufs in which the program reads packets.
    fbufs: OnceArc<Fbufs>,
    /// The end of the time of the ring's block that is being filled.
    call: SpinLock<Option<(Duration, WakeUp)>>,
    has_auxiliary: AtomicBool,
    ignores_outgoing: AtomicBool,
    version: AtomicU32,
    reserve: AtomicU32,
    /// Interfaces that it has made promiscuous.
    watched: SpinLock<[Option<(u32, u32)>; MOST_WATCHED]>,
    /// Its place in the list of all, from the start on.
    place: AtomicUsize,
}

/// The most memberships of one socket.
const MOST_WATCHED: usize = 16;

/// A filter of what it sees.
struct Filter {
    program: Program,
    /// Charges it to the maker of the socket.
    _charge: Option<Charge>,
}

impl PacketSocket {
    /// Makes a socket, which sees packets of a protocol from now on unless that is 0.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn make(kind: u32, protocol: u16) -> Result<Arc<dyn Socket>> {
        frame::check_not_scarce()?;
        let socket = Arc::new_cyclic(|own| PacketSocket {
            common: Waited::new(AF_PACKET, kind, protocol.swap_bytes().into()),
            own: own.clone(),
            is_cooked: kind == raw::SOCK_DGRAM,
            protocol: AtomicU32::new(protocol.into()),
            interface: AtomicU32::new(0),
            is_tapping: Mutex::new(net::rank::NET, false),
            filter: SpinLock::new(Rank::Leaf, None),
            queue: Queue::new(),
            ring: OnceArc::new(),
            fbufs: OnceArc::new(),
            call: SpinLock::new(Rank::Leaf, None),
            has_auxiliary: AtomicBool::new(false),
            ignores_outgoing: AtomicBool::new(false),
            version: AtomicU32::new(0),
            reserve: AtomicU32::new(0),
            watched: SpinLock::new(Rank::Leaf, [None; MOST_WATCHED]),
            place: AtomicUsize::new(0),
        });
        let listed: Weak<PacketSocket> = Arc::downgrade(&socket);
        let place = list::add(listed)?;
        socket.place.store(place, Relaxed);
        // From here on, `release` takes it off the list.
        let result = socket.set_tapping(protocol != 0);
        result.inspect_err(|_| list::remove(place))?;
        Ok(socket)
    }

    /// Sees packets from now on, or not any more.
    fn set_tapping(&self, sees: bool) -> Result<()> {
        let Some(own) = self.own.upgrade() else {
            return Ok(());
        };
        let own: Arc<dyn Tap> = own;
        let taps = stack().network().taps();
        let mut is_tapping = self.is_tapping.lock();
        match (sees, *is_tapping) {
            (true, false) => taps.add(own)?,
            (false, true) => {
                taps.remove(&own);
            }
            _ => {}
        }
        *is_tapping = sees;
        Ok(())
    }

    /// Closes the ring's block at a time since boot, unless a later block has been begun.
    fn call_at(&self, due: Duration) {
        let own: Weak<dyn Punctual> = self.own.clone();
        let mut call = Some((due, WakeUp::call(due, own)));
        {
            let mut last = self.call.lock();
            if last.as_ref().is_none_or(|(other, _)| *other < due) {
                core::mem::swap(&mut *last, &mut call);
            }
        }
        // One of the two goes without the lock.
        drop(call);
    }

    /// Makes the ring, or only checks that none is wanted.
    fn make_ring(&self, value: &Value) -> Result<()> {
        let words: [u32; 4] = value.read()?;
        let [block_size, blocks, slot_size, slots] = words.map(|word| word as usize);
        // A ring stays until the socket is closed.
        if self.ring.get().is_some() || self.fbufs.get().is_some() {
            return Err(Errno::EBUSY);
        }
        if slots == 0 && blocks == 0 {
            return Ok(());
        }
        let version = match self.version.load(Relaxed) {
            1 => 2,
            2 => 3,
            _ => return Err(Errno::EINVAL),
        };
        let (patience, private) = match version {
            3 => {
                let words: [u32; 7] = value.read()?;
                (words[4], words[5] as usize)
            }
            _ => (0, 0),
        };
        let shape = Shape {
            version,
            block_size,
            blocks,
            slot_size,
            slots,
            reserve: self.reserve.load(Relaxed) as usize,
            private,
            patience,
            has_link: !self.is_cooked,
        };
        let account = self.common.account();
        let charge = |bytes| account.map(|account| account.charge(Kind::Sockets, 0, bytes));
        let made = Ring::new(shape, charge)?;
        // Another thread's ring may have another shape.
        match core::ptr::eq(self.ring.get_or_insert(|| made.clone()), &*made) {
            true => Ok(()),
            false => Err(Errno::EBUSY),
        }
    }

    /// Adds or removes a membership (`struct packet_mreq`): packets for other machines.
    fn change_membership(&self, value: &Value, joins: bool) -> Result<()> {
        let bytes: [u8; 16] = value.read()?;
        let index = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let kind = u32::from(u16::from_le_bytes([bytes[4], bytes[5]]));
        let interface = interface::by_index(index)?;
        // All groups are received anyway.
        if kind != packet::PACKET_MR_PROMISC {
            return match kind {
                packet::PACKET_MR_MULTICAST
                | packet::PACKET_MR_ALLMULTI
                | packet::PACKET_MR_UNICAST => Ok(()),
                _ => Err(Errno::EINVAL),
            };
        }
        let mut watched = self.watched.lock();
        let is_it = |it: &&mut Option<(u32, u32)>| it.is_some_and(|it| it.0 == index);
        match (watched.iter_mut().find(is_it), joins) {
            (Some(Some((_, count))), true) => {
                *count = count.checked_add(1).ok_or(Errno::ENOBUFS)?;
                return Ok(());
            }
            (Some(slot), false) => match slot {
                Some((_, count)) if *count > 1 => {
                    *count -= 1;
                    return Ok(());
                }
                _ => *slot = None,
            },
            (None, false) => return Err(Errno::EADDRNOTAVAIL),
            (_, true) => {
                let free = watched.iter_mut().find(|it| it.is_none());
                *free.ok_or(Errno::ENOBUFS)? = Some((index, 1));
            }
        }
        drop(watched);
        match joins {
            true => interface.watch(),
            false => interface.unwatch(),
        }
        Ok(())
    }

    /// The interface, the destination and the protocol of a message.
    fn way(&self, to: Option<&Address>) -> Result<(Arc<Interface>, Name)> {
        let name = match to {
            Some(to) => Name::read(to)?,
            None => Name {
                interface: self.interface.load(Relaxed),
                protocol: self.protocol.load(Relaxed) as u16,
                ..Name::default()
            },
        };
        let found = stack().network().interface(name.interface);
        let interface = found.ok_or(Errno::ENXIO)?;
        if !interface.is_up() {
            return Err(Errno::ENETDOWN);
        }
        Ok((interface, name))
    }
}

impl Tap for PacketSocket {
    fn see(&self, index: u32, mac: Option<Mac>, direction: Direction, packet: &Packet) {
        let only = self.interface.load(Relaxed);
        if only != 0 && only != index {
            return;
        }
        let protocol = self.protocol.load(Relaxed) as u16;
        let is_outgoing = direction == Direction::Out;
        // Only those that want all see what is sent.
        if is_outgoing && (protocol != ALL || self.ignores_outgoing.load(Relaxed)) {
            return;
        }
        let seen = Seen::new(index, mac, direction, packet, self.is_cooked);
        if protocol != ALL && protocol != seen.name.protocol {
            return;
        }
        let filter = self.filter.lock().clone();
        let mut len = seen.size();
        if let Some(filter) = filter {
            match filter.program.run_on_packet(&seen) as usize {
                0 => return,
                wanted => len = len.min(wanted),
            }
        }
        let now = time::since_epoch();
        let added = match self.ring.get() {
            Some(ring) => ring.add(&seen, len, now, self.queue.has_lost()),
            None => {
                let is_in_fbufs = Fbufs::keep(&self.fbufs, &seen, packet, len);
                let limit = self.common.receive_buffer();
                Added::at_once(is_in_fbufs || self.queue.keep(&seen, len, now, limit))
            }
        };
        self.queue.note(added.is_kept);
        if let Some(due) = added.due {
            self.call_at(due);
        }
        if added.is_news {
            self.common.readers.wake_shared(false);
        }
    }
}

impl Listed for PacketSocket {
    fn entry(&self) -> Entry {
        Entry {
            kind: self.common.kind,
            protocol: self.protocol.load(Relaxed) as u16,
            interface: self.interface.load(Relaxed),
            waiting: self.queue.cost(),
            owner: self.common.owner.0,
            inode: self.common.inode,
        }
    }
}

impl Punctual for PacketSocket {
    /// A block of the ring has waited for further packets long enough.
    fn be_due(&self) {
        let closes = |ring: &Ring| ring.close_due(time::since_epoch());
        if self.ring.get().is_some_and(closes) {
            self.common.readers.wake_shared(false);
        }
    }
}

impl Socket for PacketSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(&self, address: &Address) -> Result<()> {
        let name = Name::read(address)?;
        if name.interface != 0 {
            interface::by_index(name.interface)?;
        }
        self.interface.store(name.interface, Relaxed);
        self.fbufs.get().inspect(|it| it.move_to(name.interface));
        if name.protocol != 0 {
            self.protocol.store(name.protocol.into(), Relaxed);
        }
        self.set_tapping(self.protocol.load(Relaxed) != 0)
    }

    fn name(&self) -> Result<Address> {
        let index = self.interface.load(Relaxed);
        let mut name = Name {
            protocol: self.protocol.load(Relaxed) as u16,
            interface: index,
            ..Name::default()
        };
        if let Ok(interface) = interface::by_index(index) {
            name.hardware = crate::socket::netlink::hardware(&interface);
            if interface.is_loopback() {
                name.mac_len = 6;
            }
            if let Some(mac) = interface.mac() {
                (name.mac, name.mac_len) = (mac.0, 6);
            }
        }
        Ok(Address::new(&name.bytes()))
    }

    fn send(&self, message: &mut Outgoing<'_>) -> Result<usize> {
        let (interface, name) = self.way(message.to.as_ref())?;
        let len = message.data.left();
        let mac = interface.mac();
        let header = if mac.is_some() { ETHERNET } else { 0 };
        let most = usize::from(interface.mtu()) + if self.is_cooked { 0 } else { ETHERNET };
        if len > most.min(MAX) {
            return Err(Errno::EMSGSIZE);
        }
        if !self.is_cooked && len < header.max(1) {
            return Err(Errno::EINVAL);
        }
        frame::check_not_scarce()?;
        let mut data = Aggregate::new();
        if data.fill_from(message.data, len)? < len {
            return Err(Errno::EFAULT);
        }
        // `lo` shows a header that its packets have not.
        if interface.is_loopback() && !self.is_cooked {
            if len < ETHERNET {
                return Err(Errno::EINVAL);
            }
            data.clip_front(ETHERNET);
        }
        let mut packet = Packet {
            data,
            checksum: Checksum::Unknown,
            ..Packet::default()
        };
        if let (true, Some(own)) = (self.is_cooked, mac) {
            let head = packet.head.push(ETHERNET);
            head[..6].copy_from_slice(&name.mac);
            head[6..12].copy_from_slice(&own.0);
            head[12..].copy_from_slice(&name.protocol.to_be_bytes());
        }
        interface.transmit(&mut packet);
        if interface.is_loopback() {
            stack().network().run_loopback(MOST_DELIVERED);
        }
        Ok(len)
    }

    fn receive(&self, message: &mut Incoming<'_>) -> Result<usize> {
        if message.has(raw::MSG_ERRQUEUE) {
            return Err(Errno::EAGAIN);
        }
        let peek = message.peeks();
        let next = || match self.common.take_error() {
            Some(error) => Some(Err(error)),
            None => self.queue.take(peek).map(Ok),
        };
        let mut kept = message.timeout.wait(&self.common.readers, next)??;
        message.from = Some(Address::new(&kept.name.bytes()));
        self.common.put_time(&mut message.control, kept.at);
        let given = kept.data.len();
        if self.has_auxiliary.load(Relaxed) {
            let mut bytes = [0; AUXILIARY];
            let words = [1 | kept.checksum, kept.whole as u32, given as u32];
            for (n, word) in words.into_iter().enumerate() {
                bytes[n * 4..n * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
            let network = if self.is_cooked { 0 } else { kept.link as u16 };
            bytes[14..16].copy_from_slice(&network.to_le_bytes());
            message
                .control
                .put(SOL_PACKET, packet::PACKET_AUXDATA, &bytes);
        }
        let wanted = given.min(message.data.room());
        let mut copied = 0;
        while copied < wanted {
            match kept.data.drain_into(message.data, wanted - copied)? {
                0 => return Err(Errno::EFAULT),
                n => copied += n,
            }
        }
        if copied < given {
            message.answer |= raw::MSG_TRUNC;
        }
        Ok(match message.has(raw::MSG_TRUNC) {
            true => given,
            false => copied,
        })
    }

    fn poll<'a>(&'a self, watch: Option<&mut dyn Watch<'a>>) -> Ready {
        if let Some(watch) = watch {
            watch.add(&self.common.readers);
        }
        let waiting = match self.ring.get() {
            Some(ring) => ring.is_readable(),
            None => self.fbufs.get().is_some_and(Fbufs::has_parts) || !self.queue.is_empty(),
        };
        let mut ready = Ready::OUT | Ready::WRNORM;
        ready.set(Ready::IN | Ready::RDNORM, waiting);
        ready.set(Ready::ERR, self.common.has_error());
        ready
    }

    fn ioctl(&self, command: u32, argument: VirtAddr) -> Result<usize> {
        match command {
            FIONREAD => {}
            request::FRAMES if self.ring.get().is_some() => return Err(Errno::EBUSY),
            request::FRAMES => {
                return Fbufs::open(argument, &self.fbufs, self.interface.load(Relaxed));
            }
            request::FRAMES_TAKE => {
                self.common.take_error().map_or(Ok(()), Err)?;
                return Fbufs::take(argument, &self.fbufs, || !self.queue.is_empty());
            }
            _ => return Err(Errno::ENOTTY),
        }
        user::write(argument, &(self.queue.next_len() as i32))?;
        Ok(0)
    }

    fn set_option(&self, level: u32, name: u32, value: &Value) -> Result<()> {
        if level != SOL_PACKET {
            return Err(Errno::ENOPROTOOPT);
        }
        match name {
            packet::PACKET_ADD_MEMBERSHIP => return self.change_membership(value, true),
            packet::PACKET_DROP_MEMBERSHIP => return self.change_membership(value, false),
            packet::PACKET_RX_RING => return self.make_ring(value),
            _ => {}
        }
        let number = value.int()?;
        match name {
            packet::PACKET_AUXDATA => self.has_auxiliary.store(number != 0, Relaxed),
            packet::PACKET_IGNORE_OUTGOING => {
                self.ignores_outgoing.store(number != 0, Relaxed);
            }
            packet::PACKET_VERSION => {
                if self.ring.get().is_some() {
                    return Err(Errno::EBUSY);
                }
                if !(0..=2).contains(&number) {
                    return Err(Errno::EINVAL);
                }
                self.version.store(number as u32, Relaxed);
            }
            packet::PACKET_RESERVE => {
                if self.ring.get().is_some() {
                    return Err(Errno::EBUSY);
                }
                let reserve = u32::try_from(number).map_err(|_| Errno::EINVAL)?;
                if reserve as usize > PAGE_SIZE {
                    return Err(Errno::EINVAL);
                }
                self.reserve.store(reserve, Relaxed);
            }
            // Times are those of arrival in the kernel.
            packet::PACKET_TIMESTAMP | packet::PACKET_COPY_THRESH | packet::PACKET_LOSS => {}
            _ => return Err(Errno::ENOPROTOOPT),
        }
        Ok(())
    }

    fn option(&self, level: u32, name: u32) -> Result<Answer> {
        if level != SOL_PACKET {
            return Err(Errno::ENOPROTOOPT);
        }
        Ok(match name {
            packet::PACKET_STATISTICS => {
                let [seen, lost] = self.queue.take_counts();
                match self.version.load(Relaxed) {
                    2 => Answer::of(&[seen, lost, 0]),
                    _ => Answer::of(&[seen, lost]),
                }
            }
            packet::PACKET_AUXDATA => Answer::flag(self.has_auxiliary.load(Relaxed)),
            packet::PACKET_IGNORE_OUTGOING => Answer::flag(self.ignores_outgoing.load(Relaxed)),
            packet::PACKET_VERSION => Answer::Int(self.version.load(Relaxed) as i32),
            packet::PACKET_RESERVE => Answer::Int(self.reserve.load(Relaxed) as i32),
            packet::PACKET_TIMESTAMP => Answer::Int(0),
            _ => return Err(Errno::ENOPROTOOPT),
        })
    }

    fn exchange_option(&self, level: u32, name: u32, given: &Value) -> Option<Result<Answer>> {
        let asks = level == SOL_PACKET && name == packet::PACKET_HDRLEN;
        asks.then(|| given.int().and_then(ring::head_len).map(Answer::Int))
    }

    fn set_filter(&self, filter: Option<Program>) -> Result<()> {
        let is_none = filter.is_none();
        let account = self.common.account();
        let filter = filter.map(|program| {
            let charge = |account: &Arc<Account>| account.charge(Kind::Sockets, 0, program.bytes());
            Arc::new(Filter {
                _charge: account.map(charge),
                program,
            })
        });
        let old = core::mem::replace(&mut *self.filter.lock(), filter);
        match is_none && old.is_none() {
            true => Err(Errno::ENOENT),
            false => Ok(()),
        }
    }

    fn mapping(&self) -> Result<Arc<dyn Pager>> {
        match self.ring.get_arc() {
            Some(ring) => Ok(ring),
            None => Err(Errno::EINVAL),
        }
    }

    fn release(&self) {
        let _ = self.set_tapping(false);
        self.fbufs.get().inspect(|it| it.end());
        list::remove(self.place.load(Relaxed));
        let watched = core::mem::take(&mut *self.watched.lock());
        for (index, _) in watched.into_iter().flatten() {
            if let Ok(interface) = interface::by_index(index) {
                interface.unwatch();
            }
        }
        self.queue.clear();
    }
}

/// Packets inside this machine that a call delivers at most.
const MOST_DELIVERED: usize = 256;
