//! Local sockets (`AF_UNIX`): streams, datagrams, and connections of packets.
//!
//! - [`UnixSocket`]: the socket behind an open file; [`end`]: the part of it that other sockets
//!   hold.
//! - [`channel`]: a stream's bytes, as slices of pages; [`messages`]: datagrams and packets.
//! - `stream`, `packet`: sending and receiving of either; `connect`: names and connections.
//! - [`name`]: names in the file system and abstract ones.
//! - [`credentials`], [`rights`]: senders, and the files that go with a message; [`collect`]:
//!   finding sockets that only sockets in flight lead to.
//! - [`listing`] makes the text of `/proc/net/unix`.
//!
//! Two sockets that are connected hold each other's [`End`](end::End), and an end holds no socket,
//! so nothing keeps itself alive but files in flight. Locks, in the order in which they are taken:
//!
//! ```text
//! reading (the one reader of a stream copies)   QUEUE_READING
//!    writing (its one writer copies)            QUEUE_WRITING  also the frame of small messages
//!       sockets in flight                       IN_FLIGHT
//!          a queue, a stage, a shard of names   Leaf           one at a time, spinning
//! ```
//! No two ends' locks are ever held at once, but a reader's and a writer's when splice moves from
//! one to another.

mod channel;
mod collect;
mod connect;
mod credentials;
mod end;
pub mod listing;
mod messages;
mod name;
mod packet;
mod rights;
mod socket;
mod stream;

use alloc::{boxed::Box, sync::Arc};

use abi::{
    Errno, Result,
    raw::net::{AF_UNIX, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET, SOCK_STREAM},
};

use super::{Family, Socket};
pub use collect::start;
use end::{End, Stage};
pub use socket::UnixSocket;

/// The family of local sockets.
pub const FAMILY: Family = Family {
    domain: AF_UNIX,
    create,
    pair: Some(pair),
};

/// Checks the type of a new socket.
///
/// # Errors
/// `ESOCKTNOSUPPORT`, `EPROTONOSUPPORT`.
fn check(kind: u32, protocol: u32) -> Result<u32> {
    if protocol != 0 && protocol != AF_UNIX {
        return Err(Errno::EPROTONOSUPPORT);
    }
    match kind {
        SOCK_STREAM | SOCK_DGRAM | SOCK_SEQPACKET => Ok(kind),
        // Believed to be another word for datagrams, as ever.
        SOCK_RAW => Ok(SOCK_DGRAM),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

fn create(kind: u32, protocol: u32) -> Result<Arc<dyn Socket>> {
    let end = End::new(check(kind, protocol)?)?;
    Ok(Arc::new(UnixSocket::new(end)))
}

fn pair(kind: u32, protocol: u32) -> Result<[Arc<dyn Socket>; 2]> {
    let kind = check(kind, protocol)?;
    let (a, b) = (End::new(kind)?, End::new(kind)?);
    let sockets = [UnixSocket::new(a.clone()), UnixSocket::new(b.clone())];
    for (socket, other) in sockets.iter().zip([&b, &a]) {
        socket.end.set_peer(Some(other));
        if kind == SOCK_DGRAM {
            *socket.target.lock() = Some(other.clone());
        } else {
            *socket.end.stage.lock() = Stage::Connected;
            socket.connected.get_or_insert(|| Box::new(other.clone()));
        }
        socket.set_peer_credentials(credentials::current_peer());
    }
    Ok(sockets.map(|socket| Arc::new(socket) as Arc<dyn Socket>))
}
