//! The format of DHCP (RFC 2131, RFC 2132). `smoltcp` has it only together with its sockets.

use core::net::Ipv4Addr;

use crate::link::Mac;

/// The ports of servers and of clients.
pub const SERVER: u16 = 67;
pub const CLIENT: u16 = 68;
/// Bytes of a message that is sent: the least that old servers take.
pub const LEN: usize = 300;
/// Bytes of a message that are read; what follows is left out.
pub const MOST: usize = 1024;

/// Where the options begin, and what stands before them.
const OPTIONS: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// The flag that lets a server answer to all machines: this one has no address yet.
const BROADCAST: u8 = 0x80;

/// Options.
mod option {
    pub const PAD: u8 = 0;
    pub const MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const DNS: u8 = 6;
    pub const DOMAIN: u8 = 15;
    pub const MTU: u8 = 26;
    pub const WANTED_IP: u8 = 50;
    pub const LEASE: u8 = 51;
    pub const KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const LIST: u8 = 55;
    pub const LONGEST: u8 = 57;
    pub const RENEW: u8 = 58;
    pub const REBIND: u8 = 59;
    pub const CLIENT: u8 = 61;
    pub const END: u8 = 255;
}

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    Discover = 1,
    Offer = 2,
    Request = 3,
    Decline = 4,
    Ack = 5,
    Nak = 6,
}

/// The most servers for names that are kept.
pub const SERVERS: usize = 3;
/// The longest domain that is kept.
pub const DOMAIN: usize = 128;

/// What a server says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    pub kind: Kind,
    /// The address for this machine, and how many bits its network has in common.
    pub ip: Ipv4Addr,
    pub bits: u8,
    /// The server's own.
    pub server: Ipv4Addr,
    pub router: Option<Ipv4Addr>,
    pub dns: [Option<Ipv4Addr>; SERVERS],
    /// The domain, and its length.
    pub domain: ([u8; DOMAIN], usize),
    pub mtu: Option<u16>,
    /// Seconds: how long the address may be used, when to ask the server for more, when others.
    pub lease: u32,
    pub renew: Option<u32>,
    pub rebind: Option<u32>,
}

/// A message to a server.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    pub kind: Kind,
    pub number: u32,
    pub mac: Mac,
    /// The address that this machine has and may be reached by.
    pub own: Option<Ipv4Addr>,
    /// The address that it would like to have.
    pub wanted: Option<Ipv4Addr>,
    /// The server that was chosen.
    pub server: Option<Ipv4Addr>,
}

impl Query {
    /// Writes the message.
    pub fn write(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        // A request, Ethernet, six bytes of address.
        bytes[..3].copy_from_slice(&[1, 1, 6]);
        bytes[4..8].copy_from_slice(&self.number.to_be_bytes());
        match self.own {
            Some(own) => bytes[12..16].copy_from_slice(&own.octets()),
            None => bytes[10] = BROADCAST,
        }
        bytes[28..34].copy_from_slice(&self.mac.0);
        bytes[236..OPTIONS].copy_from_slice(&MAGIC);
        let mut at = OPTIONS;
        let mut put = |option: u8, data: &[u8]| {
            bytes[at..at + 2].copy_from_slice(&[option, data.len() as u8]);
            bytes[at + 2..at + 2 + data.len()].copy_from_slice(data);
            at += 2 + data.len();
        };
        put(option::KIND, &[self.kind as u8]);
        let [a, b, c, d, e, f] = self.mac.0;
        put(option::CLIENT, &[1, a, b, c, d, e, f]);
        if let Some(wanted) = self.wanted {
            put(option::WANTED_IP, &wanted.octets());
        }
        if let Some(server) = self.server {
            put(option::SERVER, &server.octets());
        }
        // A message that has no answer asks for nothing.
        if self.kind != Kind::Decline {
            put(option::LONGEST, &(MOST as u16).to_be_bytes());
            let list = [
                option::MASK,
                option::ROUTER,
                option::DNS,
                option::DOMAIN,
                option::MTU,
                option::LEASE,
                option::RENEW,
                option::REBIND,
            ];
            put(option::LIST, &list);
        }
        bytes[at] = option::END;
        bytes
    }
}

fn word(data: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(..4)?.try_into().ok()?))
}

fn address(data: &[u8]) -> Option<Ipv4Addr> {
    word(data).map(Ipv4Addr::from)
}

/// Returns the options up to the end.
fn options(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    core::iter::from_fn(move || {
        while let [option::PAD, rest @ ..] = bytes {
            bytes = rest;
        }
        let (&[kind, len], rest) = bytes.split_first_chunk()?;
        if kind == option::END {
            return None;
        }
        let (data, rest) = rest.split_at_checked(len.into())?;
        bytes = rest;
        Some((kind, data))
    })
}

/// Reads a server's answer to the query with this number; `None` for one that is wrong, or is for
/// another machine.
pub fn read(bytes: &[u8], number: u32, mac: Mac) -> Option<Reply> {
    let (head, rest) = bytes.split_at_checked(OPTIONS)?;
    let is_ours =
        head[..3] == [2, 1, 6] && word(&head[4..]) == Some(number) && head[28..34] == mac.0;
    if !is_ours || head[236..] != MAGIC {
        return None;
    }
    let (mut kind, mut mask, mut server, mut lease) = (None, None, None, None);
    let ip = address(&head[16..])?;
    let mut reply = Reply {
        kind: Kind::Nak,
        ip,
        bits: 0,
        server: Ipv4Addr::UNSPECIFIED,
        router: None,
        dns: [None; SERVERS],
        domain: ([0; DOMAIN], 0),
        mtu: None,
        lease: 0,
        renew: None,
        rebind: None,
    };
    for (option, data) in options(rest) {
        match option {
            option::KIND => {
                kind = match data {
                    [2] => Some(Kind::Offer),
                    [5] => Some(Kind::Ack),
                    [6] => Some(Kind::Nak),
                    _ => return None,
                }
            }
            option::MASK => mask = word(data),
            option::ROUTER => reply.router = address(data).filter(is_machine),
            option::DNS => {
                let all = data.chunks_exact(4).filter_map(address).filter(is_machine);
                reply.dns = [None; SERVERS];
                for (to, server) in reply.dns.iter_mut().zip(all) {
                    *to = Some(server);
                }
            }
            option::DOMAIN => {
                let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
                if data.len() <= DOMAIN && data.iter().all(is_plain) {
                    reply.domain.0[..data.len()].copy_from_slice(data);
                    reply.domain.1 = data.len();
                }
            }
            option::MTU => reply.mtu = data.try_into().ok().map(u16::from_be_bytes),
            option::SERVER => server = address(data).filter(is_machine),
            option::LEASE => lease = word(data),
            option::RENEW => reply.renew = word(data),
            option::REBIND => reply.rebind = word(data),
            _ => {}
        }
    }
    reply.kind = kind?;
    reply.server = server?;
    if reply.kind == Kind::Nak {
        return Some(reply);
    }
    reply.lease = lease.filter(|&seconds| seconds > 0)?;
    reply.bits = match mask {
        Some(mask) => mask.leading_ones() as u8,
        None => class(ip),
    };
    let is_whole = mask.is_none_or(|mask| mask.count_ones() == mask.leading_ones());
    (is_whole && reply.bits > 0 && is_machine(&ip)).then_some(reply)
}

/// Tells whether an address can be one machine's.
fn is_machine(ip: &Ipv4Addr) -> bool {
    let is_none = ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast();
    !is_none && !ip.is_loopback() && ip.octets()[0] < 240 && ip.octets()[0] > 0
}

/// Returns the bits of an address's network where nothing says how many they are.
fn class(ip: Ipv4Addr) -> u8 {
    match ip.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        _ => 24,
    }
}
