//! Which addresses are this machine's. Nearly all packets come from another machine's address and
//! go to one address here; both are decided without a lock, by a filter of bits and the address
//! that was found last. A reader may miss a change that is being made, as if the packet had come
//! before it.

use alloc::vec::Vec;
use core::{
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use abi::Result;
use nucleus::sync::{Rank, SpinLock, lock_with_room};

use super::address;

/// In [`OwnAddresses::recent`]: there is an address.
const THERE: u64 = 1 << 32;
/// An odd number without a pattern, which spreads addresses over bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The valid addresses of all interfaces.
pub(super) struct OwnAddresses {
    list: SpinLock<Vec<IpAddr>>,
    /// A bit for each address in the list; several may have the same one. Changed under the list's
    /// lock.
    bits: AtomicU64,
    /// An address of IPv4 in the list that was asked for, with [`THERE`]; or 0. Changed under the
    /// list's lock.
    recent: AtomicU64,
}

/// The bit of an address.
#[inline]
fn bit(ip: IpAddr) -> u64 {
    let word = match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => {
            let bits = ip.to_bits();
            (bits >> 64) as u64 ^ bits as u64
        }
    };
    1 << (word.wrapping_mul(SPREAD) >> 58)
}

impl OwnAddresses {
    /// No addresses.
    pub(super) fn new() -> OwnAddresses {
        OwnAddresses {
            list: SpinLock::new(Rank::Leaf, Vec::new()),
            bits: AtomicU64::new(0),
            recent: AtomicU64::new(0),
        }
    }

    /// Notes whether an address is valid.
    ///
    /// # Errors
    /// `ENOMEM`, for one that is and was not.
    pub(super) fn note(&self, ip: IpAddr, is_valid: bool) -> Result<()> {
        let mut list = match is_valid {
            true => lock_with_room(&self.list)?,
            false => self.list.lock(),
        };
        match list.iter().position(|other| *other == ip) {
            Some(at) if !is_valid => drop(list.swap_remove(at)),
            None if is_valid => list.push(ip),
            _ => return Ok(()),
        }
        let bits = list.iter().fold(0, |bits, ip| bits | bit(*ip));
        self.bits.store(bits, Relaxed);
        self.recent.store(0, Relaxed);
        Ok(())
    }

    /// Tells whether an address is valid, or of loopback.
    #[inline]
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        if address::is_own(ip) {
            return true;
        }
        if self.bits.load(Relaxed) & bit(ip) == 0 {
            return false;
        }
        if let IpAddr::V4(ip) = ip
            && self.recent.load(Relaxed) == THERE | u64::from(ip.to_bits())
        {
            return true;
        }
        self.is_in_list(ip)
    }

    #[inline(never)]
    fn is_in_list(&self, ip: IpAddr) -> bool {
        let list = self.list.lock();
        let is_there = list.contains(&ip);
        if let (true, IpAddr::V4(ip)) = (is_there, ip) {
            self.recent.store(THERE | u64::from(ip.to_bits()), Relaxed);
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use nucleus::sim::{Random, on_machines};
    use std::collections::BTreeSet;

    use super::OwnAddresses;

    fn address(number: usize) -> IpAddr {
        let low = number as u8;
        match number % 2 {
            0 => Ipv4Addr::new(10, 0, 0, low).into(),
            _ => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, low.into()).into(),
        }
    }

    /// After any changes, and questions in between, those that are valid are known.
    #[test]
    fn valid_addresses_are_found() {
        on_machines(8, |seed| {
            let mut random = Random::new(seed);
            let own = OwnAddresses::new();
            let mut valid = BTreeSet::new();
            for _ in 0..500 {
                let number = random.below(24);
                let is_valid = random.below(2) == 1;
                own.note(address(number), is_valid).unwrap();
                match is_valid {
                    true => valid.insert(number),
                    false => valid.remove(&number),
                };
                for other in 0..24 {
                    assert_eq!(own.contains(address(other)), valid.contains(&other));
                }
            }
            assert!(own.contains(Ipv4Addr::LOCALHOST.into()));
        });
    }
}
