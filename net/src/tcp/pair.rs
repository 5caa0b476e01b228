//! The two ends of a connection.

use core::net::SocketAddr;

/// The two ends of a connection, as the one called `local` sees them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs)]
pub struct Pair {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

impl Pair {
    /// Tells whether it is a connection over IPv4.
    pub fn is_v4(&self) -> bool {
        self.remote.is_ipv4()
    }

    /// As the other end sees them.
    pub fn mirrored(self) -> Pair {
        Pair {
            local: self.remote,
            remote: self.local,
        }
    }
}
