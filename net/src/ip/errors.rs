//! Messages of ICMP about packets: those that this machine sends, at a limited rate, and those
//! that it gets.

use core::net::{IpAddr, SocketAddr};

use abi::Errno;
use fbuf::{Aggregate, BytesSource};

use super::{
    ICMP, ICMP_V6, TCP, UDP, ethernet, input::Received, network::Network, output::Sending,
    routes::LEAST_MTU_V6,
};
use crate::{
    packet::{Head, Packet},
    timer::now,
};

/// Messages in a burst, and in a second: Linux's `icmp_msgs_burst` and `icmp_msgs_per_sec`.
const BURST: u64 = 50;
const PER_SECOND: u64 = 1000;
/// Bytes of a header of ICMP.
pub(super) const HEADER: usize = 8;
/// Types of messages.
const UNREACHABLE_V4: u8 = 3;
const UNREACHABLE_V6: u8 = 1;
const TOO_BIG_V6: u8 = 2;
const TIME_V4: u8 = 11;
const PARAMETER_V4: u8 = 12;
const REDIRECT_V4: u8 = 5;
const QUENCH_V4: u8 = 4;
/// Codes of [`UNREACHABLE_V4`].
const PROTOCOL_CODE: u8 = 2;
const PORT_CODE: u8 = 3;
const FRAGMENTATION_CODE: u8 = 4;
/// The code of [`UNREACHABLE_V6`] for a port.
const PORT_CODE_V6: u8 = 4;
/// Types of IPv6's messages below this are errors.
const FIRST_NO_ERROR_V6: u8 = 128;
/// A message of type 4, code 1: an unknown next header.
const PARAMETER_V6: u8 = 4;

/// Why a packet is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No socket has the port.
    Port,
    /// No protocol has the number.
    Protocol,
}

/// What was said about a packet of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It can't arrive now.
    Unreachable,
    /// The machine has no such port or protocol.
    Refused,
    /// It is larger than this on its path.
    TooBig(u16),
    /// It has been on its way for too long, or a header is wrong.
    Other,
}

/// The news that a packet did not arrive.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// The packet's protocol; 0 for all packets to an address.
    pub protocol: u8,
    /// The packet's ends, as the sender sees them.
    pub from: SocketAddr,
    /// See `from`.
    pub to: SocketAddr,
    /// The 32 bits behind the ports: TCP's sequence number.
    pub number: u32,
    /// What happened.
    pub trouble: Trouble,
    /// Who says so; `None` for this machine.
    pub offender: Option<IpAddr>,
    /// Type and code of the message.
    pub kind: u8,
    /// See `kind`.
    pub code: u8,
    /// The MTU of the path, where it is too small.
    pub info: u32,
}

impl Report {
    /// Returns the error by which a program hears of it: Linux's `icmp_err_convert`.
    pub fn error(&self) -> Errno {
        let is_v4 = self.to.is_ipv4();
        match (is_v4, self.kind, self.code) {
            (true, UNREACHABLE_V4, code) => match code {
                0 | 6 | 9 | 11 => Errno::ENETUNREACH,
                PROTOCOL_CODE => Errno::ENOPROTOOPT,
                PORT_CODE => Errno::ECONNREFUSED,
                FRAGMENTATION_CODE => Errno::EMSGSIZE,
                5 => Errno::EOPNOTSUPP,
                7 => Errno::EHOSTDOWN,
                8 => Errno::ENONET,
                _ => Errno::EHOSTUNREACH,
            },
            (true, PARAMETER_V4, _) | (false, PARAMETER_V6, _) => Errno::EPROTO,
            (false, TOO_BIG_V6, _) => Errno::EMSGSIZE,
            (false, UNREACHABLE_V6, code) => match code {
                0 => Errno::ENETUNREACH,
                1 | 5 | 6 => Errno::EACCES,
                PORT_CODE_V6 => Errno::ECONNREFUSED,
                _ => Errno::EHOSTUNREACH,
            },
            _ => Errno::EHOSTUNREACH,
        }
    }

    /// Tells whether it concerns a socket that has not asked for reports, too.
    pub fn is_final(&self) -> bool {
        match (self.to.is_ipv4(), self.kind, self.code) {
            (true, UNREACHABLE_V4, code) => !matches!(code, 0 | 1 | 4 | 5 | 11 | 12),
            (true, PARAMETER_V4, _) => true,
            (false, UNREACHABLE_V6, code) => matches!(code, 1 | 4 | 5 | 6),
            (false, PARAMETER_V6, _) => true,
            _ => false,
        }
    }

    /// A neighbour does not answer.
    pub(super) fn silent(neighbour: IpAddr) -> Report {
        let at = SocketAddr::new(neighbour, 0);
        Report {
            protocol: 0,
            from: at,
            to: at,
            number: 0,
            trouble: Trouble::Unreachable,
            offender: None,
            kind: 0,
            code: 0,
            info: 0,
        }
    }
}

/// How many messages may be sent: a bucket of tokens.
#[derive(Default, Debug)]
pub(super) struct Budget {
    tokens: u64,
    at: u64,
}

impl Budget {
    pub fn take(&mut self, now: u64) -> bool {
        let new = now.saturating_sub(self.at) / (1_000_000_000 / PER_SECOND);
        if self.at == 0 {
            (self.tokens, self.at) = (BURST, now);
        } else if new > 0 {
            self.tokens = (self.tokens + new).min(BURST);
            self.at = now;
        }
        let may = self.tokens > 0;
        self.tokens -= u64::from(may);
        may
    }
}

impl Network {
    /// Tells the sender of a packet why it is not taken, where the RFCs allow that (RFC 1122 3.2.2,
    /// RFC 4443 2.4).
    pub(super) fn refuse(&self, packet: &Received, original: &Aggregate, refusal: Refusal) {
        let is_error = match packet.protocol {
            ICMP => {
                let mut kind = [0];
                packet.data.peek(0, &mut kind);
                let errors = [
                    UNREACHABLE_V4,
                    QUENCH_V4,
                    REDIRECT_V4,
                    TIME_V4,
                    PARAMETER_V4,
                ];
                errors.contains(&kind[0])
            }
            ICMP_V6 => {
                let mut kind = [0];
                packet.data.peek(0, &mut kind);
                kind[0] < FIRST_NO_ERROR_V6
            }
            _ => false,
        };
        if is_error || packet.is_for_many || !self.errors.lock().take(now()) {
            return;
        }
        let (kind, code) = match (packet.from, refusal) {
            (IpAddr::V4(_), Refusal::Port) => (UNREACHABLE_V4, PORT_CODE),
            (IpAddr::V4(_), Refusal::Protocol) => (UNREACHABLE_V4, PROTOCOL_CODE),
            (IpAddr::V6(_), Refusal::Port) => (UNREACHABLE_V6, PORT_CODE_V6),
            (IpAddr::V6(_), Refusal::Protocol) => (PARAMETER_V6, 1),
        };
        let mut bytes = [0; LEAST_MTU_V6 as usize];
        let n = original.peek(0, &mut bytes);
        // The next header of a packet without extensions.
        let is_header = kind == PARAMETER_V6 && packet.from.is_ipv6();
        let word = if is_header { 6 } else { 0 };
        self.send_error(packet.to, packet.from, [kind, code], word, &bytes[..n]);
    }

    /// Reports a packet whose neighbour has not answered to its sender, a program of this machine:
    /// destination unreachable, as a router reports it.
    pub(super) fn refuse_waiting(&self, packet: &Packet) {
        let mut bytes = [0; LEAST_MTU_V6 as usize];
        let n = packet.peek(ethernet::HEADER, &mut bytes);
        let bytes = &bytes[..n];
        let (from, kind, code): (IpAddr, u8, u8) = match bytes.first() {
            Some(first) if first >> 4 == 4 && n >= 20 => {
                let from = [bytes[12], bytes[13], bytes[14], bytes[15]];
                (from.into(), UNREACHABLE_V4, 1)
            }
            Some(first) if first >> 4 == 6 && n >= 40 => {
                let mut from = [0; 16];
                from.copy_from_slice(&bytes[8..24]);
                (from.into(), UNREACHABLE_V6, 3)
            }
            _ => return,
        };
        if self.is_own(from) && self.errors.lock().take(now()) {
            self.send_error(from, from, [kind, code], 0, bytes);
        }
    }

    /// Sends a message about a packet that begins with these bytes. `word` are the last four bytes
    /// of its header.
    fn send_error(&self, from: IpAddr, to: IpAddr, kind: [u8; 2], word: u32, original: &[u8]) {
        let mut head = Head::default();
        let header = head.push(HEADER);
        header[..2].copy_from_slice(&kind);
        header[4..8].copy_from_slice(&word.to_be_bytes());
        // As much as fits in a packet that arrives everywhere.
        let most = match to {
            IpAddr::V4(_) => 576 - 20 - HEADER,
            IpAddr::V6(_) => usize::from(LEAST_MTU_V6) - 40 - HEADER,
        };
        let mut data = Aggregate::new();
        let n = original.len().min(most);
        if data.fill_from(&mut BytesSource::new(&original[..n]), n) != Ok(n) {
            return;
        }
        let sending = Sending {
            from,
            to,
            protocol: if to.is_ipv4() { ICMP } else { ICMP_V6 },
            checksum: Some(2),
            ..Sending::default()
        };
        if let Ok(route) = self.route(to) {
            let _ = self.send(&route, sending, head, data, 0);
        }
    }

    /// Takes a message about a packet of this machine.
    pub(super) fn take_error(&self, message: &Received) {
        let mut bytes = [0; HEADER + LEAST_MTU_V6 as usize];
        let n = message.data.peek(0, &mut bytes);
        let (header, original) = bytes[..n].split_at(HEADER.min(n));
        let Some((report, quote)) = read_error(message, header, original) else {
            return;
        };
        if !self.is_own(report.from.ip()) {
            return;
        }
        if let Some(upper) = self.upper() {
            // Connections use the path, too, so a stranger's guess must not change it: only an
            // established connection's own number is credible, which TCP checks, and a socket that
            // may have sent the packet. Echo replies have none; IPv6 leaves little to take.
            if let Trouble::TooBig(mtu) = report.trouble
                && report.protocol != TCP
                && (report.protocol == ICMP_V6 || upper.may_have_sent(&report))
            {
                self.note_path(report.to.ip(), mtu);
            }
            upper.report(report, original.get(quote..).unwrap_or(&[]));
        }
    }

    /// Remembers the MTU of a path, about which a credible message came; returns it.
    pub fn narrow_path(&self, to: IpAddr, mtu: u16) -> u16 {
        self.note_path(to, mtu)
    }
}

/// Reads a message about a packet; returns also where the payload begins that it repeats.
fn read_error(message: &Received, header: &[u8], original: &[u8]) -> Option<(Report, usize)> {
    if header.len() < HEADER {
        return None;
    }
    let (kind, code) = (header[0], header[1]);
    let word = |bytes: &[u8], at: usize| {
        let bytes = bytes.get(at..at + 2)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    };
    let (from, to, protocol, len): (IpAddr, IpAddr, u8, usize) = match message.from {
        IpAddr::V4(_) => {
            let len = usize::from(original.first()? & 15) * 4;
            let address = |at: usize| {
                let bytes: [u8; 4] = original.get(at..at + 4)?.try_into().ok()?;
                Some(IpAddr::from(bytes))
            };
            // Only the first fragment has ports.
            if original.first()? >> 4 != 4 || len < 20 || word(original, 6)? & 0x1fff != 0 {
                return None;
            }
            (address(12)?, address(16)?, original[9], len)
        }
        IpAddr::V6(_) => {
            let address = |at: usize| {
                let bytes: [u8; 16] = original.get(at..at + 16)?.try_into().ok()?;
                Some(IpAddr::from(bytes))
            };
            if original.first()? >> 4 != 6 {
                return None;
            }
            (address(8)?, address(24)?, original[6], 40)
        }
    };
    let trouble = match (message.from, kind, code) {
        (IpAddr::V4(_), UNREACHABLE_V4, FRAGMENTATION_CODE) => Trouble::TooBig(word(header, 6)?),
        (IpAddr::V4(_), UNREACHABLE_V4, PROTOCOL_CODE | PORT_CODE) => Trouble::Refused,
        (IpAddr::V4(_), UNREACHABLE_V4, _) => Trouble::Unreachable,
        (IpAddr::V4(_), TIME_V4 | PARAMETER_V4, _) => Trouble::Other,
        (IpAddr::V6(_), TOO_BIG_V6, _) => {
            let mtu = u32::from(word(header, 4)?) << 16 | u32::from(word(header, 6)?);
            Trouble::TooBig(mtu.min(u16::MAX.into()) as u16)
        }
        (IpAddr::V6(_), UNREACHABLE_V6, PORT_CODE_V6) => Trouble::Refused,
        (IpAddr::V6(_), UNREACHABLE_V6, _) => Trouble::Unreachable,
        (IpAddr::V6(_), 3 | PARAMETER_V6, _) => Trouble::Other,
        _ => return None,
    };
    let words = |at: usize| Some((word(original, len + at)?, word(original, len + at + 2)?));
    let ((from_port, to_port), number, quote) = match protocol {
        TCP | UDP => {
            let (high, low) = words(4)?;
            (words(0)?, u32::from(high) << 16 | u32::from(low), len + 8)
        }
        // The identifier of an echo is the port.
        ICMP | ICMP_V6 => ((words(4)?.0, 0), 0, len),
        _ => ((0, 0), 0, len),
    };
    let info = match trouble {
        Trouble::TooBig(mtu) => mtu.into(),
        _ => 0,
    };
    let report = Report {
        protocol,
        from: SocketAddr::new(from, from_port),
        to: SocketAddr::new(to, to_port),
        number,
        trouble,
        offender: Some(message.from),
        kind,
        code,
        info,
    };
    Some((report, quote))
}
