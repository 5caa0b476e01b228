//! The choice of a packet's source among the addresses of an interface (RFC 6724 5).

use core::net::{IpAddr, Ipv6Addr};

use super::interface::{Address, AddressState};

/// Returns the best source of packets to `to` among addresses; `None` if none fits.
pub(super) fn best(addresses: &[Address], to: IpAddr, now: u64) -> Option<IpAddr> {
    let mut best: Option<&Address> = None;
    for own in addresses {
        let fits = own.ip.is_ipv4() == to.is_ipv4() && own.state == AddressState::Valid;
        if fits && best.is_none_or(|best| is_better(own, best, to, now)) {
            best = Some(own);
        }
    }
    best.map(|own| own.ip)
}

/// Returns how far an address reaches: Linux's `RT_SCOPE_*`.
pub fn scope_of(ip: IpAddr) -> u8 {
    match ip {
        ip if ip.is_loopback() => 254,
        IpAddr::V4(ip) if ip.is_link_local() => 253,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => 253,
        IpAddr::V6(ip) if ip.octets()[..2] == [0xff, 2] => 253,
        IpAddr::V6(ip) if ip.octets()[..2] == [0xff, 1] => 254,
        _ => 0,
    }
}

/// Returns how many bits two addresses have in common at their beginning.
fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros(),
        _ => 0,
    }
}

/// Returns the label of an IPv6 address by RFC 6724's table.
fn label(ip: Ipv6Addr) -> u8 {
    let first = ip.segments()[0];
    match ip {
        Ipv6Addr::LOCALHOST => 0,
        _ if ip.to_ipv4_mapped().is_some() => 4,
        _ if first == 0x2002 => 2,
        _ if first == 0x2001 && ip.segments()[1] == 0 => 5,
        _ if first & 0xfe00 == 0xfc00 => 13,
        _ => 1,
    }
}

/// Returns whether `a` is a better source than `b` of packets to `to` (RFC 6724 5; interfaces are
/// compared by the caller, which asks the outgoing one).
fn is_better(a: &Address, b: &Address, to: IpAddr, now: u64) -> bool {
    if a.ip == to || b.ip == to {
        return a.ip == to;
    }
    let (scope_a, scope_b, wanted) = (scope_of(a.ip), scope_of(b.ip), scope_of(to));
    if scope_a != scope_b {
        // The nearest scope that reaches as far as the destination. Small numbers reach far.
        return match scope_a < scope_b {
            true => scope_b > wanted,
            false => scope_a <= wanted,
        };
    }
    let old = |it: &Address| it.is_deprecated(now);
    if old(a) != old(b) {
        return old(b);
    }
    if let (IpAddr::V6(a), IpAddr::V6(b), IpAddr::V6(to)) = (a.ip, b.ip, to) {
        let fits = |ip| label(ip) == label(to);
        if fits(a) != fits(b) {
            return fits(a);
        }
        return common_bits(a.into(), to.into()) > common_bits(b.into(), to.into());
    }
    // IPv4: the network of the destination, else the first.
    a.prefix.contains(to) && !b.prefix.contains(to)
}

#[cfg(test)]
mod tests {
    use alloc::{
        string::{String, ToString},
        vec::Vec,
    };

    use super::*;
    use crate::ip::{Origin, Prefix};

    fn best(to: &str, own: &[(&str, u64)]) -> String {
        let to = to.parse().unwrap();
        let own = own.iter().map(|(text, preferred_until)| {
            let (ip, bits) = text.split_once('/').unwrap();
            let prefix = Prefix::new(ip.parse().unwrap(), bits.parse().unwrap()).unwrap();
            Address {
                preferred_until: Some(*preferred_until),
                ..Address::lasting(ip.parse().unwrap(), prefix, Origin::Static)
            }
        });
        let own: Vec<Address> = own.collect();
        super::best(&own, to, 10).unwrap().to_string()
    }

    /// The examples of RFC 6724 10.1, as far as they concern one interface, and more.
    #[test]
    fn sources_are_those_of_the_rfc() {
        const F: u64 = u64::MAX;
        for (to, own, wanted) in [
            (
                "2001:db8:1::1",
                &[("2001:db8:3::1/64", F), ("fe80::1/64", F)][..],
                "2001:db8:3::1",
            ),
            (
                "ff05::1",
                &[("2001:db8:3::1/64", F), ("fe80::1/64", F)],
                "2001:db8:3::1",
            ),
            (
                "2001:db8:1::1",
                &[("2001:db8:1::1/64", 5), ("2001:db8:2::1/64", F)],
                "2001:db8:1::1",
            ),
            (
                "fe80::1",
                &[("fe80::2/64", 5), ("2001:db8:1::1/64", F)],
                "fe80::2",
            ),
            (
                "2001:db8:1::1",
                &[("2001:db8:1::2/64", F), ("2001:db8:3::2/64", F)],
                "2001:db8:1::2",
            ),
            (
                "2002:c633:6401::1",
                &[("2001:db8:1::2/64", F), ("2002:c633:6401::d5e3/64", F)],
                "2002:c633:6401::d5e3",
            ),
            (
                "2001:db8::1",
                &[("2001:db8::2/64", 5), ("2001:db8::3/64", F)],
                "2001:db8::3",
            ),
            (
                "fd00::9",
                &[("2001:db8::3/64", F), ("fd00::2/64", F)],
                "fd00::2",
            ),
            (
                "10.2.0.9",
                &[("10.1.0.1/24", F), ("10.2.0.1/24", F)],
                "10.2.0.1",
            ),
            (
                "8.8.8.8",
                &[("169.254.0.1/16", F), ("10.2.0.1/24", F)],
                "10.2.0.1",
            ),
            (
                "8.8.8.8",
                &[("10.1.0.1/24", F), ("10.2.0.1/24", F)],
                "10.1.0.1",
            ),
        ] {
            for turn in 0..own.len() {
                // The order matters only where nothing else does.
                if turn > 0 && to == "8.8.8.8" {
                    continue;
                }
                let mut own = own.to_vec();
                own.rotate_left(turn);
                assert_eq!(best(to, &own), wanted, "to {to} from {own:?}");
            }
        }
    }
}
