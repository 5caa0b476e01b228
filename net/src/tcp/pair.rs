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
    /// As the other end sees them.
    pub fn mirrored(self) -> Pair {
        Pair {
            local: self.remote,
            remote: self.local,
        }
    }
}
