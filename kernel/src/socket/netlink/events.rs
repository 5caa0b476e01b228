//! News of changes for the listeners of `NETLINK_ROUTE`'s groups.

use net::ip::{Change, Neighbour};

use super::{addresses, link, message::Writer, neighbours, numbers as raw, routes, socket};
use crate::socket::inet::stack;

/// Tells the listeners of a change.
pub fn tell(change: Change) {
    if !socket::has_any_listeners() {
        return;
    }
    let network = stack().network();
    let mut writer = Writer::news();
    let group = match change {
        Change::Interface(index) => {
            let Some(interface) = network.interface(index) else {
                return;
            };
            if socket::has_listeners(raw::RTNLGRP_LINK) {
                link::write(&mut writer, raw::RTM_NEWLINK, 0, &interface, true);
            }
            raw::RTNLGRP_LINK
        }
        Change::NoInterface(index, name) => {
            let mut head = [0; 16];
            head[4..8].copy_from_slice(&index.to_le_bytes());
            writer.message(raw::RTM_DELLINK, 0, &head, |all| {
                all.put(raw::IFLA_IFNAME, &name.0);
            });
            raw::RTNLGRP_LINK
        }
        Change::Address(index, address) | Change::NoAddress(index, address) => {
            let Some(interface) = network.interface(index) else {
                return;
            };
            let kind = match change {
                Change::Address(..) => raw::RTM_NEWADDR,
                _ => raw::RTM_DELADDR,
            };
            addresses::write(&mut writer, kind, 0, &interface, &address);
            match address.ip.is_ipv4() {
                true => raw::RTNLGRP_IPV4_IFADDR,
                false => raw::RTNLGRP_IPV6_IFADDR,
            }
        }
        Change::Route(route) | Change::NoRoute(route) => {
            let kind = match change {
                Change::Route(_) => raw::RTM_NEWROUTE,
                _ => raw::RTM_DELROUTE,
            };
            routes::write(&mut writer, kind, 0, &route);
            match route.prefix.is_ipv4() {
                true => raw::RTNLGRP_IPV4_ROUTE,
                false => raw::RTNLGRP_IPV6_ROUTE,
            }
        }
        Change::Neighbour(index, entry) => {
            neighbours::write(&mut writer, raw::RTM_NEWNEIGH, 0, index, &entry);
            raw::RTNLGRP_NEIGH
        }
        Change::NoNeighbour(index, ip) => {
            let gone = Neighbour::gone(ip);
            neighbours::write(&mut writer, raw::RTM_DELNEIGH, 0, index, &gone);
            raw::RTNLGRP_NEIGH
        }
    };
    if socket::has_listeners(group) {
        let news = writer.finish();
        socket::tell_group(group, news.as_deref());
    }
}
