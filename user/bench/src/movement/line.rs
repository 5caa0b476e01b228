//! Connected pairs of descriptors.

use std::fs::File;
use std::io::Result;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};

use super::{checked, peer};

/// Kind of a connection between two programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// `pipe(2)`.
    Pipe,
    /// A pair of Unix sockets of this type (`SOCK_STREAM`, `SOCK_DGRAM`, `SOCK_SEQPACKET`).
    Unix(libc::c_int),
    /// A TCP connection by 127.0.0.1, without Nagle's delay.
    Tcp,
    /// Two UDP sockets by 127.0.0.1, connected to each other.
    Udp,
}

/// One side of a two-way connection: its end to send by and its end to receive by.
#[derive(Debug)]
pub struct Side {
    /// The end that is written to.
    pub send: File,
    /// The end that is read from.
    pub receive: File,
}

impl Line {
    /// Makes a one-way connection: the end to send by, the end to receive by.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn one_way(self) -> Result<(File, File)> {
        self.pair()
    }

    /// Makes a two-way connection: the two sides.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn both_ways(self) -> Result<(Side, Side)> {
        if self == Line::Pipe {
            let (there, back) = (self.one_way()?, self.one_way()?);
            let near = Side {
                send: there.0,
                receive: back.1,
            };
            let far = Side {
                send: back.0,
                receive: there.1,
            };
            return Ok((near, far));
        }
        let side = |socket: File| -> Result<Side> {
            Ok(Side {
                receive: socket.try_clone()?,
                send: socket,
            })
        };
        let (near, far) = self.pair()?;
        Ok((side(near)?, side(far)?))
    }

    /// Makes two connected descriptors; the first can send to the second.
    fn pair(self) -> Result<(File, File)> {
        match self {
            Line::Pipe => peer::pipe().map(|(receive, send)| (send, receive)),
            Line::Unix(kind) => socket_pair(kind),
            Line::Tcp => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                let near = TcpStream::connect(listener.local_addr()?)?;
                let (far, _) = listener.accept()?;
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                Ok((file(near), file(far)))
            }
            Line::Udp => {
                let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
                near.connect(far.local_addr()?)?;
                far.connect(near.local_addr()?)?;
                Ok((file(near), file(far)))
            }
        }
    }
}

/// Returns a socket as an open file, which is enough to read and write.
fn file(socket: impl Into<OwnedFd>) -> File {
    socket.into().into()
}

/// Calls `socketpair(2)` for Unix sockets.
///
/// # Errors
/// That of `errno`.
pub fn socket_pair(kind: libc::c_int) -> Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for the two descriptors.
    checked(unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            kind | libc::SOCK_CLOEXEC,
            0,
            ends.as_mut_ptr(),
        )
    })?;
    // SAFETY: the kernel has just made them, and nothing else owns them.
    let [near, far] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((near.into(), far.into()))
}
