//! The segments between two ends of connections: `smoltcp`'s, hidden here.
//!
//! A [`Block`] is one end. Each has a socket set of its own, and a packet is handed to its block
//! directly, so its cost does not grow with the number of connections. Packets that a block sends
//! join the wire, a queue that every caller empties before it releases the table's lock.
//!
//! Data does not pass here (see the crate's front page), so the blocks' windows need only a few
//! bytes.

use alloc::{collections::VecDeque, vec, vec::Vec};
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::counters::Counter;
use nucleus::time;
use smoltcp::{
    iface::{Config, Interface, SocketHandle, SocketSet, SocketStorage},
    socket::tcp::{Socket, SocketBuffer},
    time::{Duration, Instant},
    wire::{
        HardwareAddress, IpAddress, IpCidr, IpProtocol, IpVersion, Ipv4Packet, Ipv6Packet,
        TcpPacket,
    },
};

use crate::link::{Loopback, Packet};

pub use smoltcp::socket::tcp::State;

/// Bytes of a block's buffers.
const WINDOW: usize = 16;
/// Time until `connect` fails without an answer: Linux's six repetitions of the first segment.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(127);

/// The two ends of a connection, as the one called `local` sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pair {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Pair {
    /// As the other end sees them.
    pub fn mirrored(self) -> Pair {
        Pair {
            local: self.remote,
            remote: self.local,
        }
    }
}

/// A packet's addresses, and whether it opens a connection.
pub struct Heading {
    /// As its receiver sees them.
    pub pair: Pair,
    /// It is a SYN without an ACK.
    pub opens: bool,
}

/// One end of a connection.
pub struct Block {
    set: SocketSet<'static>,
    handle: SocketHandle,
}

/// The interface, and the packets on their way.
pub struct Wire {
    interface: Interface,
    packets: VecDeque<Packet>,
}

fn now() -> Instant {
    Instant::from_micros(time::since_boot().as_micros() as i64)
}

impl Wire {
    /// An interface with 127.0.0.0/8 and ::1.
    pub fn new(seed: u64) -> Wire {
        let mut packets = VecDeque::new();
        let mut device = Loopback {
            arrived: None,
            sent: &mut packets,
        };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut device, now());
        let v4 = Ipv4Addr::LOCALHOST;
        interface.update_ip_addrs(|addresses| {
            // There is room for two addresses.
            let _ = addresses.push(IpCidr::new(IpAddress::Ipv4(v4), 8));
            let v6 = IpAddress::v6(0, 0, 0, 0, 0, 0, 0, 1);
            let _ = addresses.push(IpCidr::new(v6, 128));
        });
        // Every address of 127.0.0.0/8 is ours, not only the first.
        interface.set_any_ip(true);
        let _ = interface.routes_mut().add_default_ipv4_route(v4);
        Wire { interface, packets }
    }

    /// Takes the next packet on its way.
    pub fn next(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        Counter::tcp_segments.add(1);
        Some(packet)
    }

    /// Delivers a packet to its block, and lets the block answer.
    pub fn arrive(&mut self, block: &mut Block, packet: Packet) {
        let mut device = Loopback {
            arrived: Some(packet),
            sent: &mut self.packets,
        };
        let now = now();
        self.interface
            .poll_ingress_single(now, &mut device, &mut block.set);
        self.interface.poll_egress(now, &mut device, &mut block.set);
    }

    /// Answers a packet that has no block: with a reset, unless it is one.
    pub fn refuse(&mut self, packet: Packet) {
        let sent = self.packets.len();
        let mut none = SocketSet::new(Vec::new());
        let mut device = Loopback {
            arrived: Some(packet),
            sent: &mut self.packets,
        };
        self.interface
            .poll_ingress_single(now(), &mut device, &mut none);
        if self.packets.len() > sent {
            Counter::tcp_resets_sent.add(1);
        }
    }

    /// Sends what a block has to send, because its state or a timer demands it.
    pub fn flush(&mut self, block: &mut Block) {
        let mut device = Loopback {
            arrived: None,
            sent: &mut self.packets,
        };
        self.interface
            .poll_egress(now(), &mut device, &mut block.set);
    }

    /// Creates an end that asks for a connection, with its first segment sent. `None` for addresses
    /// that can't have one.
    pub fn open(&mut self, pair: Pair) -> Option<Block> {
        let mut block = Block::new();
        let remote = (IpAddress::from(pair.remote.ip()), pair.remote.port());
        let local = (IpAddress::from(pair.local.ip()), pair.local.port());
        block.socket().set_timeout(Some(CONNECT_TIMEOUT));
        let Block { set, handle } = &mut block;
        let socket = set.get_mut::<Socket>(*handle);
        socket
            .connect(self.interface.context(), remote, local)
            .ok()?;
        self.flush(&mut block);
        Some(block)
    }

    /// Creates an end that awaits the first segment for `local`.
    pub fn await_open(&mut self, local: SocketAddr) -> Option<Block> {
        let mut block = Block::new();
        let endpoint = (IpAddress::from(local.ip()), local.port());
        block.socket().listen(endpoint).ok()?;
        Some(block)
    }

    /// Ends the stream towards the other end, after all that was sent.
    pub fn finish(&mut self, block: &mut Block) {
        block.socket().close();
        self.flush(block);
    }

    /// Resets the connection. The block can't be used again.
    pub fn reset(&mut self, block: &mut Block) {
        block.socket().abort();
        Counter::tcp_resets_sent.add(1);
        self.flush(block);
    }

    /// Returns when [`flush`](Wire::flush) is due although no packet arrives, in nanoseconds since
    /// boot.
    pub fn due(&mut self, block: &Block) -> Option<u64> {
        let at = self.interface.poll_at(now(), &block.set)?;
        Some((at.total_micros().max(0) as u64) * 1000)
    }
}

impl Block {
    #[allow(clippy::disallowed_methods, reason = "16 bytes")]
    fn new() -> Block {
        let buffer = || SocketBuffer::new(vec![0; WINDOW]);
        let mut socket = Socket::new(buffer(), buffer());
        // Delays save nothing on a wire without a length.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        let mut set = SocketSet::new(vec![SocketStorage::EMPTY]);
        let handle = set.add(socket);
        Block { set, handle }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.set.get_mut(self.handle)
    }

    /// Returns TCP's state.
    pub fn state(&self) -> State {
        self.set.get::<Socket>(self.handle).state()
    }

    /// Ends the timeout of the handshake: an established connection may be silent.
    pub fn established(&mut self) {
        self.socket().set_timeout(None);
    }
}

/// Reads a packet's addresses. `None` for a packet that is not TCP, which is never sent here.
pub fn heading(packet: &[u8]) -> Option<Heading> {
    let (from, to, protocol, payload): (IpAddr, IpAddr, _, _) =
        match IpVersion::of_packet(packet.get(..1)?).ok()? {
            IpVersion::Ipv4 => {
                let packet = Ipv4Packet::new_checked(packet).ok()?;
                let (from, to) = (packet.src_addr(), packet.dst_addr());
                (
                    from.into(),
                    to.into(),
                    packet.next_header(),
                    packet.payload(),
                )
            }
            IpVersion::Ipv6 => {
                let packet = Ipv6Packet::new_checked(packet).ok()?;
                let (from, to) = (packet.src_addr(), packet.dst_addr());
                (
                    from.into(),
                    to.into(),
                    packet.next_header(),
                    packet.payload(),
                )
            }
        };
    if protocol != IpProtocol::Tcp {
        return None;
    }
    let segment = TcpPacket::new_checked(payload).ok()?;
    Some(Heading {
        pair: Pair {
            local: SocketAddr::new(to, segment.dst_port()),
            remote: SocketAddr::new(from, segment.src_port()),
        },
        opens: segment.syn() && !segment.ack(),
    })
}
