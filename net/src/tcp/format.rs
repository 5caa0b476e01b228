//! The format of a TCP header.

use core::net::SocketAddr;

use smoltcp::wire::{TcpOption, TcpPacket, TcpSeqNumber};

use super::{
    Pair,
    segment::{Flags, Options, Segment, Seq},
};
use crate::{ip::Received, packet::Head};

/// Bytes of a header without options, and with all.
pub const HEADER: usize = 20;
const LONGEST: usize = 60;
/// The place of the checksum.
pub const CHECKSUM: usize = 16;
/// Kinds of options.
const NOP: u8 = 1;
const SACKS: u8 = 5;
const STAMPS: u8 = 8;

/// Reads the header of a packet and takes its data; `None` if it is wrong. The checksum is verified
/// elsewhere.
pub fn read(packet: &mut Received) -> Option<(Pair, Segment)> {
    let words = packet.first(HEADER).get(12)? >> 4;
    packet.first(usize::from(words) * 4);
    let bytes = packet.headers.as_slice();
    let header = TcpPacket::new_checked(bytes).ok()?;
    let len = usize::from(header.header_len());
    let (from, to) = (header.src_port(), header.dst_port());
    if from == 0 || to == 0 {
        return None;
    }
    let pair = Pair {
        local: SocketAddr::new(packet.to, to),
        remote: SocketAddr::new(packet.from, from),
    };
    let options = read_options(&bytes[HEADER..len])?;
    let mut data = core::mem::take(&mut packet.data);
    data.clip_front(len);
    let segment = Segment {
        seq: Seq(header.seq_number().0 as u32),
        ack: Seq(header.ack_number().0 as u32),
        // FIN, SYN, RST, PSH, ACK, URG; the bits of congestion notification were not asked for.
        flags: Flags(bytes[13] & 0x3f),
        window: header.window_len(),
        urgent: header.urgent_at(),
        options,
        data,
        cut: 0,
    };
    Some((pair, segment))
}

fn read_options(mut bytes: &[u8]) -> Option<Options> {
    let mut options = Options::default();
    // Nearly all segments have timestamps and nothing else.
    if let [NOP, NOP, STAMPS, 10, a, b, c, d, e, f, g, h] = *bytes {
        let stamps = [[a, b, c, d], [e, f, g, h]].map(u32::from_be_bytes);
        options.stamps = Some((stamps[0], stamps[1]));
        return Some(options);
    }
    while !bytes.is_empty() {
        let (rest, option) = TcpOption::parse(bytes).ok()?;
        match option {
            TcpOption::EndOfList => break,
            TcpOption::MaxSegmentSize(largest) => options.largest = Some(largest),
            TcpOption::WindowScale(scale) => options.scale = Some(scale),
            TcpOption::SackPermitted => options.may_sack = true,
            TcpOption::SackRange(ranges) => {
                for (left, right) in ranges.into_iter().flatten() {
                    options.sacks.push(Seq(left), Seq(right));
                }
            }
            TcpOption::TimeStamp { tsval, tsecr } => options.stamps = Some((tsval, tsecr)),
            _ => {}
        }
        bytes = rest;
    }
    Some(options)
}

/// Writes the header of a segment, without the checksum.
pub fn write(pair: &Pair, segment: &Segment, head: &mut Head) {
    let mut bytes = [NOP; LONGEST - HEADER];
    let len = write_options(&segment.options, &mut bytes);
    let header = head.push(HEADER + len);
    header[HEADER..].copy_from_slice(&bytes[..len]);
    let mut header = TcpPacket::new_unchecked(header);
    header.set_src_port(pair.local.port());
    header.set_dst_port(pair.remote.port());
    header.set_seq_number(TcpSeqNumber(segment.seq.0 as i32));
    let has_ack = segment.is(Flags::ACK);
    header.set_ack_number(TcpSeqNumber(if has_ack { segment.ack.0 as i32 } else { 0 }));
    header.clear_flags();
    header.set_fin(segment.is(Flags::FIN));
    header.set_syn(segment.is(Flags::SYN));
    header.set_rst(segment.is(Flags::RST));
    header.set_psh(segment.is(Flags::PSH));
    header.set_ack(has_ack);
    header.set_urg(segment.is(Flags::URG));
    header.set_header_len((HEADER + len) as u8);
    header.set_window_len(segment.window);
    header.set_urgent_at(segment.urgent);
}

/// Writes options, each padded to four bytes; returns how many bytes.
fn write_options(options: &Options, bytes: &mut [u8; LONGEST - HEADER]) -> usize {
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    if let Some(largest) = options.largest {
        let [a, b] = largest.to_be_bytes();
        put(&[2, 4, a, b]);
    }
    if options.may_sack {
        put(&[NOP, NOP, 4, 2]);
    }
    if let Some(scale) = options.scale {
        put(&[NOP, 3, 3, scale]);
    }
    if let Some((clock, echo)) = options.stamps {
        put(&[NOP, NOP, STAMPS, 10]);
        put(&clock.to_be_bytes());
        put(&echo.to_be_bytes());
    }
    let sacks = options.sacks.as_slice();
    if !sacks.is_empty() {
        put(&[NOP, NOP, SACKS, 2 + 8 * sacks.len() as u8]);
        for (left, right) in sacks {
            put(&left.0.to_be_bytes());
            put(&right.0.to_be_bytes());
        }
    }
    at
}
