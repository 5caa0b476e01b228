//! Interfaces that configure themselves: a client of DHCP for IPv4, link-local addresses and
//! routers' advertisements for IPv6, and the check that no other machine has an address.
//!
//! - [`Configurator`] (this file): what the interfaces of a machine have come to;
//! - `dhcp`: the client, which decides what to send; `format`: its messages;
//! - `router`: what routers advertise.
//!
//! Messages come from the protocols, by the task that received them; timers run with the others of
//! the stack. Everything that strangers say is bounded: addresses and routes of one interface, and
//! the rate of questions.

mod dhcp;
mod format;
mod router;

use alloc::{sync::Arc, vec::Vec};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result};
use fbuf::{Aggregate, BytesSource};
use nucleus::{log, random, sync::Mutex, task::WaitQueue};

use crate::{
    ip::{
        self, Address, AddressState, Interface, Network, Origin, Prefix, Received, RouteEntry,
        Sending,
    },
    link::Mac,
    packet::Head,
    timer::{Alarm, now},
};
use dhcp::{Client, Event, Lease, Message};
use router::Said;

const SECOND: u64 = 1_000_000_000;
/// The time for which other machines may say that they have an address (RFC 4862 5.1).
const CHECK: u64 = SECOND;
/// Questions for a router, and the time between them (RFC 4861 10).
const MOST_QUESTIONS: u32 = 3;
const QUESTION: u64 = 4 * SECOND;
/// The most addresses and routes of one interface that routers can make.
const MOST_OF_ROUTERS: usize = 16;
/// A router cannot shorten an address's time below this, in seconds (RFC 4862 5.5.3).
const LEAST_LIFE: u32 = 2 * 60 * 60;
/// The metric of a router's route: Linux's.
const METRIC: u32 = 1024;
/// The metric of a route by DHCP: a route that a program sets goes first.
const METRIC_V4: u32 = 100;
/// The least MTU that a server of DHCP may set (RFC 2132 5.1 has 68, which no server means).
const LEAST_MTU_V4: u16 = 576;
/// The link-local network, and the groups of all routers.
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Servers for names that are kept.
const MOST_SERVERS: usize = format::SERVERS;

/// How an interface gets its addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct How {
    /// A server of DHCP gives one of IPv4.
    pub dhcp: bool,
    /// It makes a link-local one, and others of what routers advertise.
    pub v6: bool,
}

/// What programs are told to resolve names.
#[derive(Clone, Default, Debug)]
pub struct Resolver {
    /// The domain; empty if there is none.
    pub domain: Vec<u8>,
    /// Servers, the best one first.
    pub servers: Vec<IpAddr>,
    /// The server of DHCP that has told this machine its address.
    pub told_by: Option<Ipv4Addr>,
}

/// An interface that configures itself.
struct Automatic {
    index: u32,
    mac: Mac,
    client: Option<Client>,
    v6: Option<Questions>,
    /// Addresses that are checked, and until when.
    checks: Vec<(Ipv6Addr, u64)>,
    /// Servers for names that routers have named, and until when they hold.
    servers: [Option<(Ipv6Addr, u64)>; MOST_SERVERS],
}

/// Questions for a router.
struct Questions {
    asked: u32,
    /// When to ask next.
    due: Option<u64>,
}

/// What the interfaces of a machine have come to.
pub struct Configurator {
    network: Arc<Network>,
    alarm: Arc<Alarm>,
    all: Mutex<Vec<Automatic>>,
    /// Woken when an interface has got an address.
    changed: WaitQueue,
}

/// Returns an address that an interface makes of a network of 64 bits.
fn made(ip: Ipv6Addr, origin: Origin) -> Option<Address> {
    let prefix = Prefix::new(ip.into(), 64)?;
    Some(Address::lasting(ip.into(), prefix, origin))
}

impl Configurator {
    /// Without interfaces.
    pub fn new(network: Arc<Network>, alarm: Arc<Alarm>) -> Configurator {
        Configurator {
            network,
            alarm,
            all: Mutex::new(crate::rank::NET_CONFIGURE, Vec::new()),
            changed: WaitQueue::new(),
        }
    }

    /// Lets an interface configure itself from now on.
    ///
    /// # Errors
    /// `ENODEV`, `EINVAL` for one without an address of its link, `EEXIST`, `ENOMEM`.
    pub fn add(&self, index: u32, how: How) -> Result<()> {
        let interface = self.network.interface(index).ok_or(Errno::ENODEV)?;
        let mac = interface.mac().ok_or(Errno::EINVAL)?;
        let mut all = self.all.lock();
        let own = self.known(&mut all, index, mac)?;
        if own.client.is_some() || own.v6.is_some() {
            return Err(Errno::EEXIST);
        }
        let number = random::u64() as u32;
        own.client = how.dhcp.then(|| Client::new(mac, number, now()));
        own.v6 = how.v6.then_some(Questions {
            asked: 0,
            due: None,
        });
        if how.v6
            && let Some(address) = made(router::own(LINK_LOCAL, mac), Origin::Kernel)
        {
            // Without memory it has no address.
            let _ = self.begin_check(own, address);
        }
        drop(all);
        self.alarm.set(Some(0));
        Ok(())
    }

    /// Returns what is known of an interface; adds it if it is new.
    fn known<'a>(
        &self,
        all: &'a mut Vec<Automatic>,
        index: u32,
        mac: Mac,
    ) -> Result<&'a mut Automatic> {
        let at = match all.iter().position(|it| it.index == index) {
            Some(at) => at,
            None => {
                all.retain(|it| self.network.interface(it.index).is_some());
                all.try_reserve(1)?;
                all.push(Automatic {
                    index,
                    mac,
                    client: None,
                    v6: None,
                    checks: Vec::new(),
                    servers: [None; MOST_SERVERS],
                });
                all.len() - 1
            }
        };
        Ok(&mut all[at])
    }

    /// Gives an interface an address that a program has chosen, or changes one that it has. One of
    /// IPv6 is valid when no other machine on the link has said that it has it (RFC 4862 5.4).
    ///
    /// # Errors
    /// `ENODEV`, `ENOMEM`, `ENOBUFS` if there are too many.
    pub fn put_address(&self, index: u32, address: Address) -> Result<()> {
        let interface = self.network.interface(index).ok_or(Errno::ENODEV)?;
        let is_unknown = address.ip.is_ipv6() && interface.is_up() && !interface.has(address.ip);
        let Some(mac) = interface.mac().filter(|_| is_unknown) else {
            return self.network.put_address(index, address);
        };
        let mut all = self.all.lock();
        let own = self.known(&mut all, index, mac)?;
        self.begin_check(own, address)?;
        drop(all);
        self.alarm.set(Some(0));
        Ok(())
    }

    /// Notes that an interface's link is there again.
    pub fn restart(&self, index: u32) {
        let mut all = self.all.lock();
        if let Some(own) = all.iter_mut().find(|it| it.index == index) {
            if let Some(client) = &mut own.client {
                if let Some(ip) = client.given() {
                    // It is given anew, perhaps by the server of another network.
                    let _ = self.network.remove_address(index, ip.into());
                }
                client.restart(now());
            }
            if let Some(questions) = &mut own.v6 {
                questions.asked = 0;
                questions.due = Some(now());
            }
        }
        drop(all);
        self.alarm.set(Some(0));
    }

    /// Tells whether all interfaces that ask a server of DHCP have an address.
    pub fn is_settled(&self) -> bool {
        let all = self.all.lock();
        all.iter()
            .filter_map(|own| own.client.as_ref())
            .all(|client| client.lease().is_some())
    }

    /// Returns the queue that is woken when an interface has got an address.
    pub fn changed(&self) -> &WaitQueue {
        &self.changed
    }

    /// Returns what programs are told to resolve names.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn resolver(&self) -> Result<Resolver> {
        let all = self.all.lock();
        let mut resolver = Resolver {
            servers: nucleus::try_vec(all.len() * 2 * MOST_SERVERS)?,
            ..Resolver::default()
        };
        for own in &*all {
            if let Some(Lease { reply, .. }) = own.client.as_ref().and_then(Client::lease) {
                let servers = reply.dns.iter().flatten();
                resolver.servers.extend(servers.map(|it| IpAddr::from(*it)));
                if resolver.domain.is_empty() {
                    resolver.domain = nucleus::try_copy(&reply.domain.0[..reply.domain.1])?;
                }
                resolver.told_by.get_or_insert(reply.server);
            }
        }
        for own in &*all {
            let servers = own.servers.iter().flatten();
            let holds = servers.filter(|(_, until)| now() < *until);
            resolver
                .servers
                .extend(holds.map(|(it, _)| IpAddr::from(*it)));
        }
        Ok(resolver)
    }

    /// Takes a datagram to the port of DHCP's clients. Returns whether it was for this machine's.
    pub fn take_datagram(&self, packet: &Received) -> bool {
        /// Bytes of a header of UDP.
        const HEADER: usize = 8;
        let ports = packet.headers.as_slice();
        if ports.get(2..4) != Some(&format::CLIENT.to_be_bytes()) || !packet.from.is_ipv4() {
            return false;
        }
        let mut bytes = [0; HEADER + format::MOST];
        let n = packet.data.peek(0, &mut bytes);
        if n < HEADER {
            return false;
        }
        let is_unsummed = bytes[6..8] == [0; 2];
        if bytes[..2] != format::SERVER.to_be_bytes() || !(is_unsummed || packet.is_intact()) {
            return false;
        }
        let mut all = self.all.lock();
        let own = all.iter_mut().find(|it| it.index == packet.interface);
        let Some((index, Some(client))) = own.map(|own| (own.index, own.client.as_mut())) else {
            return false;
        };
        let mac = client.mac();
        let Some(reply) = format::read(&bytes[HEADER..n], client.number(), mac) else {
            return false;
        };
        let event = client.take(reply, now());
        let due = client.due();
        if let Some(event) = event {
            self.apply(index, event);
        }
        drop(all);
        self.changed.wake_all();
        self.alarm.set(due);
        true
    }

    /// Takes a message of a router.
    pub fn take_advertisement(&self, interface: u32, router: Ipv6Addr, message: &[u8]) {
        let mut all = self.all.lock();
        let Some(own) = all.iter_mut().find(|it| it.index == interface) else {
            return;
        };
        let Some(questions) = &mut own.v6 else { return };
        // Nothing of a message that is wrong is believed.
        if !router.is_unicast_link_local() || !router::read(message, |_| {}) {
            return;
        }
        questions.due = None;
        router::read(message, |said| self.apply_said(own, router, said));
        drop(all);
        self.alarm.set(Some(0));
    }

    fn apply_said(&self, own: &mut Automatic, router: Ipv6Addr, said: Said) {
        let until = |seconds: u32| match seconds {
            u32::MAX => None,
            seconds => Some(now() + u64::from(seconds) * SECOND),
        };
        let route = |network: Ipv6Addr, bits: u8, gateway: Option<Ipv6Addr>| {
            let prefix = Prefix::new(network.into(), bits)?;
            let gateway = gateway.map(IpAddr::from);
            Some(RouteEntry {
                metric: METRIC,
                origin: Origin::Router,
                ..RouteEntry::new(prefix, own.index, gateway)
            })
        };
        match said {
            Said::Router(life) => {
                let route = route(Ipv6Addr::UNSPECIFIED, 0, Some(router));
                self.put_or_remove(route, until(life.into()), life > 0);
            }
            Said::Prefix {
                network,
                bits,
                is_on_link,
                is_autonomous,
                valid,
                preferred,
            } => {
                if is_on_link {
                    self.put_or_remove(route(network, bits, None), until(valid), valid > 0);
                }
                if is_autonomous {
                    let ip = router::own(network, own.mac);
                    self.renew_address(own, ip, valid, preferred);
                }
            }
            Said::Mtu(mtu) => {
                let is_possible = |it: &Arc<Interface>| mtu >= 1280 && mtu < it.mtu().into();
                if self
                    .network
                    .interface(own.index)
                    .is_some_and(|it| is_possible(&it))
                {
                    let _ = self.network.set_mtu(own.index, mtu);
                }
            }
            Said::Dns(server, life) => {
                let entry = (server, now() + u64::from(life) * SECOND);
                let is_same = |it: &Option<(Ipv6Addr, u64)>| it.is_some_and(|it| it.0 == server);
                let is_free =
                    |it: &Option<(Ipv6Addr, u64)>| it.is_none_or(|(_, until)| until <= now());
                let at = own.servers.iter().position(is_same);
                if let Some(at) = at.or_else(|| own.servers.iter().position(is_free)) {
                    own.servers[at] = Some(entry);
                }
            }
        }
    }

    /// Sets a route that a router has named, or removes it.
    fn put_or_remove(&self, route: Option<RouteEntry>, until: Option<u64>, stays: bool) {
        let Some(route) = route else { return };
        let is_it = |other: &RouteEntry| {
            (other.prefix, other.interface, other.gateway, other.origin)
                == (route.prefix, route.interface, route.gateway, route.origin)
        };
        if !stays {
            let _ = self.network.remove_route_if(is_it);
            return;
        }
        let Ok(routes) = self.network.routes() else {
            return;
        };
        let of_routers = routes
            .iter()
            .filter(|it| it.interface == route.interface && it.origin == Origin::Router);
        if of_routers.count() < MOST_OF_ROUTERS || routes.iter().any(is_it) {
            let route = RouteEntry {
                valid_until: until,
                ..route
            };
            let _ = self.network.put_route(route);
        }
    }

    /// Makes an address of a prefix that a router has named, or gives it more time.
    fn renew_address(&self, own: &mut Automatic, ip: Ipv6Addr, valid: u32, preferred: u32) {
        let Some(interface) = self.network.interface(own.index) else {
            return;
        };
        let until = |seconds: u32| match seconds {
            u32::MAX => None,
            seconds => Some(now() + u64::from(seconds) * SECOND),
        };
        match interface.address(ip.into()) {
            None if valid > 0 => {
                let Ok(addresses) = interface.addresses() else {
                    return;
                };
                let of_routers = addresses.iter().filter(|it| it.origin == Origin::Router);
                if of_routers.count() < MOST_OF_ROUTERS
                    && let Some(address) = made(ip, Origin::Router)
                {
                    // Whether the network is on the link is said apart (RFC 5942 4).
                    let address = Address {
                        preferred_until: until(preferred),
                        valid_until: until(valid),
                        is_alone: true,
                        ..address
                    };
                    // Without memory there is none.
                    let _ = self.begin_check(own, address);
                }
            }
            Some(old) if old.origin == Origin::Router => {
                // A message that anyone could have sent does not end an address at once.
                let left = old.valid_until.map(|at| at.saturating_sub(now()) / SECOND);
                let is_longer = left.is_some_and(|left| u64::from(valid) > left);
                let valid_until = match (valid > LEAST_LIFE || is_longer, left) {
                    (true, _) => until(valid),
                    (false, Some(left)) if left <= LEAST_LIFE.into() => old.valid_until,
                    (false, _) => until(LEAST_LIFE),
                };
                let address = Address {
                    preferred_until: until(preferred),
                    valid_until,
                    ..old
                };
                let _ = self.network.put_address(own.index, address);
            }
            _ => {}
        }
    }

    /// Asks other machines whether they have an address of IPv6; the interface has it when none
    /// answers.
    fn begin_check(&self, own: &mut Automatic, address: Address) -> Result<()> {
        let IpAddr::V6(ip) = address.ip else {
            return Err(Errno::EINVAL);
        };
        // Addresses that are gone are not checked any more: there are as many checks as addresses.
        let interface = self.network.interface(own.index).ok_or(Errno::ENODEV)?;
        let is_there = |other: Ipv6Addr| interface.address(other.into()).is_some();
        own.checks
            .retain(|&(other, _)| other != ip && is_there(other));
        own.checks.try_reserve(1)?;
        let address = Address {
            state: AddressState::Tentative,
            ..address
        };
        self.network.put_address(own.index, address)?;
        own.checks.push((ip, now() + CHECK));
        self.network.ask_for_owner(own.index, ip.into());
        Ok(())
    }

    /// Does what a change of the client's lease asks for.
    fn apply(&self, index: u32, event: Event) {
        let (Event::Given(lease) | Event::Leased(lease) | Event::Lost(lease)) = event;
        let reply = lease.reply;
        let ip = IpAddr::from(reply.ip);
        let (Some(prefix), Some(all)) = (Prefix::new(ip, reply.bits), Prefix::all(ip)) else {
            return;
        };
        if let Event::Lost(_) = event {
            log!("net: the address {ip} is lost");
            self.remove_dhcp_routes(index, None);
            let _ = self.network.remove_address(index, ip);
            return;
        }
        let address = Address {
            valid_until: lease.ends_at(),
            ..Address::lasting(ip, prefix, Origin::Dhcp)
        };
        let interface = self.network.interface(index);
        let is_new = interface.is_some_and(|it| !it.has(ip));
        if let Event::Given(_) = event {
            let address = Address {
                state: AddressState::Tentative,
                ..address
            };
            // An answer to an earlier question counts.
            let is_known = || self.network.interface(index)?.address(ip);
            if is_known().is_none() {
                // Without memory it is not probed.
                let _ = self.network.put_address(index, address);
            }
            self.network.ask_for_owner(index, ip);
            return;
        }
        let mut result = self.network.put_address(index, address);
        self.remove_dhcp_routes(index, reply.router);
        if let Some(router) = reply.router {
            result = result.and_then(|()| {
                self.network.put_route(RouteEntry {
                    metric: METRIC_V4,
                    origin: Origin::Dhcp,
                    source: Some(ip),
                    ..RouteEntry::new(all, index, Some(router.into()))
                })
            });
        }
        if let Some(mtu) = reply.mtu.filter(|&mtu| mtu >= LEAST_MTU_V4) {
            // A card with less keeps its own.
            let _ = self.network.set_mtu(index, mtu.into());
        }
        match result {
            Ok(()) if is_new => log!("net: the address {ip} by {}", reply.server),
            Ok(()) => {}
            Err(error) => log!("net: {ip} can't be set: {}", error.name()),
        }
    }

    /// Removes the routes of a lease, but not those by the router that it still names.
    fn remove_dhcp_routes(&self, index: u32, router: Option<Ipv4Addr>) {
        let router = router.map(IpAddr::from);
        let is_over = |it: &RouteEntry| {
            it.interface == index
                && it.origin == Origin::Dhcp
                && (router.is_none() || it.gateway != router)
        };
        while self.network.remove_route_if(is_over).is_ok() {}
    }

    /// Runs the timers that are due; returns when the next one will be, in nanoseconds since boot.
    pub fn run_timers(&self) -> Option<u64> {
        let mut all = self.all.lock();
        let mut next: Option<u64> = None;
        let mut note = |due: Option<u64>| {
            next = match (next, due) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        };
        let mut has_changed = false;
        for own in &mut *all {
            if let Some(client) = &mut own.client {
                if let Some(message) = self.check_given(own.index, client) {
                    self.send(own.index, &message);
                }
                let (message, event) = client.run(now());
                if let Some(event) = event {
                    self.apply(own.index, event);
                    has_changed = true;
                }
                if let Some(message) = message {
                    self.send(own.index, &message);
                }
                note(client.due());
            }
            self.end_checks(own);
            own.checks.iter().for_each(|(_, at)| note(Some(*at)));
            if let Some(questions) = &mut own.v6
                && questions.due.is_some_and(|due| due <= now())
            {
                questions.asked += 1;
                let is_last = questions.asked >= MOST_QUESTIONS;
                questions.due = (!is_last).then(|| now() + QUESTION);
                self.network.ask_for_routers(own.index, ALL_ROUTERS);
            }
            note(own.v6.as_ref().and_then(|questions| questions.due));
            note(self.network.expire(own.index, now()));
        }
        drop(all);
        if has_changed {
            self.changed.wake_all();
        }
        next
    }

    /// Gives up the address that a server has given if another machine has it; returns what the
    /// server is told.
    fn check_given(&self, index: u32, client: &mut Client) -> Option<Message> {
        let ip = IpAddr::from(client.given()?);
        let address = self.network.interface(index)?.address(ip)?;
        if address.state != AddressState::Duplicate {
            return None;
        }
        log!("net: another machine has the address {ip}");
        let _ = self.network.remove_address(index, ip);
        client.decline(now())
    }

    /// Ends the checks that no machine has answered; the link-local address lets the interface ask
    /// for routers.
    fn end_checks(&self, own: &mut Automatic) {
        let Some(interface) = self.network.interface(own.index) else {
            return;
        };
        let Automatic {
            index, checks, v6, ..
        } = own;
        checks.retain(|&(ip, until)| {
            if now() < until {
                return true;
            }
            match interface.address(ip.into()) {
                Some(address) if address.state == AddressState::Tentative => {
                    let address = Address {
                        state: AddressState::Valid,
                        ..address
                    };
                    let _ = self.network.put_address(*index, address);
                    if ip.is_unicast_link_local() {
                        // Reports without a source may have been ignored (RFC 3590).
                        self.network.tell_of_groups(*index);
                        if let Some(questions) = v6 {
                            questions.due = Some(now());
                        }
                    }
                }
                Some(_) => log!("net: another machine has the address {ip}"),
                None => {}
            }
            false
        });
    }

    /// Sends a message to a server of DHCP, or to all.
    fn send(&self, index: u32, message: &Message) {
        let bytes = message.query.write();
        let mut data = Aggregate::new();
        if data.fill_from(&mut BytesSource::new(&bytes), bytes.len()) != Ok(bytes.len()) {
            return;
        }
        let mut head = Head::default();
        let header = head.push(8);
        header[..2].copy_from_slice(&format::CLIENT.to_be_bytes());
        header[2..4].copy_from_slice(&format::SERVER.to_be_bytes());
        header[4..6].copy_from_slice(&(8 + format::LEN as u16).to_be_bytes());
        let (to, from) = match message.to {
            Some((to, from)) => (to, from),
            None => {
                let own = message.query.own.unwrap_or(Ipv4Addr::UNSPECIFIED);
                (Ipv4Addr::BROADCAST, own)
            }
        };
        let sending = Sending {
            from: from.into(),
            to: to.into(),
            protocol: ip::UDP,
            checksum: Some(6),
            ..Sending::default()
        };
        let route = match message.to {
            Some(_) => self.network.route_by(to.into(), Some(index)),
            None => self.network.link(index, to.into()),
        };
        if let Ok(route) = route {
            // A message that is lost is sent again.
            let _ = self.network.send(&route, sending, head, data, 0);
        }
    }
}
