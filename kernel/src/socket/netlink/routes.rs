//! Routes, and the rules by which they are looked for, as netlink tells of them and changes them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result};
use net::ip::{
    self, Adding, Address, AddressState, Interface, Origin, Prefix, RouteChoice, RouteEntry,
    RouteKind,
};

use super::{
    message::{self, Attributes, Request, Writer},
    numbers as raw,
    route::{Asker, check_index, structure},
};
use crate::socket::inet::{AF_INET, AF_INET6, stack};

/// Bytes of a `struct rtmsg`; a `struct fib_rule_hdr` has as many.
const HEAD: usize = 12;
/// `RTPROT_KERNEL`, `RTPROT_BOOT`, `RTPROT_RA`, `RTPROT_DHCP`.
const BY_KERNEL: u8 = 2;
const BY_BOOT: u8 = 3;
const BY_ROUTER: u8 = 9;
const BY_DHCP: u8 = 16;
/// `RT_SCOPE_HOST`, `RT_SCOPE_LINK`, `RT_SCOPE_UNIVERSE`.
const HOST: u8 = 254;
const LINK: u8 = 253;
const UNIVERSE: u8 = 0;
/// Tables of routes.
const LOCAL: u32 = 255;
const MAIN: u32 = 254;
const DEFAULT: u32 = 253;
/// `FR_ACT_TO_TBL`.
const LOOK_UP: u8 = 1;
/// Flags of a looked-up route: not in a table, and to this machine (`RTCF_LOCAL`).
const FOUND: u32 = raw::RTM_F_CLONED;
const FOUND_LOCAL: u32 = raw::RTM_F_CLONED | 0x8000_0000;
/// `RTNH_F_ONLINK`: the gateway is a neighbour, whatever the routes say.
const ON_LINK: u32 = 4;
/// The metric of IPv6's routes that the kernel and programs make.
const KERNEL_METRIC_V6: u32 = 256;
const USUAL_METRIC_V6: u32 = 1024;

/// What is written of a route.
struct Shown {
    to: IpAddr,
    bits: u8,
    table: u32,
    protocol: u8,
    scope: u8,
    kind: u32,
    source: Option<IpAddr>,
    gateway: Option<IpAddr>,
    metric: u32,
    mtu: u16,
    interface: u32,
}

impl Shown {
    /// A route of the table `local`.
    fn local(interface: u32, to: IpAddr, bits: u8, scope: u8, kind: u32, from: IpAddr) -> Shown {
        Shown {
            to,
            bits,
            table: LOCAL,
            protocol: BY_KERNEL,
            scope,
            kind,
            source: to.is_ipv4().then_some(from),
            gateway: None,
            metric: 0,
            mtu: 0,
            interface,
        }
    }

    fn of(entry: &RouteEntry) -> Shown {
        let is_v4 = entry.prefix.is_ipv4();
        let kind = match entry.kind {
            RouteKind::Unicast => raw::RTN_UNICAST,
            RouteKind::Blackhole => raw::RTN_BLACKHOLE,
            RouteKind::Unreachable => raw::RTN_UNREACHABLE,
            RouteKind::Prohibited => raw::RTN_PROHIBIT,
        };
        let is_near = is_v4 && entry.gateway.is_none() && entry.kind == RouteKind::Unicast;
        Shown {
            to: entry.prefix.network(),
            bits: entry.prefix.bits(),
            table: MAIN,
            protocol: protocol(entry.origin),
            scope: if is_near { LINK } else { UNIVERSE },
            kind,
            source: entry
                .source
                .filter(|_| is_v4 || entry.origin != Origin::Kernel),
            gateway: entry.gateway,
            metric: match (is_v4, entry.origin, entry.metric) {
                (false, Origin::Kernel, 0) => KERNEL_METRIC_V6,
                (false, _, 0) => USUAL_METRIC_V6,
                (_, _, metric) => metric,
            },
            mtu: entry.mtu,
            interface: entry.interface,
        }
    }

    fn write(&self, writer: &mut Writer, kind: u32, message_flags: u32, flags: u32) {
        let mut head = [0; HEAD];
        head[..2].copy_from_slice(&[message::family(self.to) as u8, self.bits]);
        let table = self.table as u8;
        head[4..8].copy_from_slice(&[table, self.protocol, self.scope, self.kind as u8]);
        head[8..].copy_from_slice(&flags.to_le_bytes());
        let is_v4 = self.to.is_ipv4();
        writer.message(kind, message_flags, &head, |all| {
            all.put_number(raw::RTA_TABLE, self.table);
            if self.bits > 0 {
                all.put_address(raw::RTA_DST, self.to);
            }
            if self.mtu != 0 {
                all.nested(raw::RTA_METRICS, |metrics| {
                    metrics.put_number(raw::RTAX_MTU, self.mtu.into());
                });
            }
            if self.metric != 0 || !is_v4 {
                all.put_number(raw::RTA_PRIORITY, self.metric);
            }
            if let Some(source) = self.source {
                all.put_address(raw::RTA_PREFSRC, source);
            }
            if let Some(gateway) = self.gateway {
                all.put_address(raw::RTA_GATEWAY, gateway);
            }
            if self.interface != 0 {
                all.put_number(raw::RTA_OIF, self.interface);
            }
            if !is_v4 {
                put_use(all);
                all.put(raw::RTA_PREF, &[0]);
            }
        });
    }
}

/// Returns Linux's number of the maker of a route.
fn protocol(origin: Origin) -> u8 {
    match origin {
        Origin::Static => BY_BOOT,
        Origin::Kernel => BY_KERNEL,
        Origin::Dhcp => BY_DHCP,
        Origin::Router => BY_ROUTER,
        Origin::Program(number) => number,
    }
}

fn origin(protocol: u8) -> Origin {
    match protocol {
        0 | BY_BOOT => Origin::Static,
        BY_KERNEL => Origin::Kernel,
        BY_DHCP => Origin::Dhcp,
        BY_ROUTER => Origin::Router,
        number => Origin::Program(number),
    }
}

/// The filter of a strict request for the list.
#[derive(Default)]
struct Filter {
    table: u32,
    protocol: u8,
    kind: u8,
    interface: Option<u32>,
}

impl Filter {
    fn of(request: &Request<'_>) -> Result<Filter> {
        let head: [u8; HEAD] = structure(request)?;
        // Lengths, type of service and scope choose nothing.
        if head[1..4] != [0; 3] || head[6] != 0 {
            return Err(Errno::EINVAL);
        }
        let mut filter = Filter {
            table: head[4].into(),
            protocol: head[5],
            kind: head[7],
            interface: None,
        };
        for (kind, value) in request.attributes::<HEAD>() {
            let number = message::number(value).ok_or(Errno::EINVAL)?;
            match kind {
                raw::RTA_TABLE => filter.table = number,
                raw::RTA_OIF => {
                    check_index(number)?;
                    filter.interface = Some(number);
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        if ![0, LOCAL, MAIN, DEFAULT].contains(&filter.table) {
            return Err(Errno::ENOENT);
        }
        Ok(filter)
    }

    /// Whether anything is left out.
    fn chooses(&self) -> bool {
        self.table != 0 || self.protocol != 0 || self.kind != 0 || self.interface.is_some()
    }

    fn lets_pass(&self, route: &Shown) -> bool {
        let fits = |asked: u8, own: u8| asked == 0 || asked == own;
        (self.table == 0 || self.table == route.table)
            && fits(self.protocol, route.protocol)
            && fits(self.kind, route.kind as u8)
            && self.interface.is_none_or(|it| it == route.interface)
    }
}

/// Visits the routes of the table `local` that an address of an interface brings.
fn visit_local(interface: &Interface, address: &Address, visit: &mut dyn FnMut(Shown)) {
    if address.state != AddressState::Valid {
        return;
    }
    let (index, ip) = (interface.index(), address.ip);
    match ip {
        IpAddr::V6(_) => {
            visit(Shown::local(index, ip, 128, UNIVERSE, raw::RTN_LOCAL, ip));
        }
        IpAddr::V4(_) => {
            let prefix = address.prefix;
            if interface.is_loopback() && prefix.bits() < 32 {
                let network = prefix.network();
                let bits = prefix.bits();
                visit(Shown::local(index, network, bits, HOST, raw::RTN_LOCAL, ip));
            }
            visit(Shown::local(index, ip, 32, HOST, raw::RTN_LOCAL, ip));
            if let Some(all) = address.broadcast.or(prefix.broadcast()) {
                let all = IpAddr::V4(all);
                visit(Shown::local(index, all, 32, LINK, raw::RTN_BROADCAST, ip));
            }
        }
    }
}

/// Lists routes; gives flags for the list's end.
///
/// # Errors
/// `EINVAL`, `ENODEV`, `ENOENT` where it is checked strictly; `ENOMEM`.
pub fn list(
    request: &Request<'_>,
    asker: &Asker,
    writer: &mut Writer,
    v4: bool,
    v6: bool,
) -> Result<u32> {
    let flags = request.body().get(8..HEAD).and_then(message::number);
    if flags.unwrap_or(0) & raw::RTM_F_CLONED != 0 {
        // Routes that were looked up are not kept.
        return Ok(0);
    }
    let filter = if asker.is_strict {
        Filter::of(request)?
    } else {
        Filter::default()
    };
    let filtered = if filter.chooses() {
        raw::NLM_F_DUMP_FILTERED
    } else {
        0
    };
    let network = stack().network();
    let mut show = |route: Shown| {
        let is_wanted = if route.to.is_ipv4() { v4 } else { v6 };
        if is_wanted && filter.lets_pass(&route) {
            route.write(writer, raw::RTM_NEWROUTE, raw::NLM_F_MULTI | filtered, 0);
        }
    };
    for entry in network.routes()? {
        show(Shown::of(&entry));
    }
    for interface in network.interfaces() {
        for address in interface.addresses()? {
            visit_local(&interface, &address, &mut show);
        }
        if !interface.is_loopback() && interface.is_up() {
            let groups = Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into();
            show(Shown {
                metric: KERNEL_METRIC_V6,
                ..Shown::local(
                    interface.index(),
                    groups,
                    8,
                    UNIVERSE,
                    raw::RTN_MULTICAST,
                    groups,
                )
            });
        }
    }
    Ok(filtered)
}

/// Writes a route of the table `main`.
pub fn write(writer: &mut Writer, kind: u32, flags: u32, entry: &RouteEntry) {
    Shown::of(entry).write(writer, kind, flags, 0);
}

/// `struct rta_cacheinfo` of a route that never expires and whose use is not counted.
fn put_use(all: &mut Attributes<'_>) {
    all.put(raw::RTA_CACHEINFO, &[0; size_of::<raw::rta_cacheinfo>()]);
}

/// Looks a route up.
///
/// # Errors
/// `EINVAL` for addresses of a wrong length or none, `ENODEV`, `ENETUNREACH`, and those that routes
/// say.
pub fn find(request: &Request<'_>, writer: &mut Writer) -> Result<()> {
    let asked: [u8; HEAD] = structure(request)?;
    let family = u32::from(asked[0]);
    if family != AF_INET && family != AF_INET6 {
        return Err(Errno::EOPNOTSUPP);
    }
    let (mut to, mut by) = (None, None);
    for (kind, value) in request.attributes::<HEAD>() {
        if kind == raw::RTA_DST {
            to = Some(message::address(family, value)?);
        } else if kind == raw::RTA_OIF || kind == raw::RTA_IIF {
            let index = message::number(value).ok_or(Errno::EINVAL)?;
            check_index(index)?;
            by = (kind == raw::RTA_OIF && index != 0).then_some(index);
        }
    }
    let to = to.unwrap_or(match family {
        AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    });
    let network = stack().network();
    let whole = if to.is_ipv4() { 32 } else { 128 };
    let is_own = network.is_own(to);
    let way = network.route_by(to, by)?;
    let mut found = Shown {
        table: MAIN,
        // No protocol has made it: it was put together for the question.
        protocol: 0,
        source: Some(way.source),
        gateway: (way.next_hop != to).then_some(way.next_hop),
        ..Shown::local(
            way.interface.index(),
            to,
            whole,
            UNIVERSE,
            if is_own {
                raw::RTN_LOCAL
            } else {
                raw::RTN_UNICAST
            },
            to,
        )
    };
    if let IpAddr::V4(ip) = to
        && way.interface.is_broadcast(ip)
    {
        found.kind = raw::RTN_BROADCAST;
    } else if to.is_multicast() {
        found.kind = raw::RTN_MULTICAST;
    }
    let flags = match (to, is_own) {
        (IpAddr::V4(_), true) => FOUND_LOCAL,
        (IpAddr::V4(_), false) => FOUND,
        (IpAddr::V6(_), _) => 0,
    };
    if to.is_ipv6() {
        found.protocol = BY_KERNEL;
        if is_own {
            found.table = LOCAL;
        } else {
            found.metric = USUAL_METRIC_V6;
        }
    }
    found.write(writer, raw::RTM_NEWROUTE, 0, flags);
    Ok(())
}

/// A route in a request.
struct Asked {
    prefix: Prefix,
    table: u32,
    entry: RouteEntry,
    protocol: u8,
    scope: u8,
    has_interface: bool,
    is_onlink: bool,
}

impl Asked {
    fn of(request: &Request<'_>) -> Result<Asked> {
        let head: [u8; HEAD] = structure(request)?;
        let family = u32::from(head[0]);
        let any: IpAddr = match family {
            AF_INET => Ipv4Addr::UNSPECIFIED.into(),
            AF_INET6 => Ipv6Addr::UNSPECIFIED.into(),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let prefix = |ip| Prefix::new(ip, head[1]).ok_or(Errno::EINVAL);
        let mut entry = RouteEntry::new(prefix(any)?, 0, None);
        let mut table = u32::from(head[4]);
        for (kind, value) in request.attributes::<HEAD>() {
            let word = || message::number(value).ok_or(Errno::EINVAL);
            match kind {
                raw::RTA_DST => {
                    let ip = message::address(family, value)?;
                    entry.prefix = prefix(ip)?;
                    if entry.prefix.network() != ip {
                        return Err(Errno::EINVAL);
                    }
                }
                raw::RTA_GATEWAY => entry.gateway = Some(message::address(family, value)?),
                raw::RTA_PREFSRC => entry.source = Some(message::address(family, value)?),
                raw::RTA_OIF => entry.interface = word()?,
                raw::RTA_PRIORITY => entry.metric = word()?,
                raw::RTA_TABLE => table = word()?,
                raw::RTA_METRICS => {
                    for (kind, value) in message::attributes(value) {
                        if kind == raw::RTAX_MTU {
                            let mtu = message::number(value).ok_or(Errno::EINVAL)?;
                            entry.mtu = u16::try_from(mtu).unwrap_or(0);
                        }
                    }
                }
                _ => {}
            }
        }
        // A gateway of no address is none.
        entry.gateway = entry.gateway.filter(|gateway| !gateway.is_unspecified());
        let flags = message::number(&head[8..]).unwrap_or(0);
        entry.kind = match u32::from(head[7]) {
            0 | raw::RTN_UNICAST => RouteKind::Unicast,
            raw::RTN_BLACKHOLE => RouteKind::Blackhole,
            raw::RTN_UNREACHABLE => RouteKind::Unreachable,
            raw::RTN_PROHIBIT => RouteKind::Prohibited,
            _ => return Err(Errno::EOPNOTSUPP),
        };
        entry.origin = origin(head[5]);
        Ok(Asked {
            prefix: entry.prefix,
            table,
            has_interface: entry.interface != 0,
            protocol: head[5],
            scope: head[6],
            is_onlink: flags & ON_LINK != 0,
            entry,
        })
    }
}

/// Adds a route.
///
/// # Errors
/// `EEXIST`, `ENOENT`, `ENODEV`, `EINVAL`, `ENETUNREACH` for a gateway that is no neighbour,
/// `EOPNOTSUPP` for other tables.
pub fn add(request: &Request<'_>) -> Result<()> {
    let mut asked = Asked::of(request)?;
    if ![0, MAIN].contains(&asked.table) {
        return Err(Errno::EOPNOTSUPP);
    }
    let network = stack().network();
    let entry = &mut asked.entry;
    if entry.kind == RouteKind::Unicast {
        if let (0, Some(gateway)) = (entry.interface, entry.gateway) {
            let way = network.route(gateway)?;
            if way.interface.is_loopback() {
                return Err(Errno::EINVAL);
            }
            entry.interface = way.interface.index();
        }
        if entry.interface == 0 {
            return Err(Errno::ENODEV);
        }
        check_index(entry.interface)?;
        if entry.gateway.is_some_and(|gateway| network.is_own(gateway)) {
            return Err(Errno::EINVAL);
        }
    } else {
        entry.interface = ip::LOOPBACK;
        entry.gateway = None;
    }
    if entry.source.is_some_and(|source| !network.is_own(source)) {
        return Err(Errno::EINVAL);
    }
    if entry.prefix.network().is_ipv6() && entry.metric == 0 {
        entry.metric = USUAL_METRIC_V6;
    }
    let how = if request.has(raw::NLM_F_EXCL) {
        Adding::New
    } else if request.has(raw::NLM_F_REPLACE) {
        Adding::Replace(request.has(raw::NLM_F_CREATE))
    } else {
        Adding::Append
    };
    network.configure_route(*entry, how, asked.is_onlink)
}

/// Removes a route.
///
/// # Errors
/// `ESRCH`, `EINVAL`, `EOPNOTSUPP`.
pub fn remove(request: &Request<'_>) -> Result<()> {
    let asked = Asked::of(request)?;
    if ![0, MAIN].contains(&asked.table) {
        return Err(Errno::ESRCH);
    }
    let entry = asked.entry;
    let has_kind = request.body().get(7).is_some_and(|kind| *kind != 0);
    let choice = RouteChoice {
        interface: asked.has_interface.then_some(entry.interface),
        gateway: entry.gateway,
        source: entry.source,
        metric: (entry.metric != 0).then_some(entry.metric),
        kind: has_kind.then_some(entry.kind),
        origin: (asked.protocol != 0).then_some(entry.origin),
    };
    // A scope of "link" means routes without a gateway; "nowhere" means any.
    let is_near = asked.scope == LINK;
    let fits = |own: &RouteEntry| {
        own.prefix == asked.prefix
            && choice.fits(own)
            && !(is_near && asked.prefix.is_ipv4() && own.gateway.is_some())
    };
    stack().network().remove_route_if(fits)
}

/// Lists the rules: which table is asked before which.
pub fn list_rules(writer: &mut Writer, v4: bool, v6: bool) -> u32 {
    const V4: [(u32, u32); 3] = [(LOCAL, 0), (MAIN, 32_766), (DEFAULT, 32_767)];
    const V6: [(u32, u32); 2] = [(LOCAL, 0), (MAIN, 32_766)];
    let families = [(v4, AF_INET, &V4[..]), (v6, AF_INET6, &V6[..])];
    for (_, family, rules) in families.into_iter().filter(|(wanted, ..)| *wanted) {
        for &(table, priority) in rules {
            let mut head = [0; HEAD];
            head[0] = family as u8;
            head[4] = table as u8;
            head[7] = LOOK_UP;
            writer.message(raw::RTM_NEWRULE, raw::NLM_F_MULTI, &head, |all| {
                all.put_number(raw::FRA_TABLE, table);
                all.put_number(raw::FRA_SUPPRESS_PREFIXLEN, u32::MAX);
                all.put(raw::FRA_PROTOCOL, &[BY_KERNEL]);
                if priority != 0 {
                    all.put_number(raw::FRA_PRIORITY, priority);
                }
            });
        }
    }
    0
}
