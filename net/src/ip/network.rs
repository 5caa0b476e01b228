//! The network of one machine: its interfaces, their addresses, routes, and what is known of
//! paths.

use alloc::{boxed::Box, collections::BTreeMap, sync::Arc, vec::Vec};
use core::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use abi::{Errno, Result};
use nucleus::sync::{OnceBox, Rank, SpinLock};

use super::{
    address::{self, Prefix},
    errors::{Budget, Refusal, Report},
    fragments::Fragments,
    input::Received,
    neighbours::{Neighbours, Question},
};
use crate::{
    link::{Device, Features, Loopback},
    timer::{Alarm, now},
};

/// The most interfaces, addresses of one, routes, and paths with a small MTU that are remembered.
const MOST_INTERFACES: usize = 64;
const MOST_ADDRESSES: usize = 64;
const MOST_ROUTES: usize = 1024;
const MOST_PATHS: usize = 256;
/// The time for which a path's MTU is remembered, in nanoseconds: Linux's `mtu_expires`.
const PATH_AGE: u64 = 600_000_000_000;
/// The least MTU of a path: Linux's `min_pmtu`, and that of IPv6.
const LEAST_MTU_V4: u16 = 552;
pub(super) const LEAST_MTU_V6: u16 = 1280;

/// A device and what IP knows of it.
pub struct Interface {
    index: u32,
    device: Arc<dyn Device>,
    addresses: SpinLock<Vec<(IpAddr, Prefix)>>,
    pub(super) neighbours: SpinLock<Neighbours>,
}

impl Interface {
    /// Returns its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns what its device can do.
    pub fn features(&self) -> Features {
        self.device.features()
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Tells whether the address is one of its own.
    pub fn has(&self, address: IpAddr) -> bool {
        let addresses = self.addresses.lock();
        addresses.iter().any(|(own, _)| *own == address)
    }

    /// Tells whether packets to the address are for all machines of one of its networks.
    pub fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        let addresses = self.addresses.lock();
        address == Ipv4Addr::BROADCAST
            || addresses
                .iter()
                .any(|(_, prefix)| prefix.is_broadcast(address))
    }

    /// Returns its first address of the same version as `to` in the same network, else the first.
    pub(super) fn source_for(&self, to: IpAddr) -> Option<IpAddr> {
        let addresses = self.addresses.lock();
        let same = || {
            addresses
                .iter()
                .filter(|(own, _)| own.is_ipv4() == to.is_ipv4())
        };
        let near = same().find(|(_, prefix)| prefix.contains(to));
        near.or_else(|| same().next()).map(|(own, _)| *own)
    }

    /// Returns how many neighbours are remembered.
    pub fn neighbours(&self) -> usize {
        self.neighbours.lock().count()
    }
}

#[derive(Clone, Copy, Debug)]
struct RouteEntry {
    prefix: Prefix,
    interface: u32,
    gateway: Option<IpAddr>,
}

/// The way to an address.
#[derive(Clone)]
pub struct Route {
    /// Where packets leave.
    pub interface: Arc<Interface>,
    /// The neighbour that they go to.
    pub next_hop: IpAddr,
    /// Their usual source.
    pub source: IpAddr,
    /// Bytes of the largest packet that arrives.
    pub mtu: u16,
    /// The state of the configuration that this follows from.
    generation: u64,
}

/// The protocols above IP.
pub trait Upper: Send + Sync {
    /// Takes a packet for this machine. Returns why not, if the sender is to be told.
    fn receive(&self, packet: Received) -> Option<Refusal>;

    /// Takes the news that a packet of this machine did not arrive.
    fn report(&self, report: Report);
}

/// The network of one machine.
pub struct Network {
    interfaces: SpinLock<Vec<Arc<Interface>>>,
    /// The addresses of all interfaces.
    own: SpinLock<Vec<IpAddr>>,
    routes: SpinLock<Vec<RouteEntry>>,
    /// Changes with every change of addresses, routes and paths.
    generation: AtomicU64,
    paths: SpinLock<BTreeMap<IpAddr, (u16, u64)>>,
    pub(super) fragments: SpinLock<Fragments>,
    pub(super) errors: SpinLock<Budget>,
    pub(super) idents: AtomicU64,
    loopback: Arc<Loopback>,
    upper: OnceBox<Box<dyn Upper>>,
    pub(super) alarm: Arc<Alarm>,
}

impl Network {
    /// A network with the loopback interface only, which has number 1.
    pub fn new(alarm: Arc<Alarm>) -> Network {
        let loopback = Arc::new(Loopback::new());
        let network = Network {
            interfaces: SpinLock::new(Rank::Leaf, Vec::new()),
            own: SpinLock::new(Rank::Leaf, Vec::new()),
            routes: SpinLock::new(Rank::Leaf, Vec::new()),
            generation: AtomicU64::new(0),
            paths: SpinLock::new(Rank::Leaf, BTreeMap::new()),
            fragments: SpinLock::new(Rank::Leaf, Fragments::default()),
            errors: SpinLock::new(Rank::Leaf, Budget::default()),
            idents: AtomicU64::new(nucleus::random::u64()),
            loopback: loopback.clone(),
            upper: OnceBox::new(),
            alarm,
        };
        // There is room for the first.
        let _ = network.add_interface(loopback);
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

    /// Adds an interface; returns its number.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn add_interface(&self, device: Arc<dyn Device>) -> Result<u32> {
        let mut interfaces = self.interfaces.lock();
        if interfaces.len() >= MOST_INTERFACES {
            return Err(Errno::ENOBUFS);
        }
        interfaces.try_reserve(1)?;
        let index = interfaces.len() as u32 + 1;
        interfaces.push(Arc::new(Interface {
            index,
            device,
            addresses: SpinLock::new(Rank::Leaf, Vec::new()),
            neighbours: SpinLock::new(Rank::Leaf, Neighbours::default()),
        }));
        Ok(index)
    }

    /// Returns an interface.
    pub fn interface(&self, index: u32) -> Option<Arc<Interface>> {
        let at = index.checked_sub(1)? as usize;
        self.interfaces.lock().get(at).cloned()
    }

    /// Gives an interface an address in a network of `bits` common bits, with a route to that.
    ///
    /// # Errors
    /// `ENODEV`, `EEXIST`, `EINVAL`, `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn add_address(&self, index: u32, address: IpAddr, bits: u8) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        let prefix = Prefix::new(address, bits).ok_or(Errno::EINVAL)?;
        if interface.has(address) {
            return Err(Errno::EEXIST);
        }
        {
            let mut addresses = interface.addresses.lock();
            if addresses.len() >= MOST_ADDRESSES {
                return Err(Errno::ENOBUFS);
            }
            addresses.try_reserve(1)?;
            addresses.push((address, prefix));
        }
        {
            let mut own = self.own.lock();
            own.try_reserve(1)?;
            own.push(address);
        }
        self.add_route(prefix, index, None)
    }

    /// Adds a route to a network, by a gateway or to the neighbours themselves.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn add_route(&self, prefix: Prefix, index: u32, gateway: Option<IpAddr>) -> Result<()> {
        let mut routes = self.routes.lock();
        if routes.len() >= MOST_ROUTES {
            return Err(Errno::ENOBUFS);
        }
        routes.try_reserve(1)?;
        // The longest prefix comes first.
        let at = routes.partition_point(|other| other.prefix.bits() >= prefix.bits());
        let entry = RouteEntry {
            prefix,
            interface: index,
            gateway,
        };
        routes.insert(at, entry);
        drop(routes);
        self.generation.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Removes a route to a network.
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn remove_route(&self, prefix: Prefix, index: u32) -> Result<()> {
        let mut routes = self.routes.lock();
        let is_it = |entry: &RouteEntry| entry.prefix == prefix && entry.interface == index;
        let at = routes.iter().position(is_it).ok_or(Errno::ESRCH)?;
        routes.remove(at);
        drop(routes);
        self.generation.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Tells whether the address is one of this machine's.
    pub fn is_own(&self, address: IpAddr) -> bool {
        address::is_own(address) || self.own.lock().contains(&address)
    }

    /// Returns the way to `to`.
    ///
    /// # Errors
    /// `ENETUNREACH`.
    pub fn route(&self, to: IpAddr) -> Result<Route> {
        let generation = self.generation.load(Relaxed);
        if self.is_own(to) {
            let interface = self.interface(1).ok_or(Errno::ENETUNREACH)?;
            let mtu = interface.features().mtu;
            let source = address::source_for(to).unwrap_or(to);
            return Ok(Route {
                interface,
                next_hop: to,
                source,
                mtu,
                generation,
            });
        }
        let found = {
            let routes = self.routes.lock();
            routes
                .iter()
                .find(|entry| entry.prefix.contains(to))
                .copied()
        };
        let entry = found.ok_or(Errno::ENETUNREACH)?;
        let interface = self.interface(entry.interface).ok_or(Errno::ENETUNREACH)?;
        let source = interface.source_for(to).ok_or(Errno::ENETUNREACH)?;
        let mtu = interface.features().mtu;
        let known = self.paths.lock().get(&to).copied();
        let mtu = match known {
            Some((least, until)) if now() < until => mtu.min(least),
            _ => mtu,
        };
        Ok(Route {
            interface,
            next_hop: entry.gateway.unwrap_or(to),
            source,
            mtu,
            generation,
        })
    }

    /// Tells whether a route still follows from the configuration.
    pub fn is_current(&self, route: &Route) -> bool {
        self.generation.load(Relaxed) == route.generation
    }

    /// Remembers that packets to `to` can't be larger than `mtu`. Returns what is remembered.
    pub(super) fn note_path(&self, to: IpAddr, mtu: u16) -> u16 {
        let least = if to.is_ipv4() {
            LEAST_MTU_V4
        } else {
            LEAST_MTU_V6
        };
        let mtu = mtu.max(least);
        let mut paths = self.paths.lock();
        let now = now();
        if paths.len() >= MOST_PATHS && !paths.contains_key(&to) {
            let oldest = paths.iter().min_by_key(|(_, (_, until))| *until);
            let oldest = oldest.map(|(ip, _)| *ip);
            oldest.map(|ip| paths.remove(&ip));
        }
        let entry = paths.entry(to).or_insert((u16::MAX, 0));
        if now >= entry.1 || mtu < entry.0 {
            *entry = (mtu, now + PATH_AGE);
        }
        let mtu = entry.0;
        drop(paths);
        self.generation.fetch_add(1, Relaxed);
        mtu
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
        let count = self.interfaces.lock().len() as u32;
        for interface in (1..=count).filter_map(|index| self.interface(index)) {
            let (questions, gone, due) = interface.neighbours.lock().expire(now);
            for question in questions {
                self.ask(&interface, question);
            }
            for neighbour in gone {
                if let Some(upper) = self.upper() {
                    upper.report(Report::silent(neighbour));
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
        for _ in 0..most {
            let Some(packet) = self.loopback.next_of_all() else {
                return true;
            };
            self.receive(1, packet);
            self.loopback.note_delivered();
        }
        false
    }
}
