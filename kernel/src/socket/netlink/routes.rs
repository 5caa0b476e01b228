//! Routes, and the rules by which they are looked for, as netlink tells of them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use abi::{Errno, Result};
use net::ip;

use super::{
    message::{self, Attributes, Request, Writer},
    numbers as raw,
    route::{Asker, check_index, structure},
};
use crate::socket::inet::{AF_INET, AF_INET6, interface};

/// Bytes of a `struct rtmsg`; a `struct fib_rule_hdr` has as many.
const HEAD: usize = 12;
/// `RTPROT_KERNEL`.
const BY_KERNEL: u8 = 2;
/// `RT_SCOPE_HOST`, `RT_SCOPE_LINK`, `RT_SCOPE_UNIVERSE`.
const HOST: u8 = 254;
const LINK: u8 = 253;
const UNIVERSE: u8 = 0;
/// `RTN_LOCAL`, `RTN_BROADCAST`.
const TO_HERE: u8 = 2;
const TO_ALL: u8 = 3;
/// Tables of routes.
const LOCAL: u32 = 255;
const MAIN: u32 = 254;
const DEFAULT: u32 = 253;
/// `FR_ACT_TO_TBL`.
const LOOK_UP: u8 = 1;
/// Flags of a looked-up route: not in a table, and to this machine (`RTCF_LOCAL`).
const FOUND: u32 = raw::RTM_F_CLONED | 0x8000_0000;

/// One route. All are in the table `local`.
struct Route {
    to: IpAddr,
    prefix: u8,
    scope: u8,
    kind: u8,
}

const fn route(to: IpAddr, prefix: u8, scope: u8, kind: u8) -> Route {
    Route {
        to,
        prefix,
        scope,
        kind,
    }
}

const ROUTES: [Route; 4] = [
    route(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8, HOST, TO_HERE),
    route(IpAddr::V4(Ipv4Addr::LOCALHOST), 32, HOST, TO_HERE),
    route(
        IpAddr::V4(Ipv4Addr::new(127, 255, 255, 255)),
        32,
        LINK,
        TO_ALL,
    ),
    route(IpAddr::V6(Ipv6Addr::LOCALHOST), 128, UNIVERSE, TO_HERE),
];

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

    fn lets_pass(&self, route: &Route) -> bool {
        let fits = |asked: u8, own: u8| asked == 0 || asked == own;
        (self.table == 0 || self.table == LOCAL)
            && fits(self.protocol, BY_KERNEL)
            && fits(self.kind, route.kind)
    }
}

/// Lists routes; gives flags for the list's end.
///
/// # Errors
/// `EINVAL`, `ENODEV`, `ENOENT` where it is checked strictly.
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
    let wanted = ROUTES.iter().filter(|route| match route.to {
        IpAddr::V4(_) => v4,
        IpAddr::V6(_) => v6,
    });
    for route in wanted.filter(|route| filter.lets_pass(route)) {
        let family = if route.to.is_ipv4() {
            AF_INET
        } else {
            AF_INET6
        };
        let head = head(family, route, LOCAL, 0);
        writer.message(
            raw::RTM_NEWROUTE,
            raw::NLM_F_MULTI | filtered,
            &head,
            |all| {
                all.put_number(raw::RTA_TABLE, LOCAL);
                put_address(all, raw::RTA_DST, route.to);
                match route.to {
                    IpAddr::V4(_) => {
                        put_address(all, raw::RTA_PREFSRC, Ipv4Addr::LOCALHOST.into());
                        all.put_number(raw::RTA_OIF, interface::INDEX as u32);
                    }
                    IpAddr::V6(_) => {
                        all.put_number(raw::RTA_PRIORITY, 0);
                        all.put_number(raw::RTA_OIF, interface::INDEX as u32);
                        put_use(all);
                        all.put(raw::RTA_PREF, &[0]);
                    }
                }
            },
        );
    }
    Ok(filtered)
}

fn head(family: u32, route: &Route, table: u32, flags: u32) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..2].copy_from_slice(&[family as u8, route.prefix]);
    head[4..8].copy_from_slice(&[table as u8, BY_KERNEL, route.scope, route.kind]);
    head[8..].copy_from_slice(&flags.to_le_bytes());
    head
}

fn put_address(all: &mut Attributes<'_>, kind: u32, address: IpAddr) {
    match address {
        IpAddr::V4(ip) => all.put(kind, &ip.octets()),
        IpAddr::V6(ip) => all.put(kind, &ip.octets()),
    }
}

/// `struct rta_cacheinfo` of a route that never expires and whose use is not counted.
fn put_use(all: &mut Attributes<'_>) {
    all.put(raw::RTA_CACHEINFO, &[0; size_of::<raw::rta_cacheinfo>()]);
}

/// Looks a route up.
///
/// # Errors
/// `EINVAL` for addresses of a wrong length or none, `ENODEV`, `ENETUNREACH`.
pub fn find(request: &Request<'_>, writer: &mut Writer) -> Result<()> {
    let asked: [u8; HEAD] = structure(request)?;
    let family = u32::from(asked[0]);
    let mut to: Option<IpAddr> = None;
    for (kind, value) in request.attributes::<HEAD>() {
        if kind == raw::RTA_DST {
            to = Some(match family {
                AF_INET => IpAddr::from(*value.first_chunk::<4>().ok_or(Errno::EINVAL)?),
                AF_INET6 => IpAddr::from(*value.first_chunk::<16>().ok_or(Errno::EINVAL)?),
                _ => return Err(Errno::EOPNOTSUPP),
            });
        } else if kind == raw::RTA_OIF || kind == raw::RTA_IIF {
            check_index(message::number(value).ok_or(Errno::EINVAL)?)?;
        }
    }
    let to = match (to, family) {
        (Some(to), _) => to,
        (None, AF_INET) => Ipv4Addr::UNSPECIFIED.into(),
        (None, AF_INET6) => Ipv6Addr::UNSPECIFIED.into(),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let source = ip::source_for(to)?;
    let (prefix, table, flags) = match to {
        IpAddr::V4(_) => (32, MAIN, FOUND),
        IpAddr::V6(_) => (128, LOCAL, 0),
    };
    let route = route(to, prefix, UNIVERSE, TO_HERE);
    let mut head = head(family, &route, table, flags);
    if to.is_ipv4() {
        // No protocol has made it: it was put together for the question.
        head[5] = 0;
    }
    writer.message(raw::RTM_NEWROUTE, 0, &head, |all| {
        all.put_number(raw::RTA_TABLE, table);
        put_address(all, raw::RTA_DST, to);
        all.put_number(raw::RTA_OIF, interface::INDEX as u32);
        put_address(all, raw::RTA_PREFSRC, source);
        if to.is_ipv6() {
            all.put_number(raw::RTA_PRIORITY, 0);
        }
        put_use(all);
        if to.is_ipv6() {
            all.put(raw::RTA_PREF, &[0]);
        }
    });
    Ok(())
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
