//! Routes: the table that programs, addresses, servers and routers fill, the way to an address that
//! follows from it, and the MTUs of paths.

use alloc::sync::Arc;
use core::{net::IpAddr, sync::atomic::Ordering::Relaxed};

use abi::{Errno, Result};
use nucleus::{Pieces, frame, sync::lock_with_room};

use super::{
    Family,
    address::{self, Prefix},
    interface::{Interface, LOOPBACK, Origin},
    network::{Change, Network},
};
use crate::timer::now;

/// The most routes, and paths with a small MTU that are remembered.
const MOST_ROUTES: usize = 1024;
const MOST_PATHS: usize = 256;
/// The time for which a path's MTU is remembered, in nanoseconds: Linux's `mtu_expires`.
const PATH_AGE: u64 = 600_000_000_000;
/// The least MTU of a path: Linux's `min_pmtu`, and that of IPv6.
const LEAST_MTU_V4: u16 = 552;
pub(super) const LEAST_MTU_V6: u16 = 1280;

/// What becomes of packets on a route.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum RouteKind {
    /// They are sent.
    #[default]
    Unicast,
    /// They are dropped.
    Blackhole,
    /// The destination can't be reached.
    Unreachable,
    /// The destination must not be reached.
    Prohibited,
}

/// A route as it is configured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RouteEntry {
    /// The destinations.
    pub prefix: Prefix,
    /// The number of the interface where packets leave.
    pub interface: u32,
    /// The neighbour that they go to; `None` for the destination itself.
    pub gateway: Option<IpAddr>,
    /// Of routes to the same network the one with the least is used.
    pub metric: u32,
    /// Where it comes from.
    pub origin: Origin,
    /// The source of packets; `None` for the interface's usual one.
    pub source: Option<IpAddr>,
    /// Until when it holds, in nanoseconds since boot; `None` for ever.
    pub valid_until: Option<u64>,
    /// What becomes of packets.
    pub kind: RouteKind,
    /// Bytes of the largest packet; 0 for the interface's.
    pub mtu: u16,
}

impl RouteEntry {
    /// A route for ever.
    pub fn new(prefix: Prefix, interface: u32, gateway: Option<IpAddr>) -> RouteEntry {
        RouteEntry {
            prefix,
            interface,
            gateway,
            metric: 0,
            origin: Origin::Static,
            source: None,
            valid_until: None,
            kind: RouteKind::Unicast,
            mtu: 0,
        }
    }

    /// Tells whether it leads to one address at an interface.
    fn is_direct(&self) -> bool {
        let whole = if self.prefix.is_ipv4() { 32 } else { 128 };
        self.prefix.bits() == whole && self.gateway.is_none()
    }

    /// Tells whether both are the same route: what a second one replaces.
    fn is_same(&self, other: &RouteEntry) -> bool {
        (self.prefix, self.interface, self.gateway, self.metric)
            == (other.prefix, other.interface, other.gateway, other.metric)
    }
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

/// Tells whether packets to an address go to several machines.
fn is_for_many(to: IpAddr) -> bool {
    match to {
        IpAddr::V4(to) => to.is_multicast() || to.is_broadcast(),
        IpAddr::V6(to) => to.is_multicast(),
    }
}

impl Network {
    /// Adds a route to a network, by a gateway or to the neighbours themselves.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn add_route(&self, prefix: Prefix, index: u32, gateway: Option<IpAddr>) -> Result<()> {
        self.put_route(RouteEntry::new(prefix, index, gateway))
    }

    /// Adds a route, in place of the same one if it is there; but what routers and servers of the
    /// link name takes no place of what a program has set.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn put_route(&self, route: RouteEntry) -> Result<()> {
        let mut routes = lock_with_room(&self.routes)?;
        if let Some(old) = routes.iter_mut().find(|old| old.is_same(&route)) {
            let is_of_link = |it: &RouteEntry| matches!(it.origin, Origin::Router | Origin::Dhcp);
            if is_of_link(&route) && !is_of_link(old) {
                return Ok(());
            }
            *old = route;
        } else {
            if routes.len() >= MOST_ROUTES {
                return Err(Errno::ENOBUFS);
            }
            // The longest prefix comes first, then the least metric.
            let key = |it: &RouteEntry| (u8::MAX - it.prefix.bits(), it.metric);
            let at = routes.partition_point(|other| key(other) <= key(&route));
            routes.insert(at, route);
        }
        drop(routes);
        self.note(Change::Route(route));
        Ok(())
    }

    /// Removes a route to a network.
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn remove_route(&self, prefix: Prefix, index: u32) -> Result<()> {
        self.remove_route_if(|entry| entry.prefix == prefix && entry.interface == index)
    }

    /// Removes the first route of which `is_it` is true.
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn remove_route_if(&self, is_it: impl Fn(&RouteEntry) -> bool) -> Result<()> {
        let mut routes = self.routes.lock();
        let at = routes.iter().position(is_it).ok_or(Errno::ESRCH)?;
        let old = routes.remove(at);
        drop(routes);
        self.note(Change::NoRoute(old));
        Ok(())
    }

    /// Lists the routes: the longest prefix first, then the least metric.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn routes(&self) -> Result<Pieces<RouteEntry>> {
        let routes = self.routes.lock();
        Ok(Pieces::try_collect(routes.iter().copied())?)
    }

    /// Returns the way to `to`.
    ///
    /// # Errors
    /// `ENETUNREACH`.
    pub fn route(&self, to: IpAddr) -> Result<Route> {
        self.route_by(to, None)
    }

    /// Returns the way to `to`, by the interface `by` if one is named.
    ///
    /// # Errors
    /// `ENETUNREACH`.
    pub fn route_by(&self, to: IpAddr, by: Option<u32>) -> Result<Route> {
        let generation = self.generation.load(Relaxed);
        if self.is_own(to) {
            let interface = self.interface(LOOPBACK).ok_or(Errno::ENETUNREACH)?;
            let mtu = interface.mtu();
            let source = address::source_for(to).unwrap_or(to);
            return Ok(Route {
                interface,
                next_hop: to,
                source,
                mtu,
                generation,
            });
        }
        // Those that fit, in turn, until one's interface works and has a source.
        let mut from = 0;
        let (entry, interface, source) = loop {
            let found = {
                let routes = self.routes.lock();
                let fits = |entry: &&RouteEntry| {
                    let is_by = by.is_none_or(|by| entry.interface == by);
                    entry.prefix.contains(to) && (is_by || entry.kind != RouteKind::Unicast)
                };
                let mut rest = routes.iter().enumerate().skip(from);
                rest.find(|(_, entry)| fits(entry))
                    .map(|(at, it)| (at, *it))
            };
            let entry = match found {
                Some((at, entry)) => {
                    from = at + 1;
                    entry
                }
                None => self.direct(to, by)?,
            };
            match entry.kind {
                RouteKind::Unicast => {}
                RouteKind::Blackhole => return Err(Errno::EINVAL),
                RouteKind::Unreachable => return Err(Errno::EHOSTUNREACH),
                RouteKind::Prohibited => return Err(Errno::EACCES),
            }
            let Some(interface) = self.interface(entry.interface).filter(|it| it.is_up()) else {
                continue;
            };
            let source = entry.source.or_else(|| interface.source_for(to));
            if let Some(source) = source.or_else(|| self.far_source(&interface, to)) {
                break (entry, interface, source);
            }
            if entry.is_direct() {
                return Err(Errno::EADDRNOTAVAIL);
            }
        };
        let mut mtu = interface.mtu();
        if entry.mtu != 0 {
            mtu = mtu.min(entry.mtu);
        }
        let known = self.paths.lock().get(&to).copied();
        let mtu = match known {
            Some((least, until)) if now() < until => mtu.min(least),
            _ => mtu,
        };
        Ok(Route {
            interface,
            next_hop: entry.gateway.filter(|_| !is_for_many(to)).unwrap_or(to),
            source,
            mtu,
            generation,
        })
    }

    /// Returns the way to a neighbour of an interface, which may have no address yet.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn link(&self, index: u32, to: IpAddr) -> Result<Route> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        Ok(Route {
            next_hop: to,
            source: interface
                .source_for(to)
                .unwrap_or(Family::of(to).unspecified()),
            mtu: interface.mtu(),
            generation: self.generation.load(Relaxed),
            interface,
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
        // Without memory it is not remembered.
        let is_scarce = frame::is_scarce();
        let mut paths = self.paths.lock();
        let now = now();
        if is_scarce && !paths.contains_key(&to) {
            return mtu;
        }
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
}
