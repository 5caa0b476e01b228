//! The network: cards, and their addresses (`ip=`).

use core::net::IpAddr;

use net::ip::Prefix;
use nucleus::log;

use crate::{device, socket::inet::stack};

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

/// Starts the cards and gives them addresses.
pub fn start(how: Addressing) {
    let cards = device::net::start();
    let network = stack().network();
    if let (
        Some(&first),
        Addressing::Static {
            address,
            bits,
            gateway,
        },
    ) = (cards.first(), how)
    {
        let mut set = network.add_address(first, address, bits);
        if let (Some(gateway), Some(all)) = (gateway, Prefix::all(address)) {
            set = set.and_then(|()| network.add_route(all, first, Some(gateway)));
        }
        if let Err(error) = set {
            log!("net: {address} can't be set: {}", error.name());
        }
    }
}
