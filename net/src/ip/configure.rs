//! What programs change of the network, beyond addresses: interfaces that go, routes that are
//! chosen by all their fields, neighbours.

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result};

use super::{
    address::{self, Prefix},
    interface::{Address, Interface, LOOPBACK, Origin},
    network::{Change, Network},
    routes::{RouteEntry, RouteKind},
    source::scope_of,
};
use crate::{link::Mac, timer::now};

/// Flags of interfaces, with Linux's numbers.
#[allow(missing_docs, reason = "the names say it")]
pub mod flags {
    pub const UP: u32 = 0x1;
    pub const BROADCAST: u32 = 0x2;
    pub const LOOPBACK: u32 = 0x8;
    pub const POINT_TO_POINT: u32 = 0x10;
    pub const RUNNING: u32 = 0x40;
    pub const NO_ARP: u32 = 0x80;
    pub const PROMISCUOUS: u32 = 0x100;
    pub const MULTICAST: u32 = 0x1000;
    pub const LOWER_UP: u32 = 0x1_0000;
}

impl Interface {
    /// Returns its flags.
    pub fn flags(&self) -> u32 {
        let mut all = match self.mac() {
            _ if self.is_loopback() => flags::LOOPBACK,
            Some(_) => flags::BROADCAST | flags::MULTICAST,
            None => flags::POINT_TO_POINT | flags::NO_ARP | flags::MULTICAST,
        };
        if self.is_promiscuous() {
            all |= flags::PROMISCUOUS;
        }
        if self.is_up() {
            all |= flags::UP;
            if self.has_carrier() {
                all |= flags::RUNNING | flags::LOWER_UP;
            }
        }
        all
    }

    /// Returns the MTU that programs see: Linux's `lo` has one that no packet has.
    pub fn shown_mtu(&self) -> u32 {
        match self.mtu() {
            u16::MAX if self.is_loopback() => 65_536,
            mtu => mtu.into(),
        }
    }
}

/// How a route is added (`NLM_F_EXCL`, `NLM_F_REPLACE`, `NLM_F_APPEND`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adding {
    /// There must be none with this network and metric.
    New,
    /// In place of those with this network and metric; where there is none, it is added if `true`.
    Replace(bool),
    /// Behind those with this network and metric.
    Append,
}

/// Which route is meant: all fields that are there have to match.
#[derive(Clone, Copy, Default, Debug)]
#[allow(missing_docs, reason = "as in `RouteEntry`")]
pub struct RouteChoice {
    pub interface: Option<u32>,
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
    pub metric: Option<u32>,
    pub kind: Option<RouteKind>,
    pub origin: Option<Origin>,
}

impl RouteChoice {
    /// Tells whether a route is meant.
    pub fn fits(&self, entry: &RouteEntry) -> bool {
        fn is<T: PartialEq>(wanted: Option<T>, own: T) -> bool {
            wanted.is_none_or(|it| it == own)
        }
        is(self.interface, entry.interface)
            && is(self.metric, entry.metric)
            && is(self.kind, entry.kind)
            && is(self.origin, entry.origin)
            && self.gateway.is_none_or(|it| entry.gateway == Some(it))
            && self.source.is_none_or(|it| entry.source == Some(it))
    }
}

impl Network {
    /// Gives the loopback interface the addresses that it always has.
    pub(super) fn add_loopback_addresses(&self) {
        let always = [
            (IpAddr::V4(Ipv4Addr::LOCALHOST), 8),
            (IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
        ];
        for (ip, bits) in always {
            if let (Some(prefix), Some(interface)) =
                (Prefix::new(ip, bits), self.interface(LOOPBACK))
            {
                // Without memory it is not shown.
                let _ = interface.put_address(Address::lasting(ip, prefix, Origin::Kernel));
            }
        }
    }

    /// Removes an interface with its addresses and routes.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` for the loopback interface.
    pub fn remove_interface(&self, index: u32) -> Result<()> {
        if index == LOOPBACK {
            return Err(Errno::EOPNOTSUPP);
        }
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        self.set_up(index, false)?;
        for address in interface.addresses()? {
            let _ = self.remove_address(index, address.ip);
        }
        while self
            .remove_route_if(|entry| entry.interface == index)
            .is_ok()
        {}
        if let Some(gone) = self.take_interface(index) {
            self.note(Change::NoInterface(index, gone.name()));
        }
        Ok(())
    }

    /// Changes an interface's flags in `mask` to `values`: whether it is up, and whether it
    /// receives packets for other machines. Others stay.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` for a loopback interface that is down.
    pub fn set_flags(&self, index: u32, values: u32, mask: u32) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        let is_up = values & flags::UP != 0;
        if mask & flags::UP != 0 && is_up != interface.is_up() {
            if interface.is_loopback() {
                return Err(Errno::EOPNOTSUPP);
            }
            self.set_up(index, is_up)?;
        }
        if mask & flags::PROMISCUOUS != 0
            && interface.be_promiscuous(values & flags::PROMISCUOUS != 0)
        {
            self.note_quietly(Change::Interface(index));
        }
        Ok(())
    }

    /// Limits the packets of an interface, by Linux's rules.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL`.
    pub fn limit_packets(&self, index: u32, mtu: u32) -> Result<()> {
        if index != LOOPBACK {
            return self.set_mtu(index, mtu);
        }
        if !(68..=65_536).contains(&mtu) {
            return Err(Errno::EINVAL);
        }
        self.loopback().set_mtu(mtu.min(u16::MAX.into()) as u16);
        self.note(Change::Interface(index));
        Ok(())
    }

    /// Changes an interface's address on the link.
    ///
    /// # Errors
    /// `ENODEV`, `EOPNOTSUPP` without such addresses, `EADDRNOTAVAIL` for a group's.
    pub fn set_mac(&self, index: u32, mac: Mac) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        interface.mac().ok_or(Errno::EOPNOTSUPP)?;
        if mac.is_for_many() || mac == Mac([0; 6]) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        interface.set_mac(mac);
        self.note(Change::Interface(index));
        Ok(())
    }

    /// Removes an address that a program names.
    ///
    /// # Errors
    /// `ENODEV`, `EADDRNOTAVAIL`, `EOPNOTSUPP` for those that the loopback interface always has.
    pub fn drop_address(&self, index: u32, ip: IpAddr) -> Result<()> {
        if index == LOOPBACK && address::is_own(ip) {
            let interface = self.interface(index).ok_or(Errno::ENODEV)?;
            let is_there = interface.address(ip).is_some();
            let is_always = matches!(ip, IpAddr::V6(_)) || ip == Ipv4Addr::LOCALHOST;
            if !is_there || is_always {
                return Err(match is_there {
                    true => Errno::EOPNOTSUPP,
                    false => Errno::EADDRNOTAVAIL,
                });
            }
        }
        self.remove_address(index, ip)?;
        // Routes with this source lead nowhere.
        while self
            .remove_route_if(|entry| entry.source == Some(ip))
            .is_ok()
        {}
        Ok(())
    }

    /// Adds a route by Linux's rules.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT` for one to be replaced, `ENETUNREACH` for a gateway that is no
    /// neighbour, `ENETDOWN`, `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn configure_route(&self, route: RouteEntry, how: Adding, is_onlink: bool) -> Result<()> {
        if route.kind == RouteKind::Unicast {
            let interface = self.interface(route.interface).ok_or(Errno::ENODEV)?;
            if !interface.is_up() {
                return Err(Errno::ENETDOWN);
            }
        }
        if let Some(gateway) = route.gateway
            && !is_onlink
        {
            let leads_there = |own: &RouteEntry| {
                own.interface == route.interface
                    && own.gateway.is_none()
                    && own.kind == RouteKind::Unicast
                    && own.prefix.contains(gateway)
            };
            let is_near = gateway.is_ipv6() && scope_of(gateway) != 0
                || self.routes()?.iter().any(leads_there);
            if !is_near {
                return Err(Errno::ENETUNREACH);
            }
        }
        let is_rival = |old: &RouteEntry| old.prefix == route.prefix && old.metric == route.metric;
        let rivals = self.routes()?.iter().filter(|old| is_rival(old)).count();
        match how {
            Adding::New if rivals > 0 => return Err(Errno::EEXIST),
            Adding::Replace(false) if rivals == 0 => return Err(Errno::ENOENT),
            Adding::Replace(_) => while self.remove_route_if(is_rival).is_ok() {},
            Adding::New | Adding::Append => {}
        }
        self.put_route(route)
    }

    /// Returns the route that an address has although the table has none: on the interface that is
    /// asked for, or, for a group of IPv6, on the first one that has groups.
    pub(super) fn direct(&self, to: IpAddr, by: Option<u32>) -> Result<RouteEntry> {
        let is_group = to.is_ipv6() && to.is_multicast();
        let index = match by {
            Some(LOOPBACK) => return Err(Errno::ENETUNREACH),
            Some(index) => index,
            None if is_group => {
                let mut others = self.interfaces().filter(|it| !it.is_loopback());
                let found = others.find(|it| it.is_up());
                found.ok_or(Errno::ENETUNREACH)?.index()
            }
            None => return Err(Errno::ENETUNREACH),
        };
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        if !interface.is_up() {
            return Err(Errno::ENETUNREACH);
        }
        let bits = if to.is_ipv4() { 32 } else { 128 };
        let prefix = Prefix::new(to, bits).ok_or(Errno::ENETUNREACH)?;
        Ok(RouteEntry::new(prefix, index, None))
    }

    /// Returns the source of packets that leave at an interface without a fitting address: one of
    /// another's, or none for a packet of IPv4 to all.
    pub(super) fn far_source(&self, interface: &Interface, to: IpAddr) -> Option<IpAddr> {
        let is_other = |it: &Arc<Interface>| !it.is_loopback() && it.index() != interface.index();
        let others = self.interfaces().filter(is_other);
        let mut sources = others.filter_map(|it| it.source_for(to));
        let far = sources.find(|source| scope_of(*source) == 0);
        match to {
            IpAddr::V4(all) if all.is_broadcast() || all.is_multicast() => {
                Some(far.unwrap_or(Ipv4Addr::UNSPECIFIED.into()))
            }
            _ => far,
        }
    }

    /// Fixes the address of a neighbour, or sets it as if it had been learnt.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` for an address that no neighbour has, `EEXIST` for one that is known
    /// unless it is to be replaced.
    pub fn put_neighbour(
        &self,
        index: u32,
        ip: IpAddr,
        mac: Mac,
        is_fixed: bool,
        may_replace: bool,
    ) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        if mac.is_for_many() || ip.is_multicast() || ip.is_unspecified() || self.is_own(ip) {
            return Err(Errno::EINVAL);
        }
        let (waiting, entry) = {
            let mut neighbours = interface.neighbours.lock();
            let old = neighbours.get(ip, now());
            if !may_replace && old.is_some_and(|old| old.mac.is_some()) {
                return Err(Errno::EEXIST);
            }
            neighbours.fix(ip, false);
            let waiting = neighbours.learn(ip, mac, true, now());
            neighbours.fix(ip, is_fixed);
            (waiting, neighbours.get(ip, now()))
        };
        for mut packet in waiting {
            super::output::send_to(&interface, mac, &mut packet);
        }
        if let Some(entry) = entry {
            self.note_quietly(Change::Neighbour(index, entry));
        }
        Ok(())
    }

    /// Forgets a neighbour.
    ///
    /// # Errors
    /// `ENODEV`, `ENOENT`.
    pub fn remove_neighbour(&self, index: u32, ip: IpAddr) -> Result<()> {
        let interface = self.interface(index).ok_or(Errno::ENODEV)?;
        let is_gone = interface.neighbours.lock().remove(ip);
        if !is_gone {
            return Err(Errno::ENOENT);
        }
        self.note_quietly(Change::NoNeighbour(index, ip));
        Ok(())
    }

    /// Returns the interface that has an address of this machine's.
    pub fn owner(&self, ip: IpAddr) -> Option<Arc<Interface>> {
        let found = self.interfaces().find(|it| it.has(ip));
        match found {
            None if address::is_own(ip) => self.interface(LOOPBACK),
            found => found,
        }
    }
}
