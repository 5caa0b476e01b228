//! The network of one machine: its interfaces, their addresses, timers, and the watcher of changes.

use alloc::{boxed::Box, collections::BTreeMap, sync::Arc, vec::Vec};
use core::{
    net::{IpAddr, Ipv6Addr},
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use abi::{Errno, Result};
use nucleus::sync::{OnceBox, Rank, SpinLock, lock_with_room};

use super::{
    address::Prefix,
    errors::{Budget, Refusal, Report},
    ethernet,
    fragments::Fragments,
    groups::Groups,
    input::Received,
    interface::{Address, AddressState, Interface, LOOPBACK, Name, Origin},
    neighbours::{Neighbour, Question},
    own::OwnAddresses,
    routes::RouteEntry,
};
use crate::{
    link::{Device, Loopback, Taps},
    timer::{Alarm, now},
};

/// The most interfaces.
const MOST_INTERFACES: usize = 64;

/// A change of the configuration, for those that watch it.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// An interface is new, or its name, state, link or MTU has changed.
    Interface(u32),
    /// An interface is gone, which had this name.
    NoInterface(u32, Name),
    /// An interface has another address, or it has changed.
    Address(u32, Address),
    /// An interface has lost an address.
    NoAddress(u32, Address),
    /// There is another route.
    Route(RouteEntry),
    /// A route is gone.
    NoRoute(RouteEntry),
    /// A neighbour of an interface is new or has changed.
    Neighbour(u32, Neighbour),
    /// A neighbour of an interface is forgotten.
    NoNeighbour(u32, IpAddr),
}

/// Returns the group in which neighbours look for an address (RFC 4861 7.2.1), if they do.
fn solicited_group(interface: &Interface, ip: IpAddr) -> Option<IpAddr> {
    interface.mac()?;
    match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(ethernet::solicited_group(ip).into()),
    }
}

/// The protocols above IP.
pub trait Upper: Send + Sync {
    /// Takes a packet for this machine. Returns why not, if the sender is to be told.
    /// One that is refused keeps its data, which the message quotes; one that is taken loses it.
    fn receive(&self, packet: &mut Received) -> Option<Refusal>;

    /// Takes the news that a packet of this machine did not arrive; `quote` is what the message
    /// repeats of it.
    fn report(&self, report: Report, quote: &[u8]);

    /// Tells whether a socket may have sent the packet that a message is about.
    fn may_have_sent(&self, report: &Report) -> bool;

    /// Looks at a packet although another one takes it (raw sockets); `header` is that of IPv4.
    /// Returns whether it is wanted.
    fn show(&self, packet: &Received, header: &[u8]) -> bool;

    /// Takes an echo reply.
    fn receive_echo(&self, packet: &mut Received);

    /// Takes a router's advertisement, whose checksum is right and which comes from this link.
    fn advertise(&self, interface: u32, router: Ipv6Addr, message: &[u8]);
}

/// The network of one machine.
pub struct Network {
    interfaces: SpinLock<Vec<Arc<Interface>>>,
    /// The addresses of all interfaces.
    own: OwnAddresses,
    /// The longest prefix first, then the least metric.
    pub(super) routes: SpinLock<Vec<RouteEntry>>,
    /// Changes with every change of addresses, routes and paths.
    pub(super) generation: AtomicU64,
    /// MTUs of paths, and until when they hold.
    pub(super) paths: SpinLock<BTreeMap<IpAddr, (u16, u64)>>,
    pub(super) fragments: SpinLock<Fragments>,
    pub(super) errors: SpinLock<Budget>,
    pub(super) idents: AtomicU64,
    loopback: Arc<Loopback>,
    upper: OnceBox<Box<dyn Upper>>,
    observer: OnceBox<Box<dyn Fn(Change) + Send + Sync>>,
    taps: Arc<Taps>,
    /// How many raw sockets there are.
    raw_sockets: AtomicUsize,
    pub(super) groups: SpinLock<Groups>,
    /// When the time of the first address is over.
    expires_at: AtomicU64,
    /// The number of the next interface.
    next_index: AtomicU32,
    pub(super) alarm: Arc<Alarm>,
}

impl Network {
    /// A network with the loopback interface only, which has number 1.
    pub fn new(alarm: Arc<Alarm>) -> Network {
        let loopback = Arc::new(Loopback::new());
        let network = Network {
            interfaces: SpinLock::new(Rank::Leaf, Vec::new()),
            own: OwnAddresses::new(),
            routes: SpinLock::new(Rank::Leaf, Vec::new()),
            generation: AtomicU64::new(0),
            paths: SpinLock::new(Rank::Leaf, BTreeMap::new()),
            fragments: SpinLock::new(Rank::Leaf, Fragments::default()),
            errors: SpinLock::new(Rank::Leaf, Budget::default()),
            idents: AtomicU64::new(nucleus::random::u64()),
            loopback: loopback.clone(),
            upper: OnceBox::new(),
            observer: OnceBox::new(),
            taps: Arc::default(),
            raw_sockets: AtomicUsize::new(0),
            groups: SpinLock::new(Rank::Leaf, Groups::new()),
            expires_at: AtomicU64::new(u64::MAX),
            next_index: AtomicU32::new(LOOPBACK),
            alarm,
        };
        // There is room for the first.
        let _ = network.add_interface(loopback);
        network.add_loopback_addresses();
        network
    }

    /// Names the protocols above. Once.
    pub fn set_upper(&self, upper: Box<dyn Upper>) {
        self.upper.get_or_insert(|| Box::new(upper));
    }

    pub(super) fn upper(&self) -> Option<&dyn Upper> {
        self.upper.get().map(|upper| &**upper)
    }

    /// Returns the loopback device.
    pub fn loopback(&self) -> &Loopback {
        &self.loopback
    }

    /// Names the watcher of changes, which is called after each one, without a lock. Once.
    pub fn set_observer(&self, observer: Box<dyn Fn(Change) + Send + Sync>) {
        self.observer.get_or_insert(|| Box::new(observer));
    }

    /// Notes a change: routes are looked up again, the watcher is told.
    pub(super) fn note(&self, change: Change) {
        self.generation.fetch_add(1, Relaxed);
        if let Some(observer) = self.observer.get() {
            observer(change);
        }
    }

    /// As [`note`](Network::note), for a change after which routes are the same.
    pub(super) fn note_quietly(&self, change: Change) {
        if let Some(observer) = self.observer.get() {
            observer(change);
        }
    }

    /// Adds an interface, which is called `lo` if it is the first one, and by its number among the
    /// others; returns its number.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn add_interface(&self, device: Arc<dyn Device>) -> Result<u32> {
        self.insert_interface(device, None)
    }

    /// Adds an interface with a name; returns its number.
    ///
    /// # Errors
    /// `EEXIST` if another one has the name, `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn add_interface_named(&self, device: Arc<dyn Device>, name: Name) -> Result<u32> {
        self.insert_interface(device, Some(name))
    }

    fn insert_interface(&self, device: Arc<dyn Device>, name: Option<Name>) -> Result<u32> {
        let index = loop {
            let count = self.interfaces.lock().len();
            let has = |name| self.interfaces().any(|it| it.name() == name);
            let name = match name {
                Some(name) if has(name) => return Err(Errno::EEXIST),
                Some(name) => name,
                None if count == 0 => Name::LOOPBACK,
                None => {
                    let mut names = (0..).map(Name::ethernet);
                    names.find(|&name| !has(name)).ok_or(Errno::ENOBUFS)?
                }
            };
            let mut interfaces = lock_with_room(&self.interfaces)?;
            // Another one that came meanwhile may have the name.
            if interfaces.len() != count {
                continue;
            }
            if count >= MOST_INTERFACES {
                return Err(Errno::ENOBUFS);
            }
            // Numbers rise, and none is used again.
            let index = self.next_index.fetch_add(1, Relaxed);
            let fresh = Interface::new(index, name, device, self.taps.clone());
            interfaces.push(Arc::new(fresh));
            break index;
        };
        self.note(Change::Interface(index));
        Ok(index)
    }

    /// Returns an interface.
    pub fn interface(&self, index: u32) -> Option<Arc<Interface>> {
        let at = index.checked_sub(1)? as usize;
        let interfaces = self.interfaces.lock();
        if let Some(it) = interfaces.get(at).filter(|it| it.index() == index) {
            return Some(it.clone());
        }
        let found = interfaces.binary_search_by_key(&index, |it| it.index());
        found.ok().map(|at| interfaces[at].clone())
    }

    /// Returns the interface with the least number from `index` on.
    fn interface_from(&self, index: u32) -> Option<Arc<Interface>> {
        let interfaces = self.interfaces.lock();
        let at = interfaces.partition_point(|it| it.index() < index);
        interfaces.get(at).cloned()
    }

    /// Removes an interface from the list; returns it.
    pub(super) fn take_interface(&self, index: u32) -> Option<Arc<Interface>> {
        let mut interfaces = self.interfaces.lock();
        let at = interfaces.binary_search_by_key(&index, |it| it.index());
        Some(interfaces.remove(at.ok()?))
    }

    /// Notes that a raw socket is there, or gone.
    pub(crate) fn note_raw(&self, is_there: bool) {
        match is_there {
            true => self.raw_sockets.fetch_add(1, Relaxed),
            false => self.raw_sockets.fetch_sub(1, Relaxed),
        };
    }

    /// Tells whether there are raw sockets.
    #[inline]
    pub(super) fn has_raw(&self) -> bool {
        self.raw_sockets.load(Relaxed) != 0
    }

    /// Gives an echo reply of this machine itself to those that wait for it.
    pub(crate) fn hand_echo(&self, packet: &mut Received) {
        if let Some(upper) = self.upper() {
            upper.receive_echo(packet);
        }
    }

    /// Returns those that see all packets.
    pub fn taps(&self) -> &Taps {
        &self.taps
    }

    /// Returns an interface by its name.
    pub fn interface_by_name(&self, name: Name) -> Option<Arc<Interface>> {
        self.interfaces_from(1).find(|it| it.name() == name)
    }

    /// Returns the interfaces, the loopback interface first.
    pub fn interfaces(&self) -> impl Iterator<Item = Arc<Interface>> {
        self.interfaces_from(1)
    }

    fn interfaces_from(&self, first: u32) -> impl Iterator<Item = Arc<Interface>> {
        let mut next = first;
        core::iter::from_fn(move || {
            let found = self.interface_from(next)?;
            next = found.index() + 1;
            Some(found)
        })
    }

    /// Changes an interface's name.
    ///
    /// # Errors
    /// `ENODEV`, `EEXIST`.
    pub fn rename(&self, index: u32, name: Name) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        if self
            .interface_by_name(name)
            .is_some_and(|other| other.index() != index)
        {
            return Err(Errno::EEXIST);
        }
        interface.set_name(name);
        self.note(Change::Interface(index));
        Ok(())
    }

    /// Lets an interface work, or not.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn set_up(&self, index: u32, is_up: bool) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        interface.set_up(is_up);
        self.note(Change::Interface(index));
        if is_up {
            self.tell_of_groups(index);
        }
        Ok(())
    }

    /// Limits the packets of an interface.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` for less than every link has, or more than the device takes.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        interface.set_mtu(mtu)?;
        self.note(Change::Interface(index));
        Ok(())
    }

    /// Notes that a device's link came or went.
    pub fn note_carrier(&self, index: u32) {
        if let Some(interface) = self.interface(index) {
            interface.traffic.carrier_changes.fetch_add(1, Relaxed);
            self.note(Change::Interface(index));
            if interface.has_carrier() {
                self.tell_of_groups(index);
            }
        }
    }

    /// Gives an interface an address in a network of `bits` common bits, with a route to that.
    ///
    /// # Errors
    /// `ENODEV`, `EEXIST`, `EINVAL`, `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn add_address(&self, index: u32, address: IpAddr, bits: u8) -> Result<()> {
        let prefix = Prefix::new(address, bits).ok_or(Errno::EINVAL)?;
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        if interface.address(address).is_some() {
            return Err(Errno::EEXIST);
        }
        self.put_address(index, Address::lasting(address, prefix, Origin::Static))
    }

    /// Gives an interface an address, or changes one that it has. The route to its network comes
    /// when the address is valid.
    ///
    /// # Errors
    /// `ENODEV`, `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn put_address(&self, index: u32, address: Address) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        // There is room for it, so that nothing is half done.
        drop(lock_with_room(&self.groups)?);
        let old = interface.put_address(address)?;
        if let Err(error) = self.note_own(address.ip) {
            // Restoring the old address takes no memory.
            match old {
                Some(old) => drop(interface.put_address(old)),
                None => drop(interface.remove_address(address.ip)),
            }
            return Err(error);
        }
        if let Some(old) = old.filter(|old| old.prefix != address.prefix) {
            self.leave_network(&interface, &old);
        }
        if old.is_none()
            && let Some(group) = solicited_group(&interface, address.ip)
        {
            self.join_own(group, index);
        }
        if address.state == AddressState::Valid && !address.is_alone && !interface.is_loopback() {
            self.put_route(RouteEntry {
                origin: Origin::Kernel,
                source: Some(address.ip),
                valid_until: address.valid_until,
                ..RouteEntry::new(address.prefix, index, None)
            })?;
        }
        if let Some(until) = address.valid_until {
            self.expires_at.fetch_min(until, Relaxed);
            self.alarm.set(Some(until));
        }
        self.note(Change::Address(index, address));
        Ok(())
    }

    /// Removes the addresses whose time is over; returns when the next one's will be.
    fn expire_addresses(&self, now: u64) -> Option<u64> {
        if now >= self.expires_at.load(Relaxed) {
            self.expires_at.store(u64::MAX, Relaxed);
            for interface in self.interfaces() {
                let next = self.expire(interface.index(), now);
                self.expires_at.fetch_min(next.unwrap_or(u64::MAX), Relaxed);
            }
        }
        let next = self.expires_at.load(Relaxed);
        (next != u64::MAX).then_some(next)
    }

    /// Takes an address from an interface, with the route to its network unless another address
    /// is in that.
    ///
    /// # Errors
    /// `ENODEV`, `EADDRNOTAVAIL`.
    pub fn remove_address(&self, index: u32, ip: IpAddr) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        let old = interface.remove_address(ip).ok_or(Errno::EADDRNOTAVAIL)?;
        // Its removal takes no memory; another interface that has it keeps it in the list.
        let _ = self.note_own(ip);
        if let Some(group) = solicited_group(&interface, ip) {
            self.leave(group, index);
        }
        self.leave_network(&interface, &old);
        self.note(Change::NoAddress(index, old));
        Ok(())
    }

    /// Removes the route that belongs to an address which is gone, unless another address is in the
    /// same network.
    fn leave_network(&self, interface: &Interface, old: &Address) {
        let has_more = {
            let addresses = interface.addresses.lock();
            addresses.iter().any(|own| own.prefix == old.prefix)
        };
        if !has_more && !old.is_alone {
            // It may have been removed, or never have come.
            let _ = self.remove_route_if(|it| {
                it.prefix == old.prefix
                    && it.interface == interface.index()
                    && it.origin == Origin::Kernel
            });
        }
    }

    /// Notes whether an address is valid on any interface.
    ///
    /// # Errors
    /// `ENOMEM`, for one that is and was not.
    fn note_own(&self, ip: IpAddr) -> Result<()> {
        let is_valid = self.interfaces().any(|it| it.has(ip));
        self.own.note(ip, is_valid)
    }

    /// Tells whether the address is one of this machine's.
    #[inline]
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.own.contains(address)
    }

    /// Removes the addresses of an interface and the routes by it whose time is over; returns when
    /// the next one's will be.
    pub fn expire(&self, index: u32, now: u64) -> Option<u64> {
        let interface = self.interface(index)?;
        loop {
            let over = {
                let addresses = interface.addresses.lock();
                let is_over = |it: &&Address| it.valid_until.is_some_and(|until| until <= now);
                addresses.iter().find(is_over).map(|it| it.ip)
            };
            let Some(ip) = over else { break };
            let _ = self.remove_address(index, ip);
        }
        let is_over = |it: &RouteEntry| {
            it.interface == index && it.valid_until.is_some_and(|until| until <= now)
        };
        while self.remove_route_if(is_over).is_ok() {}
        let address = {
            let addresses = interface.addresses.lock();
            addresses.iter().filter_map(|it| it.valid_until).min()
        };
        let routes = self.routes.lock();
        let own = routes.iter().filter(|it| it.interface == index);
        own.filter_map(|it| it.valid_until).chain(address).min()
    }

    /// Runs the timers of neighbours and fragments that are due; returns when the next one will
    /// be, in nanoseconds since boot.
    pub fn run_timers(&self) -> Option<u64> {
        let now = now();
        let mut next = {
            let mut fragments = self.fragments.lock();
            fragments.expire(now);
            fragments.next()
        };
        next = match (next, self.expire_addresses(now)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        for interface in self.interfaces_from(LOOPBACK + 1) {
            let (questions, gone, due) = interface.neighbours.lock().expire(now);
            for question in questions {
                self.ask(&interface, question);
            }
            for (neighbour, waiting) in gone {
                self.note_quietly(Change::NoNeighbour(interface.index(), neighbour));
                for packet in waiting {
                    self.refuse_waiting(&packet);
                }
                if let Some(upper) = self.upper() {
                    upper.report(Report::silent(neighbour), &[]);
                }
            }
            next = match (next, due) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        next
    }

    /// Sends a question, and sees to it that it is repeated.
    pub(super) fn ask(&self, interface: &Interface, question: Question) {
        self.send_question(interface, question);
        self.alarm.set(Some(now() + 1_000_000_000));
    }

    /// Returns how many packets are incomplete.
    pub fn incomplete(&self) -> usize {
        self.fragments.lock().count()
    }

    /// Delivers what is on its way to this machine itself, `most` packets at most, and waits for
    /// other callers to deliver what they have taken: what was sent before has arrived then.
    /// Returns whether that was all. No lock is held.
    pub fn run_loopback(&self, most: usize) -> bool {
        if self.loopback.is_idle() {
            return true;
        }
        for _ in 0..most {
            let Some(packet) = self.loopback.next_of_all() else {
                return true;
            };
            self.receive(LOOPBACK, packet);
            self.loopback.note_delivered();
        }
        false
    }
}
