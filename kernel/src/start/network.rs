//! The network: cards, and their addresses (`ip=`).

use core::{net::IpAddr, time::Duration};

use fs::{Walk, vnode::Make};
use net::{configure::How, ip::Prefix};
use nucleus::{
    log,
    task::{self, Sleep},
    time,
};

use super::{RootSource, StoredRoot};
use crate::{device, shutdown, socket::inet::stack};

/// Where the first card's addresses come from. All cards ask routers for those of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressing {
    /// A server of DHCP is asked, and waited for (`ip=dhcp`).
    Dhcp,
    /// A server of DHCP is asked while programs run: the default.
    Later,
    /// Programs see to it (`ip=none`).
    None,
    /// This one (`ip=ADDRESS/BITS[,GATEWAY]`).
    Static {
        address: IpAddr,
        bits: u8,
        gateway: Option<IpAddr>,
    },
}

/// Parses the value of `ip=`.
pub fn parse(value: &str) -> Option<Addressing> {
    match value {
        "dhcp" => return Some(Addressing::Dhcp),
        "none" => return Some(Addressing::None),
        _ => {}
    }
    let (network, gateway) = match value.split_once(',') {
        Some((network, gateway)) => (network, Some(gateway.parse::<IpAddr>().ok()?)),
        None => (value, None),
    };
    let (address, bits) = network.split_once('/')?;
    let (address, bits) = (address.parse::<IpAddr>().ok()?, bits.parse().ok()?);
    Prefix::new(address, bits)?;
    let fits = gateway.is_none_or(|gateway| gateway.is_ipv4() == address.is_ipv4());
    fits.then_some(Addressing::Static {
        address,
        bits,
        gateway,
    })
}

/// The time for which the start waits for a server of DHCP.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the end of the machine waits for connections: time for a segment to be sent again. A
/// peer that is gone makes it wait for nothing.
const LAST_WORD: Duration = Duration::from_secs(3);
/// How often it looks at them.
const GLANCE: Duration = Duration::from_millis(2);
/// The file that tells programs of the servers for names, and what it leads to.
const RESOLVER: &[u8] = b"/etc/resolv.conf";
const SERVERS: &[u8] = b"/proc/net/pnp";

/// Starts the cards, which begin to get addresses. Returns whether there are any.
pub fn start(how: Addressing) -> bool {
    let cards = device::net::start();
    if cards.is_empty() {
        return false;
    }
    shutdown::add_before(finish_connections);
    let stack = stack();
    for (nth, &card) in cards.iter().enumerate() {
        let wanted = match how {
            Addressing::None => continue,
            Addressing::Static {
                address,
                bits,
                gateway,
            } if nth == 0 => {
                set(card, address, bits, gateway);
                How {
                    dhcp: false,
                    v6: true,
                }
            }
            _ => How {
                dhcp: true,
                v6: true,
            },
        };
        if let Err(error) = stack.configurator().add(card, wanted) {
            log!(
                "net: interface {card} does not configure itself: {}",
                error.name()
            );
        }
    }
    true
}

/// Waits until the connections that programs have closed have sent everything: a program may have
/// ended the machine by its own end.
fn finish_connections(_: Option<i32>) {
    let end = time::since_boot() + LAST_WORD;
    while stack().is_closing() && time::since_boot() < end {
        task::sleep(Sleep::within(GLANCE));
    }
}

fn set(card: u32, address: IpAddr, bits: u8, gateway: Option<IpAddr>) {
    let network = stack().network();
    let mut set = network.add_address(card, address, bits);
    if let (Some(gateway), Some(all)) = (gateway, Prefix::all(address)) {
        set = set.and_then(|()| network.add_route(all, card, Some(gateway)));
    }
    if let Err(error) = set {
        log!("net: {address} can't be set: {}", error.name());
    }
}

/// Waits for addresses, where that was asked for, and lets programs find the servers for names by
/// a link to `/proc/net/pnp`. A root that stays from boot to boot gets it only where it has no such
/// file, a folder of the host's never.
pub fn finish(how: Addressing, root: Option<&StoredRoot>, walk: &Walk<'_>) {
    let configurator = stack().configurator();
    if how == Addressing::Dhcp {
        let settled = || configurator.is_settled().then_some(());
        if configurator
            .changed()
            .wait(Sleep::within(PATIENCE), settled)
            .is_err()
        {
            log!("net: no server of DHCP answers yet");
        }
    }
    let is_folder = root.is_some_and(|root| matches!(root.source, RootSource::Share(_)));
    if how == Addressing::None || is_folder {
        return;
    }
    // In a copy that is this boot's alone the file is the host's.
    let is_copy = root.is_none_or(|root| root.is_fresh);
    let has_servers = configurator
        .resolver()
        .is_ok_and(|it| !it.servers.is_empty());
    if is_copy && has_servers {
        // There may be none.
        let _ = walk.remove(RESOLVER, false);
    }
    // The root may not be changed, or have no such folder.
    let _ = walk.make(RESOLVER, Make::Link(SERVERS.to_vec()), 0o777);
}
