//! What clients and the server say to each other: messages of a channel that begin with a header of
//! 32 bytes, little endian.
//!
//! ```text
//! byte 0   u8    what: one of `Op`
//!      1   u8    flags
//!      2   u16   the client's port
//!      4   u16   the other port
//!      6   u16   an error's number; 0: none
//!      8   [u8]  the other address
//!     12   u32   the request's number, which the reply repeats
//!     16   u64   the client whose path must be joined to read the body; 0: none,
//!                all ones: the card's
//!     24   u64   reserved, 0
//! ```
//!
//! A connection begins with [`HELLO`] from the server, which brings the client's end of a socket
//! for descriptors: by it come the paths of clients whose bodies this one receives, each with the
//! client's number. Then both make the channel.

use std::net::SocketAddrV4;

/// The first bytes that the server sends: the protocol's version.
pub const HELLO: [u8; 8] = *b"netsrv01";

/// The same of a server that has rings for cached, volatile paths.
pub const HELLO_RINGS: [u8; 8] = *b"netsrvr1";

/// The number by which the path of the card's fbufs comes to clients.
pub const CARD: u64 = u64::MAX;

/// Where clients connect unless told otherwise.
pub const SOCKET: &str = "/run/netserver";

/// Bytes of a header.
pub const HEADER: usize = 32;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Binds a port; 0: any. Flags: [`NO_VERIFY`].
    Bind = 1,
    /// Sets the only destination of a port, which may then read the whole path of the client.
    Connect = 2,
    /// Frees a port.
    Close = 3,
    /// Sends a datagram. Flags: [`NO_CHECKSUM`].
    Send = 4,
    /// The server's answer to the first three.
    Reply = 5,
    /// A datagram for the client.
    Datagram = 6,
    /// The path of a client is no longer used.
    Gone = 7,
}

/// The receiver of the port's datagrams does not look at checksums.
pub const NO_VERIFY: u8 = 1;
/// The datagram has no checksum: nothing reads its body.
pub const NO_CHECKSUM: u8 = 2;

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the message is.
    pub op: Op,
    /// Flags.
    pub flags: u8,
    /// The client's port.
    pub port: u16,
    /// The other side.
    pub peer: SocketAddrV4,
    /// An error's number.
    pub error: u16,
    /// The request's number.
    pub request: u32,
    /// The client whose path is needed.
    pub share: u64,
}

impl Header {
    /// Returns a header without flags, error and numbers.
    pub fn new(op: Op, port: u16, peer: SocketAddrV4) -> Header {
        Header {
            op,
            flags: 0,
            port,
            peer,
            error: 0,
            request: 0,
            share: 0,
        }
    }

    /// Returns the bytes.
    pub fn emit(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.op as u8;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.port.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.peer.port().to_le_bytes());
        bytes[6..8].copy_from_slice(&self.error.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.peer.ip().octets());
        bytes[12..16].copy_from_slice(&self.request.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.share.to_le_bytes());
        bytes
    }

    /// Reads a header; `None` for an unknown kind.
    pub fn read(bytes: &[u8; HEADER]) -> Option<Header> {
        let op = [
            Op::Bind,
            Op::Connect,
            Op::Close,
            Op::Send,
            Op::Reply,
            Op::Datagram,
            Op::Gone,
        ];
        let [.., a, b, c, d] = *bytes.first_chunk::<12>()?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Some(Header {
            op: op.into_iter().find(|op| *op as u8 == bytes[0])?,
            flags: bytes[1],
            port: half(2),
            peer: SocketAddrV4::new([a, b, c, d].into(), half(4)),
            error: half(6),
            request: u32::from(half(12)) | u32::from(half(14)) << 16,
            share: u64::from_le_bytes(bytes[16..24].try_into().ok()?),
        })
    }
}
