//! UDP/IP over a link: what goes down is cut into packets, what comes up is put together.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use libfbuf::{Aggregate, Contents, Domain, Mode, Path};

use crate::error;
use crate::fragments::{self, MOST, MOST_LARGE, Reassembly};
use crate::headers::LastHeader;
use crate::wire::{self, Ipv4, MOST_IPV4, UDP, Udp, protocol};

/// How a stack is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The own address.
    pub address: Ipv4Addr,
    /// Most bytes of a packet, with its IP header.
    pub pdu: usize,
    /// Whether messages of more than 64 KiB go and come: between netservers only.
    pub is_large: bool,
}

/// A datagram that came.
#[derive(Debug)]
pub struct Datagram {
    /// The sender.
    pub from: SocketAddrV4,
    /// The destination.
    pub to: SocketAddrV4,
    /// The bytes.
    pub body: Aggregate,
    header: Udp,
}

impl Datagram {
    /// Returns whether its checksum is right, or there is none.
    pub fn is_intact(&self) -> bool {
        let Udp { len, checksum, .. } = self.header;
        checksum == 0 || wire::udp_checksum(self.from, self.to, len, &self.body) == checksum
    }
}

/// Counts of packets.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that came.
    pub received: u64,
    /// Packets and datagrams that came and were wrong.
    pub bad: u64,
}

/// The protocols above a link. Packets go down by [`take`](Stack::take) and up by
/// [`receive`](Stack::receive).
pub struct Stack {
    config: Config,
    /// Headers, and nodes of what goes down.
    path: Path,
    header: LastHeader<UDP>,
    reassembly: Reassembly,
    id: u16,
    below: VecDeque<(Ipv4Addr, Aggregate)>,
    counts: Counts,
}

impl Stack {
    /// Makes the protocols.
    ///
    /// # Errors
    /// `EINVAL` for a PDU of less than 276 or more than 65535 bytes; those of making a path.
    pub fn new(domain: &Domain, config: Config) -> io::Result<Stack> {
        let least = wire::IPV4 + wire::LARGE_UNIT as usize;
        if !(least..=65_535).contains(&config.pdu) {
            return Err(error(libc::EINVAL));
        }
        Ok(Stack {
            config,
            path: Path::new(domain, Mode::CACHED_VOLATILE, 0)?,
            header: LastHeader::default(),
            reassembly: Reassembly::default(),
            id: 0,
            below: VecDeque::new(),
            counts: Counts::default(),
        })
    }

    /// Returns the path of headers, in which received messages become aggregates.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns how it is set up.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the counts of packets.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the datagrams that wait for fragments.
    pub fn reassembly(&mut self) -> &mut Reassembly {
        &mut self.reassembly
    }

    /// Sends a datagram: its packets can be [taken](Stack::take).
    ///
    /// # Errors
    /// `EMSGSIZE` for a body that is too long; `ENOSPC` or `ENOMEM` without memory for headers.
    pub fn send(
        &mut self,
        from_port: u16,
        to: SocketAddrV4,
        body: &Aggregate,
        has_checksum: bool,
    ) -> io::Result<()> {
        let len = UDP as u64 + body.len();
        let is_large = len > MOST;
        if len
            > if self.config.is_large {
                MOST_LARGE
            } else {
                MOST
            }
        {
            return Err(error(libc::EMSGSIZE));
        }
        let from = SocketAddrV4::new(self.config.address, from_port);
        let mut header = Udp {
            from: from_port,
            to: to.port(),
            len: if is_large { 0 } else { len as u16 },
            checksum: 0,
        };
        if has_checksum {
            header.checksum = wire::udp_checksum(from, to, header.len, body);
        }
        let header = self.header.of(&self.path, header.emit(), true)?;
        let datagram = header.join(body)?;
        self.send_ip(*to.ip(), protocol::UDP, is_large, &datagram)
    }

    fn send_ip(
        &mut self,
        to: Ipv4Addr,
        protocol: u8,
        is_large: bool,
        datagram: &Aggregate,
    ) -> io::Result<()> {
        self.id = self.id.wrapping_add(1);
        let header = Ipv4 {
            from: self.config.address,
            to,
            protocol,
            id: self.id,
            offset: 0,
            has_more: false,
            is_large,
            payload: 0,
        };
        let (below, counts) = (&mut self.below, &mut self.counts);
        fragments::cut(
            &self.path,
            header,
            datagram,
            self.config.pdu,
            |_, packet| {
                counts.sent += 1;
                below.push_back((to, packet));
                Ok(())
            },
        )
    }

    /// Takes the next packet to send, and its destination.
    pub fn take(&mut self) -> Option<(Ipv4Addr, Aggregate)> {
        self.below.pop_front()
    }

    /// Takes a packet that came; returns the datagram that it completes.
    ///
    /// # Errors
    /// Those of making nodes: the packet is lost.
    pub fn receive(&mut self, packet: &Aggregate, now: Instant) -> io::Result<Option<Datagram>> {
        self.counts.received += 1;
        let mut bytes = [0; MOST_IPV4];
        let len = packet.copy_at(0, &mut bytes);
        let read = Ipv4::read(&bytes[..len], packet.len() as usize);
        let own = self.config.address;
        let mine = read.filter(|(it, _)| {
            (it.to == own || it.to.is_broadcast()) && (!it.is_large || self.config.is_large)
        });
        let Some((header, header_len)) = mine else {
            self.counts.bad += 1;
            return Ok(None);
        };
        let start = header_len as u64;
        let payload = packet.slice(start..start + header.payload as u64)?;
        let Some(datagram) = self.reassembly.add(&self.path, &header, &payload, now)? else {
            return Ok(None);
        };
        match header.protocol {
            protocol::UDP => {
                let datagram = self.udp(&header, &datagram)?;
                self.counts.bad += u64::from(datagram.is_none());
                Ok(datagram)
            }
            protocol::ICMP => self.icmp(&header, &datagram).map(|()| None),
            _ => Ok(None),
        }
    }

    fn udp(&self, ip: &Ipv4, datagram: &Aggregate) -> io::Result<Option<Datagram>> {
        let mut bytes = [0; UDP];
        if datagram.copy_at(0, &mut bytes) < UDP {
            return Ok(None);
        }
        let header = Udp::read(&bytes);
        let len = match header.len {
            0 if ip.is_large => datagram.len(),
            len => u64::from(len),
        };
        if len < UDP as u64 || len > datagram.len() {
            return Ok(None);
        }
        Ok(Some(Datagram {
            from: SocketAddrV4::new(ip.from, header.from),
            to: SocketAddrV4::new(ip.to, header.to),
            body: datagram.slice(UDP as u64..len)?,
            header,
        }))
    }

    /// Answers an echo request.
    fn icmp(&mut self, ip: &Ipv4, message: &Aggregate) -> io::Result<()> {
        const REQUEST: u8 = 8;
        let mut start = [0; 8];
        let is_request = message.copy_at(0, &mut start) == 8 && start[..2] == [REQUEST, 0];
        if !is_request || ip.to != self.config.address || ip.is_large {
            return Ok(());
        }
        let mut sum = wire::Checksum::default();
        sum.add_contents(message);
        if sum.finish() != 0 {
            self.counts.bad += 1;
            return Ok(());
        }
        // The type is all that changes (RFC 1624).
        let [_, _, high, low, ..] = start;
        let mut sum = wire::Checksum::default();
        sum.add(&(!u16::from_be_bytes([high, low])).to_be_bytes());
        sum.add(&[!REQUEST, 0xff, 0, 0]);
        let sum = sum.finish().to_be_bytes();
        let rest = message.clip_front(4)?;
        let reply = self.path.copy(&[0, 0, sum[0], sum[1]])?.join(&rest)?;
        self.send_ip(ip.from, protocol::ICMP, false, &reply)
    }
}
