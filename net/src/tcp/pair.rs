//! The two ends of a connection.

use core::cmp::Ordering;
use core::hash::{Hash, Hasher};
use core::net::{IpAddr, SocketAddr, SocketAddr::V4, SocketAddrV4};

/// The two ends of a connection, as the one called `local` sees them.
#[derive(Clone, Copy, Eq, Debug)]
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

/// By numbers where both are of IPv4, which takes a part of the time of octet after octet.
impl PartialEq for Pair {
    #[inline(always)]
    fn eq(&self, other: &Pair) -> bool {
        let number = |it: &SocketAddrV4| u64::from(it.ip().to_bits()) << 16 | u64::from(it.port());
        match (&self.local, &self.remote, &other.local, &other.remote) {
            (V4(local), V4(remote), V4(other_local), V4(other_remote)) => {
                number(remote) == number(other_remote) && number(local) == number(other_local)
            }
            _ => self.local == other.local && self.remote == other.remote,
        }
    }
}

/// By the ports first: they mostly differ, and all are compared at once.
impl Ord for Pair {
    fn cmp(&self, other: &Pair) -> Ordering {
        let ports = |it: &Pair| u32::from(it.remote.port()) << 16 | u32::from(it.local.port());
        let ends = |it: &Pair| (it.remote, it.local);
        let by_ports = ports(self).cmp(&ports(other));
        by_ports.then_with(|| ends(self).cmp(&ends(other)))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Pair) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// By all bytes at once, which takes a keyed hash a part of the time of one field after another.
/// Labels and scopes of IPv6 do not count.
impl Hash for Pair {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = [0; 36];
        let mut len = 0;
        let mut add = |more: &[u8]| {
            bytes[len..len + more.len()].copy_from_slice(more);
            len += more.len();
        };
        for end in [self.local, self.remote] {
            match end.ip() {
                IpAddr::V4(ip) => add(&ip.octets()),
                IpAddr::V6(ip) => add(&ip.octets()),
            }
            add(&end.port().to_le_bytes());
        }
        state.write(&bytes[..len]);
    }
}
