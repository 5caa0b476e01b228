//! A packet on its way from one raw socket to others.

use core::net::{IpAddr, Ipv4Addr};

use abi::{Errno, Result};
use fbuf::{Aggregate, BytesSource, Source};
use nucleus::random;

use super::ICMP_V6;
use crate::packet::Sum;

/// Bytes of an IPv4 header without options.
pub const HEADER_V4: usize = 20;
/// The longest packet that a header can describe, in bytes.
pub const MAX: usize = 65_535;
/// "Don't fragment", in the header's flags.
const WHOLE: u16 = 0x4000;
/// Bytes at the beginning of the payload that are stored apart: protocols have their headers there.
const START: usize = 64;

/// A packet without its IP header.
#[derive(Clone, Debug)]
pub struct Packet {
    pub from: IpAddr,
    pub to: IpAddr,
    pub protocol: u8,
    /// Type of service and time to live, or traffic class and hop limit.
    pub service: u8,
    pub hops: u8,
    start: [u8; START],
    start_len: usize,
    rest: Aggregate,
}

impl Packet {
    /// Creates a packet with the payload from `data`.
    ///
    /// # Errors
    /// `EMSGSIZE`, `ENOMEM`, that of the source.
    pub fn new(from: IpAddr, to: IpAddr, protocol: u8, data: &mut dyn Source) -> Result<Packet> {
        let len = data.left();
        Packet::check_len(to, len)?;
        let mut packet = Packet {
            from,
            to,
            protocol,
            service: 0,
            hops: 0,
            start: [0; START],
            start_len: len.min(START),
            rest: Aggregate::new(),
        };
        data.take_all(&mut packet.start[..packet.start_len])?;
        let rest = len - packet.start_len;
        if packet.rest.fill_from(data, rest)? < rest {
            return Err(Errno::EFAULT);
        }
        Ok(packet)
    }

    /// Tells whether a header can describe `len` bytes of payload.
    ///
    /// # Errors
    /// `EMSGSIZE` if it cannot.
    pub fn check_len(to: IpAddr, len: usize) -> Result<()> {
        let header = if to.is_ipv4() { HEADER_V4 } else { 0 };
        match len > MAX - header {
            true => Err(Errno::EMSGSIZE),
            false => Ok(()),
        }
    }

    /// Returns the first bytes of the payload.
    pub fn start(&self) -> &[u8] {
        &self.start[..self.start_len]
    }

    /// Returns the first bytes of the payload, to be changed.
    pub fn start_mut(&mut self) -> &mut [u8] {
        &mut self.start[..self.start_len]
    }

    /// Returns the length of the payload in bytes.
    pub fn len(&self) -> usize {
        self.start_len + self.rest.len()
    }

    /// Returns the payload's checksum, which includes the addresses where the protocol wants it so;
    /// 0 for one that is right.
    pub fn sum(&self) -> u16 {
        let mut sum = Sum::default();
        if self.protocol == ICMP_V6
            && let (IpAddr::V6(from), IpAddr::V6(to)) = (self.from, self.to)
        {
            sum.add(&from.octets());
            sum.add(&to.octets());
            sum.add(&(self.len() as u32).to_be_bytes());
            sum.add(&[0, 0, 0, self.protocol]);
        }
        sum.add(self.start());
        sum.add_slices(&self.rest);
        sum.finish()
    }

    /// Writes the checksum at byte `at` of the payload, if that is among the first ones.
    pub fn set_sum(&mut self, at: usize) {
        if at + 2 <= self.start_len {
            self.start[at..at + 2].fill(0);
            let sum = self.sum();
            self.start[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Returns the bytes that a socket receives: over IPv4 with the header, over IPv6 without.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn bytes(&self) -> Result<Aggregate> {
        let mut bytes = Aggregate::new();
        if let (IpAddr::V4(from), IpAddr::V4(to)) = (self.from, self.to) {
            let header = self.header(from, to);
            bytes.fill_from(&mut BytesSource::new(&header), HEADER_V4)?;
        }
        bytes.fill_from(&mut BytesSource::new(self.start()), self.start_len)?;
        let mut rest = self.rest.clone();
        bytes.join(&mut rest)?;
        Ok(bytes)
    }

    /// Returns the payload.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn bytes_without_header(&self) -> Result<Aggregate> {
        let mut bytes = Aggregate::new();
        bytes.fill_from(&mut BytesSource::new(self.start()), self.start_len)?;
        let mut rest = self.rest.clone();
        bytes.join(&mut rest)?;
        Ok(bytes)
    }

    fn header(&self, from: Ipv4Addr, to: Ipv4Addr) -> [u8; HEADER_V4] {
        let mut header = [0; HEADER_V4];
        header[0] = 0x45;
        header[1] = self.service;
        let len = (HEADER_V4 + self.len()) as u16;
        header[2..4].copy_from_slice(&len.to_be_bytes());
        header[4..6].copy_from_slice(&(random::u64() as u16).to_be_bytes());
        header[6..8].copy_from_slice(&WHOLE.to_be_bytes());
        header[8] = self.hops;
        header[9] = self.protocol;
        header[12..16].copy_from_slice(&from.octets());
        header[16..].copy_from_slice(&to.octets());
        let mut sum = Sum::default();
        sum.add(&header);
        header[10..12].copy_from_slice(&sum.finish().to_be_bytes());
        header
    }
}
