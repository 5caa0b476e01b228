//! What routers advertise (RFC 4861 4.2, RFC 4862 5.5, RFC 8106), and the addresses made of it.

use core::net::Ipv6Addr;

use crate::link::Mac;

/// The type of an advertisement's message of ICMP.
const ADVERTISEMENT: u8 = 134;
/// Bytes of an advertisement before its options.
const HEADER: usize = 16;
/// Options.
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const DNS: u8 = 25;
/// Flags of a prefix: its addresses are on this link; machines make addresses of it.
const ON_LINK: u8 = 0x80;
const AUTONOMOUS: u8 = 0x40;
/// Bits of a prefix that an interface's own 64 bits complete.
const BITS: u8 = 64;

/// One thing that a router says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// It is a router for so many seconds; 0 for none.
    Router(u16),
    /// A network, with its bits, and the seconds for which it is valid and preferred.
    Prefix {
        network: Ipv6Addr,
        bits: u8,
        is_on_link: bool,
        is_autonomous: bool,
        valid: u32,
        preferred: u32,
    },
    /// The largest packet of the link.
    Mtu(u32),
    /// A server for names, for so many seconds.
    Dns(Ipv6Addr, u32),
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn address(bytes: &[u8], at: usize) -> Option<Ipv6Addr> {
    let bytes: [u8; 16] = bytes.get(at..at + 16)?.try_into().ok()?;
    Some(bytes.into())
}

/// Reads an advertisement, and calls `say` with each thing that it says. Returns false for one that
/// is wrong; nothing was said then.
pub fn read(bytes: &[u8], mut say: impl FnMut(Said)) -> bool {
    if bytes.len() < HEADER || bytes[..2] != [ADVERTISEMENT, 0] {
        return false;
    }
    let options = || {
        let mut left = &bytes[HEADER..];
        core::iter::from_fn(move || {
            let len = usize::from(*left.get(1)?) * 8;
            let (option, rest) = left.split_at_checked(len).filter(|_| len > 0)?;
            left = rest;
            Some(option)
        })
    };
    let known: usize = options().map(<[u8]>::len).sum();
    if HEADER + known != bytes.len() {
        return false;
    }
    say(Said::Router(u16::from_be_bytes([bytes[6], bytes[7]])));
    for option in options() {
        match option[0] {
            PREFIX => {
                let said = (|| {
                    let (valid, preferred) = (word(option, 4)?, word(option, 8)?);
                    let network = address(option, 16)?;
                    let is_wrong = network.is_multicast()
                        || network.is_unicast_link_local()
                        || preferred > valid
                        || option[2] > 128;
                    (!is_wrong).then_some(Said::Prefix {
                        network,
                        bits: option[2],
                        is_on_link: option[3] & ON_LINK != 0,
                        is_autonomous: option[3] & AUTONOMOUS != 0 && option[2] == BITS,
                        valid,
                        preferred,
                    })
                })();
                said.into_iter().for_each(&mut say);
            }
            MTU => word(option, 4)
                .map(Said::Mtu)
                .into_iter()
                .for_each(&mut say),
            DNS => {
                let Some(life) = word(option, 4) else {
                    continue;
                };
                let servers = (8..).step_by(16).map_while(|at| address(option, at));
                servers.for_each(|server| say(Said::Dns(server, life)));
            }
            _ => {}
        }
    }
    true
}

/// Returns the address of an interface in a network of 64 bits (RFC 4291, appendix A).
pub fn own(network: Ipv6Addr, mac: Mac) -> Ipv6Addr {
    let mut octets = network.octets();
    let [a, b, c, d, e, f] = mac.0;
    octets[8..].copy_from_slice(&[a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    octets.into()
}
