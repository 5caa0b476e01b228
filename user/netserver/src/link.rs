//! What is below IP.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use libfbuf::{Aggregate, Contents, Domain, Fbuf, Member, Path, Received};

use crate::error;
use crate::interface::{Interface, PARTS};
use crate::wire::{self, ARP, Arp, BROADCAST, ETHERNET, FrameType, MOST_IPV4, Mac};

/// What is below IP.
pub enum Link {
    /// Packets turn around (`fbufs.txt` 4, Figure 4).
    Loopback,
    /// A card.
    Card(Box<Card>),
}

/// Most neighbours that are known or asked for.
const MOST_NEIGHBOURS: usize = 256;

/// Most packets that wait for one neighbour: a message of 1 MiB.
const MOST_WAITING: usize = 1024;

/// How long an answer of a neighbour holds, and how long it is waited for.
const KNOWN: Duration = Duration::from_secs(60);
const ASKED: Duration = Duration::from_secs(1);

/// How often a neighbour is asked.
const TRIES: u32 = 3;

/// Another station.
enum Neighbour {
    Known {
        mac: Mac,
        since: Instant,
    },
    Asked {
        tries: u32,
        since: Instant,
        waiting: Vec<Aggregate>,
    },
}

/// A card that this process has taken over.
pub struct Card {
    interface: Interface,
    address: Ipv4Addr,
    bits: u8,
    gateway: Option<Ipv4Addr>,
    neighbours: HashMap<Ipv4Addr, Neighbour>,
}

/// The start of a frame that waits: enough to tell whose fbuf it belongs into.
pub struct Start {
    bytes: [u8; ETHERNET + MOST_IPV4 + wire::UDP],
    have: usize,
    /// Bytes of the whole frame.
    pub len: usize,
}

impl Start {
    /// Returns that of a frame that came in fbufs.
    pub fn of(frame: &Received) -> Start {
        let mut start = Start {
            bytes: [0; ETHERNET + MOST_IPV4 + wire::UDP],
            have: 0,
            len: frame.len() as usize,
        };
        start.have = frame.copy_at(0, &mut start.bytes);
        start
    }

    /// Returns the bytes behind the Ethernet header; `None` unless it is an IP packet.
    pub fn packet(&self) -> Option<&[u8]> {
        let bytes = &self.bytes[..self.have];
        match wire::read_frame(bytes)? {
            (_, FrameType::Ip) => bytes.get(ETHERNET..),
            _ => None,
        }
    }
}

impl Card {
    /// Takes over an interface: the system's own addresses on it go. The own address has a prefix
    /// of so many bits; what is beyond goes to the gateway.
    ///
    /// # Errors
    /// `ENODEV`, `EPERM`, and those of sockets.
    pub fn open(
        name: &str,
        address: Ipv4Addr,
        bits: u8,
        gateway: Option<Ipv4Addr>,
    ) -> io::Result<Card> {
        Ok(Card {
            interface: Interface::open(name)?,
            address,
            bits: bits.min(32),
            gateway,
            neighbours: HashMap::new(),
        })
    }

    /// Returns the most bytes of an IP packet.
    pub fn mtu(&self) -> usize {
        self.interface.mtu()
    }

    /// Sends an IP packet, if necessary once the next station has answered where it is.
    ///
    /// # Errors
    /// `EHOSTUNREACH` for an address without a way, or a neighbour that does not answer;
    /// `ENOBUFS` while too many packets wait; those of the socket.
    pub fn send(&mut self, to: Ipv4Addr, packet: Aggregate, path: &Path) -> io::Result<()> {
        if to.is_broadcast() {
            return self.transmit(BROADCAST, FrameType::Ip, &packet, path);
        }
        let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
        let is_near = (u32::from(to) ^ u32::from(self.address)) & mask == 0;
        let next = match is_near {
            true => to,
            false => self.gateway.ok_or_else(|| error(libc::EHOSTUNREACH))?,
        };
        let now = Instant::now();
        match self.neighbours.get_mut(&next) {
            Some(Neighbour::Known { mac, since }) if now - *since < KNOWN => {
                let mac = *mac;
                return self.transmit(mac, FrameType::Ip, &packet, path);
            }
            Some(Neighbour::Asked { waiting, .. }) => {
                if waiting.len() >= MOST_WAITING {
                    return Err(error(libc::ENOBUFS));
                }
                waiting.push(packet);
                return Ok(());
            }
            _ => {}
        }
        self.make_room();
        let asked = Neighbour::Asked {
            tries: 1,
            since: now,
            waiting: vec![packet],
        };
        self.neighbours.insert(next, asked);
        self.ask(next)
    }

    /// Returns whether a neighbour is asked for.
    pub fn has_asked(&self) -> bool {
        let mut all = self.neighbours.values();
        all.any(|it| matches!(it, Neighbour::Asked { .. }))
    }

    /// Asks again for neighbours that have not answered, and gives up those that do not.
    pub fn expire(&mut self) {
        let now = Instant::now();
        let mut again = Vec::new();
        self.neighbours.retain(|address, it| match it {
            Neighbour::Asked { tries, since, .. } if now - *since >= ASKED => {
                *tries += 1;
                *since = now;
                again.push(*address);
                *tries <= TRIES
            }
            _ => true,
        });
        for address in again {
            // A link that is down answers nothing.
            let _ = self.ask(address);
        }
    }

    /// Has frames put into fbufs that this process reads, if the system has such: then they are
    /// taken by [`take_frames`](Card::take_frames), and those that are not by the other ways.
    pub fn use_fbufs(&mut self, domain: &Domain) {
        self.interface.use_fbufs(domain);
    }

    /// Returns the membership in the path of these fbufs, all of whose members read all frames.
    pub fn member(&self) -> Option<&Member> {
        self.interface.member()
    }

    /// Takes frames that wait in fbufs. Returns whether there may be more, and whether there are
    /// frames that are not in fbufs.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn take_frames(&mut self, frames: &mut Vec<Received>) -> io::Result<(bool, bool)> {
        self.interface.take(|frame| frames.push(frame))
    }

    /// Looks at a frame that is not IP, as [`take_other`](Card::take_other).
    ///
    /// # Errors
    /// Those of sending what waited for the answer.
    pub fn look_at_other(&mut self, frame: &Received, path: &Path) -> io::Result<()> {
        let mut bytes = [0; ETHERNET + ARP];
        let len = frame.copy_at(0, &mut bytes);
        self.look_at(&bytes[..len], path)
    }

    /// Returns the start of the next frame, which stays.
    ///
    /// # Errors
    /// Those of the socket; `EAGAIN` without a frame.
    pub fn peek(&self) -> io::Result<Start> {
        let mut start = Start {
            bytes: [0; ETHERNET + MOST_IPV4 + wire::UDP],
            have: 0,
            len: 0,
        };
        start.len = self.interface.peek(&mut start.bytes)?;
        start.have = start.len.min(start.bytes.len());
        Ok(start)
    }

    /// Takes the next frame into an fbuf; returns its bytes.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn take(&self, fbuf: &mut Fbuf) -> io::Result<usize> {
        self.interface.receive(fbuf)
    }

    /// Takes the next frame and drops it.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn drop_frame(&self) -> io::Result<()> {
        self.interface.receive(&mut [0; ETHERNET]).map(drop)
    }

    /// Takes the next frame, which is not IP: an ARP packet is looked at.
    ///
    /// # Errors
    /// Those of the socket, and of sending what waited for the answer.
    pub fn take_other(&mut self, path: &Path) -> io::Result<()> {
        let mut bytes = [0; ETHERNET + ARP];
        let len = self.interface.receive(&mut bytes)?.min(bytes.len());
        self.look_at(&bytes[..len], path)
    }

    fn look_at(&mut self, bytes: &[u8], path: &Path) -> io::Result<()> {
        let is_arp = matches!(wire::read_frame(bytes), Some((_, FrameType::Arp)));
        match Arp::read(bytes.get(ETHERNET..).unwrap_or_default()) {
            Some(arp) if is_arp => self.take_arp(&arp, path),
            _ => Ok(()),
        }
    }

    fn take_arp(&mut self, arp: &Arp, path: &Path) -> io::Result<()> {
        if arp.target.1 != self.address {
            return Ok(());
        }
        let (mac, address) = arp.sender;
        // What was not asked for is not believed, nor kept.
        if let Some(it) = self.neighbours.get_mut(&address) {
            let since = Instant::now();
            let before = std::mem::replace(it, Neighbour::Known { mac, since });
            if let Neighbour::Asked { waiting, .. } = before {
                for packet in waiting {
                    self.transmit(mac, FrameType::Ip, &packet, path)?;
                }
            }
        }
        if arp.is_reply {
            return Ok(());
        }
        let reply = Arp {
            is_reply: true,
            sender: (self.interface.mac(), self.address),
            target: arp.sender,
        };
        let frame = wire::frame(mac, self.interface.mac(), FrameType::Arp);
        self.interface.send(&[&frame, &reply.emit()])
    }

    fn ask(&self, address: Ipv4Addr) -> io::Result<()> {
        let request = Arp {
            is_reply: false,
            sender: (self.interface.mac(), self.address),
            target: ([0; 6], address),
        };
        let frame = wire::frame(BROADCAST, self.interface.mac(), FrameType::Arp);
        self.interface.send(&[&frame, &request.emit()])
    }

    /// Sends a frame whose bytes lie in fbufs, from where they are.
    fn transmit(
        &self,
        to: Mac,
        kind: FrameType,
        packet: &Aggregate,
        path: &Path,
    ) -> io::Result<()> {
        let header = path.copy(&wire::frame(to, self.interface.mac(), kind))?;
        if packet.fragments().nth(PARTS - 1).is_some() {
            // So many small parts are cheaper to copy than to list.
            let packet = path.copy(&packet.to_vec(usize::from(u16::MAX))?)?;
            return self
                .interface
                .send_fragments(header.fragments().chain(packet.fragments()));
        }
        let parts = header.fragments().chain(packet.fragments());
        self.interface.send_fragments(parts)
    }

    /// Forgets a neighbour if there are too many.
    fn make_room(&mut self) {
        if self.neighbours.len() >= MOST_NEIGHBOURS {
            let since = |it: &Neighbour| match it {
                Neighbour::Known { since, .. } | Neighbour::Asked { since, .. } => *since,
            };
            let oldest = self.neighbours.iter().min_by_key(|(_, it)| since(it));
            if let Some(address) = oldest.map(|(address, _)| *address) {
                self.neighbours.remove(&address);
            }
        }
    }
}

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.interface.as_fd()
    }
}
