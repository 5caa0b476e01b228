//! The protocol `NETLINK_SOCK_DIAG`: lists sockets of the internet and local ones.

use alloc::{sync::Arc, vec::Vec};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::{Errno, Result, raw::net::AF_UNIX};
use net::{
    Family,
    datagram::Protocol,
    tcp::{self, State},
};

use super::{
    message::{self, Answers, Request, Writer},
    numbers as raw,
    route::{Asker, structure},
};
use crate::socket::{
    control::number,
    inet::{AF_INET, AF_INET6, congestion_name, info, stack, state_number},
    unix::listing,
};

/// Protocols; 255 stands for all raw sockets.
const TCP: u32 = 6;
const UDP: u32 = 17;
const UDP_LITE: u32 = 136;
const RAW: u32 = 255;
/// `SOCK_DIAG_BY_FAMILY`: the only request.
const BY_FAMILY: u32 = 20;
/// Bytes of a `struct inet_diag_req_v2` and a `struct inet_diag_msg`.
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// Bytes of a `struct unix_diag_req` and a `struct unix_diag_msg`.
const UNIX_REQUEST: usize = 24;
const UNIX_ANSWER: usize = 16;
/// Attributes (`INET_DIAG_*`) by their numbers, as bits of a request.
const MEMORY: u32 = 1;
const INFO: u32 = 2;
const CONGESTION: u32 = 4;
const SHUT: u32 = 8;
const SOCKET_MEMORY: u32 = 7;
const V6_ONLY: u32 = 11;
/// Attributes of local sockets (`UNIX_DIAG_*`), and their bits in a request.
const NAME: u32 = 0;
const PEER: u32 = 2;
const QUEUE: u32 = 4;
const UNIX_SHUT: u32 = 6;
const OWNER: u32 = 7;
const SHOW_NAME: u32 = 1;
const SHOW_PEER: u32 = 4;
const SHOW_QUEUE: u32 = 0x10;
const SHOW_OWNER: u32 = 0x40;
/// The states of sockets that are not connected, and that are.
const CLOSED: u8 = 7;
const ESTABLISHED: u8 = 1;
const LISTENS: u8 = 10;

/// Serves the requests in a datagram, until the thread is to end.
pub fn serve(bytes: &[u8], asker: &Asker, answers: &mut Answers<'_>) {
    for request in message::requests(bytes) {
        if vm::is_dying() {
            return;
        }
        if !request.has(raw::NLM_F_REQUEST) || request.kind < raw::NLMSG_MIN_TYPE {
            continue;
        }
        let is_list = request.has(raw::NLM_F_DUMP);
        // One socket is looked for among all: that is as much work as a list.
        let served = answers.check_room().and_then(|()| {
            let mut writer = Writer::new(&request, asker.port);
            serve_one(&request, &mut writer, is_list)?;
            writer.finish_all()
        });
        let mut end = Writer::new(&request, asker.port);
        match (&served, is_list) {
            (Ok(_), true) => end.done(None, 0),
            (Ok(_), false) if !request.has(raw::NLM_F_ACK) => {}
            (Ok(_), false) => end.outcome(&request, None, asker.caps_outcomes),
            (Err(error), _) => end.outcome(&request, Some(*error), asker.caps_outcomes),
        }
        for datagram in served.into_iter().flatten() {
            answers.push(Ok(datagram));
        }
        let end = end.finish();
        // Nothing was to be acknowledged.
        if end != Ok(Vec::new()) {
            answers.push(end);
        }
    }
}

fn serve_one(request: &Request<'_>, writer: &mut Writer, is_list: bool) -> Result<()> {
    if request.kind != BY_FAMILY {
        return Err(Errno::EINVAL);
    }
    let [family, protocol]: [u8; 2] = structure(request)?;
    match u32::from(family) {
        AF_INET => inet(request, writer, Family::V4, protocol.into(), is_list),
        AF_INET6 => inet(request, writer, Family::V6, protocol.into(), is_list),
        AF_UNIX => unix(request, writer, is_list),
        _ => Err(Errno::ENOENT),
    }
}

/// One socket of the internet.
struct Entry {
    local: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    state: u8,
    /// Number of the timer that runs, repetitions, and milliseconds that are left.
    timer: (u8, u8, u32),
    unread: u32,
    unsent: u32,
    user: u32,
    inode: u64,
    tcp: Option<(Arc<tcp::Socket>, State)>,
    buffers: (usize, usize),
    dropped: u32,
    v6_only: bool,
    /// What is shut: 1 for receiving, 2 for sending.
    shut: u8,
}

impl Entry {
    fn of_tcp(entry: tcp::Connection) -> (Family, Entry) {
        let family = entry.socket.as_ref().map(|socket| socket.family());
        let family = family.unwrap_or(Family::of(entry.local.ip()));
        let state = entry.state.unwrap_or(State::Listen);
        let mut shown = Entry {
            local: Some(entry.local),
            remote: entry.remote,
            state: state_number(state),
            timer: (0, 0, 0),
            unread: 0,
            unsent: 0,
            user: 0,
            inode: 0,
            tcp: None,
            buffers: (0, 0),
            dropped: 0,
            v6_only: false,
            shut: 0,
        };
        if state == State::TimeWait {
            shown.timer = (3, 0, (entry.left / 1_000_000) as u32);
        }
        if let Some(socket) = entry.socket {
            let summary = socket.summary();
            (shown.unread, shown.unsent) = match state {
                State::Listen => (summary.waiting as u32, summary.backlog as u32),
                _ => (summary.unread as u32, summary.unsent as u32),
            };
            if let Some(info) = socket.info() {
                let left = (info.timer_left / 1_000_000) as u32;
                shown.timer = (info.timer, info.repetitions.min(255) as u8, left);
            }
            shown.user = summary.options.name.user;
            shown.inode = summary.options.name.tag;
            let options = &summary.options;
            let sizes = [options.receive_buffer, options.send_buffer];
            shown.buffers = sizes.map(|size| size as usize).into();
            shown.v6_only = options.name.v6_only;
            shown.tcp = Some((socket, state));
        }
        (family, shown)
    }

    fn of_datagrams(socket: &net::datagram::Socket) -> Entry {
        let summary = socket.summary();
        let local = match socket.protocol() {
            Protocol::Raw(number) => {
                let ip = summary.local.map(|local| local.ip());
                let ip = ip.unwrap_or(socket.family().unspecified());
                Some(SocketAddr::new(ip, number.into()))
            }
            _ => summary.local,
        };
        Entry {
            local,
            remote: summary.remote,
            state: if summary.remote.is_some() {
                ESTABLISHED
            } else {
                CLOSED
            },
            timer: (0, 0, 0),
            unread: summary.unread as u32,
            unsent: 0,
            user: summary.options.name.user,
            inode: summary.options.name.tag,
            tcp: None,
            buffers: (summary.options.receive_buffer, 212_992),
            dropped: summary.dropped as u32,
            v6_only: summary.options.name.v6_only,
            shut: 0,
        }
    }

    /// Writes ports and addresses as a `struct inet_diag_sockid` without interface and cookie.
    fn name(&self, family: Family) -> [u8; 36] {
        let none = SocketAddr::new(family.unspecified(), 0);
        let ends = [self.local.unwrap_or(none), self.remote.unwrap_or(none)];
        let mut bytes = [0; 36];
        for (n, end) in ends.into_iter().enumerate() {
            bytes[n * 2..n * 2 + 2].copy_from_slice(&end.port().to_be_bytes());
            let to = &mut bytes[4 + n * 16..20 + n * 16];
            match (family, end.ip()) {
                (Family::V4, IpAddr::V4(ip)) => to[..4].copy_from_slice(&ip.octets()),
                (Family::V4, IpAddr::V6(_)) => {}
                (Family::V6, IpAddr::V4(ip)) => to.copy_from_slice(&ip.to_ipv6_mapped().octets()),
                (Family::V6, IpAddr::V6(ip)) => to.copy_from_slice(&ip.octets()),
            }
        }
        bytes
    }

    fn write(&self, writer: &mut Writer, family: Family, wanted: u32, flags: u32) {
        let mut head = [0; ANSWER];
        let number = if family == Family::V4 {
            AF_INET
        } else {
            AF_INET6
        };
        let (timer, repetitions, left) = self.timer;
        head[..4].copy_from_slice(&[number as u8, self.state, timer, repetitions]);
        head[4..40].copy_from_slice(&self.name(family));
        head[44..52].copy_from_slice(&self.inode.to_le_bytes());
        let words = [left, self.unread, self.unsent, self.user, self.inode as u32];
        for (n, word) in words.into_iter().enumerate() {
            head[52 + n * 4..56 + n * 4].copy_from_slice(&word.to_le_bytes());
        }
        let wants = |attribute: u32| wanted & 1 << (attribute - 1) != 0;
        let words = |all: &mut message::Attributes<'_>, kind, words: &[u32]| {
            let mut bytes = [0; 36];
            for (n, word) in words.iter().enumerate() {
                bytes[n * 4..n * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
            all.put(kind, &bytes[..words.len() * 4]);
        };
        writer.message(BY_FAMILY, flags, &head, |all| {
            all.put(SHUT, &[self.shut]);
            if family == Family::V6 && matches!(self.state, LISTENS | CLOSED) {
                all.put(V6_ONLY, &[self.v6_only.into()]);
            }
            if wants(MEMORY) {
                words(all, MEMORY, &[self.unread, self.unsent, 0, self.unsent]);
            }
            if wants(SOCKET_MEMORY) {
                let (receive, send) = self.buffers;
                let (unread, unsent) = (self.unread, self.unsent);
                let all_words = [
                    unread,
                    receive as u32,
                    unsent,
                    send as u32,
                    0,
                    unsent,
                    0,
                    0,
                    self.dropped,
                ];
                words(all, SOCKET_MEMORY, &all_words);
            }
            if let Some((socket, state)) = &self.tcp {
                if wants(CONGESTION) {
                    let algorithm = socket.summary().options.settings.algorithm;
                    let mut name = [0; 8];
                    let text = congestion_name(algorithm);
                    name[..text.len()].copy_from_slice(text);
                    all.put(CONGESTION, &name[..=text.len()]);
                }
                if wants(INFO) {
                    all.put(INFO, &info(socket, *state));
                }
            }
        });
    }
}

/// The ends that a request for one socket names.
fn asked_ends(head: &[u8; REQUEST], family: Family) -> [SocketAddr; 2] {
    core::array::from_fn(|n| {
        let port = u16::from_be_bytes([head[8 + n * 2], head[9 + n * 2]]);
        let bytes = &head[12 + n * 16..28 + n * 16];
        let ip = match family {
            Family::V4 => Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into(),
            Family::V6 => {
                let mut all = [0; 16];
                all.copy_from_slice(bytes);
                let ip = Ipv6Addr::from(all);
                ip.to_ipv4_mapped().map_or(ip.into(), IpAddr::V4)
            }
        };
        SocketAddr::new(ip, port)
    })
}

fn inet(
    request: &Request<'_>,
    writer: &mut Writer,
    family: Family,
    protocol: u32,
    is_list: bool,
) -> Result<()> {
    let head: [u8; REQUEST] = structure(request)?;
    let (wanted, states) = (u32::from(head[2]), number(&head, 4));
    let asked = asked_ends(&head, family);
    let mut found = 0;
    let mut show = |entry: Entry| {
        if is_list {
            if states >> entry.state & 1 != 0 {
                entry.write(writer, family, wanted, raw::NLM_F_MULTI);
            }
            return;
        }
        let none = SocketAddr::new(family.unspecified(), 0);
        let ends = [entry.local.unwrap_or(none), entry.remote.unwrap_or(none)];
        if ends == asked && found == 0 {
            found += 1;
            entry.write(writer, family, wanted, 0);
        }
    };
    let kind = match protocol {
        TCP => {
            for entry in stack().tcp_sockets()? {
                let (own, entry) = Entry::of_tcp(entry);
                if own == family {
                    show(entry);
                }
            }
            return found_one(is_list, found);
        }
        UDP => Protocol::Udp,
        UDP_LITE => Protocol::UdpLite,
        RAW => Protocol::Raw(0),
        _ => return Err(Errno::ENOENT),
    };
    for socket in stack().datagram_sockets(kind)? {
        if socket.family() == family {
            show(Entry::of_datagrams(&socket));
        }
    }
    found_one(is_list, found)
}

fn found_one(is_list: bool, found: u32) -> Result<()> {
    match is_list || found > 0 {
        true => Ok(()),
        false => Err(Errno::ENOENT),
    }
}

fn unix(request: &Request<'_>, writer: &mut Writer, is_list: bool) -> Result<()> {
    let head: [u8; UNIX_REQUEST] = structure(request)?;
    let (states, inode, show) = (number(&head, 4), number(&head, 8), number(&head, 12));
    let mut found = 0;
    for entry in listing::entries() {
        let fits = match is_list {
            true => states >> entry.state & 1 != 0,
            false => entry.inode as u32 == inode,
        };
        if !fits {
            continue;
        }
        found += 1;
        let mut head = [0; UNIX_ANSWER];
        head[..3].copy_from_slice(&[AF_UNIX as u8, entry.kind as u8, entry.state]);
        head[4..8].copy_from_slice(&(entry.inode as u32).to_le_bytes());
        head[8..16].copy_from_slice(&entry.inode.to_le_bytes());
        let flags = if is_list { raw::NLM_F_MULTI } else { 0 };
        writer.message(BY_FAMILY, flags, &head, |all| {
            if let (true, Some(name)) = (show & SHOW_NAME != 0, &entry.name) {
                all.put(NAME, name);
            }
            if let (true, Some(peer)) = (show & SHOW_PEER != 0, entry.peer) {
                all.put_number(PEER, peer as u32);
            }
            if show & SHOW_QUEUE != 0 {
                let mut bytes = [0; 8];
                bytes[..4].copy_from_slice(&entry.waiting.to_le_bytes());
                bytes[4..].copy_from_slice(&entry.room.to_le_bytes());
                all.put(QUEUE, &bytes);
            }
            if show & SHOW_OWNER != 0 {
                all.put_number(OWNER, entry.owner);
            }
            all.put(UNIX_SHUT, &[entry.shut]);
        });
    }
    found_one(is_list, found)
}
