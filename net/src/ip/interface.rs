//! An interface: a device, what the administrator has set, addresses, neighbours and counts.

use alloc::{sync::Arc, vec::Vec};
use core::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

use abi::{Errno, Result};
use fbuf::Aggregate;
use nucleus::sync::{Rank, SpinLock, lock_with_room};

use super::{
    address::Prefix,
    neighbours::{Neighbour, Neighbours},
    source,
};
use crate::{
    link::{Device, Direction, Features, Mac, Pools, Taps},
    packet::{Checksum, Packet},
};

/// The number of the loopback interface.
pub const LOOPBACK: u32 = 1;
/// The most addresses of an interface.
const MOST_ADDRESSES: usize = 64;
/// The least MTU that can be set: the one of every link (RFC 791).
const LEAST_MTU: u32 = 68;

/// The time for which a router's old version is spoken, in nanoseconds: two intervals of queries,
/// and the time of an answer (RFC 3376 8.12).
const OLD_QUERIER: u64 = 260_000_000_000;

/// The name of an interface: 15 bytes at most, then zeros.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Name(pub [u8; 16]);

impl Name {
    /// The loopback interface's.
    pub const LOOPBACK: Name = Name(*b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0");

    /// Makes a name of bytes up to the first zero; `None` for one that is empty, too long, `.` or
    /// `..`, or has a slash, a colon or a space.
    pub fn new(bytes: &[u8]) -> Option<Name> {
        let bytes = bytes.split(|&byte| byte == 0).next().unwrap_or(&[]);
        let is_wrong = |byte: &u8| matches!(byte, b'/' | b':') || byte.is_ascii_whitespace();
        if bytes.is_empty() || bytes.len() > 15 || bytes == b"." || bytes == b".." {
            return None;
        }
        if bytes.iter().any(is_wrong) {
            return None;
        }
        let mut name = [0; 16];
        name[..bytes.len()].copy_from_slice(bytes);
        Some(Name(name))
    }

    /// Returns the bytes with one zero behind them.
    pub fn with_zero(&self) -> &[u8] {
        let end = self.as_bytes().len() + 1;
        &self.0[..end.min(self.0.len())]
    }

    /// Returns the bytes before the zeros.
    pub fn as_bytes(&self) -> &[u8] {
        let len = self.0.iter().position(|&byte| byte == 0);
        &self.0[..len.unwrap_or(self.0.len())]
    }

    /// Returns `eth` and a number.
    pub(super) fn ethernet(number: u32) -> Name {
        let mut name = [0; 16];
        name[..3].copy_from_slice(b"eth");
        let mut digits = [0; 10];
        let (mut at, mut left) = (digits.len(), number);
        while left > 0 || at == digits.len() {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
        }
        name[3..3 + digits.len() - at].copy_from_slice(&digits[at..]);
        Name(name)
    }
}

/// Where an address or a route comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A program of the administrator's, or the kernel's command line.
    Static,
    /// The interface has it by itself: a link-local address, the route of an address.
    Kernel,
    /// A server of DHCP.
    Dhcp,
    /// A router's advertisement.
    Router,
    /// A program that says which it is: Linux's `RTPROT_*`.
    Program(u8),
}

/// Whether an address may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressState {
    /// It is this machine's.
    Valid,
    /// Other machines are being asked whether they have it (RFC 4862 5.4).
    Tentative,
    /// Another machine has it.
    Duplicate,
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// Its network.
    pub prefix: Prefix,
    /// Where it comes from.
    pub origin: Origin,
    /// Whether it may be used.
    pub state: AddressState,
    /// Until when new connections should use it, in nanoseconds since boot; `None` for ever.
    pub preferred_until: Option<u64>,
    /// Until when it may be used, in nanoseconds since boot; `None` for ever.
    pub valid_until: Option<u64>,
    /// The other end of a link of two machines; the network is that one's then.
    pub peer: Option<IpAddr>,
    /// The address for all machines of the network, if a program has chosen it.
    pub broadcast: Option<Ipv4Addr>,
    /// No route to the network belongs to it.
    pub is_alone: bool,
}

impl Address {
    /// An address for ever, which may be used at once.
    pub fn lasting(ip: IpAddr, prefix: Prefix, origin: Origin) -> Address {
        Address {
            ip,
            prefix,
            origin,
            state: AddressState::Valid,
            preferred_until: None,
            valid_until: None,
            peer: None,
            broadcast: None,
            is_alone: false,
        }
    }

    /// Returns the addresses for all machines of its network.
    fn broadcasts(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let usual = self.prefix.broadcast().filter(|_| self.peer.is_none());
        self.broadcast.into_iter().chain(usual)
    }

    /// Tells whether new connections should not use it any more.
    pub fn is_deprecated(&self, now: u64) -> bool {
        self.preferred_until.is_some_and(|until| now >= until)
    }
}

/// Tells whether an address is valid on one link only.
pub fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// What has gone through an interface. The loopback interface's packets are counted in
/// [`Counter`](crate::counters::Counter) instead.
#[derive(Default, Debug)]
#[allow(missing_docs)]
pub struct Traffic {
    pub received_packets: AtomicU64,
    pub received_bytes: AtomicU64,
    /// Packets that the device reports as damaged.
    pub receive_errors: AtomicU64,
    /// Packets for which there was no memory, or that came while the interface was down.
    pub receive_dropped: AtomicU64,
    pub received_multicast: AtomicU64,
    pub sent_packets: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub send_errors: AtomicU64,
    /// Packets for which the device had no room.
    pub send_dropped: AtomicU64,
    /// Times that the link came or went.
    pub carrier_changes: AtomicU64,
}

/// A device and what IP knows of it.
pub struct Interface {
    index: u32,
    name: SpinLock<Name>,
    device: Arc<dyn Device>,
    /// The administrator wants it to work (`IFF_UP`).
    is_up: AtomicBool,
    /// How many users want to see packets for other machines, too (`IFF_PROMISC`).
    watchers: AtomicU32,
    /// The administrator is one of them.
    watches: AtomicBool,
    /// The largest packet by the administrator's will; the device may take less.
    mtu: AtomicU32,
    /// Its address on the link by the administrator's will.
    mac: SpinLock<Option<Mac>>,
    /// Until when routers speak IGMP version 2 and MLD version 1, in nanoseconds since boot.
    old_queriers: [AtomicU64; 2],
    /// Those that see its packets.
    taps: Arc<Taps>,
    /// Fbufs for packets that arrive.
    pools: Pools,
    /// See [`Traffic`].
    pub traffic: Traffic,
    pub(super) addresses: SpinLock<Vec<Address>>,
    /// The bits that are set in each address for all machines of a network: others are none.
    broadcasts: AtomicU32,
    pub(super) neighbours: SpinLock<Neighbours>,
}

impl Interface {
    pub(super) fn new(
        index: u32,
        name: Name,
        device: Arc<dyn Device>,
        taps: Arc<Taps>,
    ) -> Interface {
        Interface {
            index,
            name: SpinLock::new(Rank::Leaf, name),
            device,
            is_up: AtomicBool::new(true),
            watchers: AtomicU32::new(0),
            watches: AtomicBool::new(false),
            mtu: AtomicU32::new(u32::MAX),
            mac: SpinLock::new(Rank::Leaf, None),
            old_queriers: [const { AtomicU64::new(0) }; 2],
            taps,
            pools: Pools::default(),
            traffic: Traffic::default(),
            addresses: SpinLock::new(Rank::Leaf, Vec::new()),
            broadcasts: AtomicU32::new(u32::MAX),
            neighbours: SpinLock::new(Rank::Leaf, Neighbours::default()),
        }
    }

    /// Returns its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns its name.
    pub fn name(&self) -> Name {
        *self.name.lock()
    }

    pub(super) fn set_name(&self, name: Name) {
        *self.name.lock() = name;
    }

    /// Tells whether it is the loopback interface.
    pub fn is_loopback(&self) -> bool {
        self.index == LOOPBACK
    }

    /// Returns what its device can do, with the address that the administrator has chosen.
    pub fn features(&self) -> Features {
        let mut features = self.device.features();
        if features.mac.is_some() {
            features.mac = self.mac.lock().or(features.mac);
        }
        features
    }

    pub(super) fn set_mac(&self, mac: Mac) {
        *self.mac.lock() = Some(mac);
    }

    /// Shows a packet to those that see all.
    #[inline]
    pub(super) fn show(&self, direction: Direction, packet: &Packet) {
        if self.taps.are_there() {
            self.taps
                .show(self.index, self.features().mac, direction, packet);
        }
    }

    /// Shows a packet that has arrived to the taps.
    #[inline]
    pub(super) fn show_received(&self, data: &Aggregate, checksum: Checksum) {
        if self.taps.are_there() {
            let packet = Packet {
                data: data.clone(),
                checksum,
                ..Packet::default()
            };
            self.show(Direction::In, &packet);
        }
    }

    /// Returns the fbufs for packets that arrive.
    pub fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Returns its device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Returns its address on the link; `None` for a link without.
    pub fn mac(&self) -> Option<Mac> {
        self.features().mac
    }

    /// Returns the bytes of the largest packet without the link's header.
    pub fn mtu(&self) -> u16 {
        let own = self.features().mtu;
        own.min(self.mtu.load(Relaxed).min(u16::MAX.into()) as u16)
    }

    pub(super) fn set_mtu(&self, mtu: u32) -> Result<()> {
        if mtu < LEAST_MTU || mtu > self.features().mtu.into() {
            return Err(Errno::EINVAL);
        }
        self.mtu.store(mtu, Relaxed);
        Ok(())
    }

    /// Tells whether the administrator wants it to work.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Relaxed)
    }

    pub(super) fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Relaxed);
    }

    /// Tells whether its link is there: a cable, a peer.
    pub fn has_carrier(&self) -> bool {
        self.device.has_carrier()
    }

    /// Tells whether packets for other machines are wanted, too.
    pub fn is_promiscuous(&self) -> bool {
        self.watchers.load(Relaxed) > 0
    }

    /// Notes at `now` that a router has asked for groups of IPv4 or IPv6 by an old version.
    pub(super) fn note_old_querier(&self, is_v4: bool, now: u64) {
        self.old_queriers[usize::from(is_v4)].store(now + OLD_QUERIER, Relaxed);
    }

    /// Tells whether a router did so of late.
    pub fn has_old_querier(&self, is_v4: bool, now: u64) -> bool {
        now < self.old_queriers[usize::from(is_v4)].load(Relaxed)
    }

    /// Adds a user of packets for other machines.
    pub fn watch(&self) {
        if self.watchers.fetch_add(1, Relaxed) == 0 {
            self.device.set_promiscuous(true);
        }
    }

    /// Removes such a user.
    pub fn unwatch(&self) {
        if self.watchers.fetch_sub(1, Relaxed) == 1 {
            self.device.set_promiscuous(false);
        }
    }

    /// The administrator wants to see packets for other machines, or not any more; returns whether
    /// that is new.
    pub(super) fn be_promiscuous(&self, is_wanted: bool) -> bool {
        let is_new = self.watches.swap(is_wanted, Relaxed) != is_wanted;
        match is_wanted {
            true if is_new => self.watch(),
            false if is_new => self.unwatch(),
            _ => {}
        }
        is_new
    }

    /// Gives a packet with the link's header to the device, and counts it.
    pub fn transmit(&self, packet: &mut Packet) {
        if self.is_up() {
            self.show(Direction::Out, packet);
        }
        if self.is_loopback() {
            self.device.send(packet);
            return;
        }
        if !self.is_up() {
            self.traffic.send_dropped.fetch_add(1, Relaxed);
            return;
        }
        let bytes = packet.len() as u64;
        // Those into which the device cuts it.
        let packets = match packet.cut {
            0 => 1,
            cut => packet.data.len().div_ceil(cut.into()).max(1) as u64,
        };
        if self.device.send(packet) {
            self.traffic.sent_packets.fetch_add(packets, Relaxed);
            self.traffic.sent_bytes.fetch_add(bytes, Relaxed);
        } else {
            self.traffic.send_dropped.fetch_add(1, Relaxed);
        }
    }

    /// Returns its addresses.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn addresses(&self) -> Result<Vec<Address>> {
        let mut all = nucleus::try_vec(MOST_ADDRESSES)?;
        all.extend_from_slice(&self.addresses.lock());
        Ok(all)
    }

    /// Adds an address, or changes what is known of one that is there; returns what was known.
    pub(super) fn put_address(&self, address: Address) -> Result<Option<Address>> {
        let mut addresses = lock_with_room(&self.addresses)?;
        let known = addresses.iter_mut().find(|old| old.ip == address.ip);
        let old = known.map(|old| core::mem::replace(old, address));
        if old.is_none() {
            if addresses.len() >= MOST_ADDRESSES {
                return Err(Errno::ENOBUFS);
            }
            addresses.push(address);
        }
        self.note_broadcasts(&addresses);
        Ok(old)
    }

    /// Removes an address; returns it, if it was there.
    pub(super) fn remove_address(&self, ip: IpAddr) -> Option<Address> {
        let mut addresses = self.addresses.lock();
        let at = addresses.iter().position(|own| own.ip == ip)?;
        let old = addresses.remove(at);
        self.note_broadcasts(&addresses);
        Some(old)
    }

    fn note_broadcasts(&self, addresses: &[Address]) {
        let all = addresses.iter().flat_map(Address::broadcasts);
        let bits = all.fold(u32::MAX, |bits, it| bits & it.to_bits());
        self.broadcasts.store(bits, Relaxed);
    }

    /// Returns what is known of an address, valid or not.
    pub fn address(&self, ip: IpAddr) -> Option<Address> {
        let addresses = self.addresses.lock();
        addresses.iter().find(|own| own.ip == ip).copied()
    }

    /// Tells whether the address is one of its own, and valid.
    pub fn has(&self, ip: IpAddr) -> bool {
        let own = self.address(ip);
        own.is_some_and(|own| own.state == AddressState::Valid)
    }

    /// Tells whether packets to the address are for all machines of one of its networks.
    #[inline]
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        let bits = self.broadcasts.load(Relaxed);
        address.to_bits() & bits == bits && self.is_broadcast_of_one(address)
    }

    #[inline(never)]
    fn is_broadcast_of_one(&self, address: Ipv4Addr) -> bool {
        let addresses = self.addresses.lock();
        let mut all = addresses.iter().flat_map(Address::broadcasts);
        address == Ipv4Addr::BROADCAST || all.any(|it| it == address)
    }

    /// Returns the best source of packets to `to` (RFC 6724 5).
    pub fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        let now = crate::timer::now();
        let addresses = self.addresses.lock();
        source::best(&addresses, to, now)
    }

    /// Returns how often its link has come or gone.
    pub fn carrier_changes(&self) -> u64 {
        self.traffic.carrier_changes.load(Relaxed)
    }

    /// Returns how many neighbours are remembered.
    pub fn neighbours(&self) -> usize {
        self.neighbours.lock().count()
    }

    /// Lists the neighbours.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn neighbour_list(&self) -> Result<Vec<Neighbour>> {
        self.neighbours.lock().list(crate::timer::now())
    }
}
