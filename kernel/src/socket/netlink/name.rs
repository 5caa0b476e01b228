//! Names of netlink sockets: `struct sockaddr_nl`.

use abi::{Errno, Result};

use crate::socket::{Address, control::number};

/// The family's number.
pub const AF_NETLINK: u32 = 16;

/// Bytes of a name.
const NAME: usize = 12;

/// Port and groups of a `struct sockaddr_nl`.
///
/// # Errors
/// `EINVAL` for another family's, or one that is too short.
pub fn read(address: &Address) -> Result<(u32, u32)> {
    let bytes = address.bytes().first_chunk::<NAME>().ok_or(Errno::EINVAL)?;
    if address.family() != Some(AF_NETLINK) {
        return Err(Errno::EINVAL);
    }
    Ok((number(bytes, 4), number(bytes, 8)))
}

/// The name of a socket at a port, in groups.
pub fn write(port: u32, groups: u32) -> Address {
    let mut bytes = [0; NAME];
    bytes[..2].copy_from_slice(&(AF_NETLINK as u16).to_le_bytes());
    bytes[4..8].copy_from_slice(&port.to_le_bytes());
    bytes[8..].copy_from_slice(&groups.to_le_bytes());
    Address::new(&bytes)
}

/// The number of the first group in a mask, 0 for none.
pub fn first_group(groups: u32) -> u32 {
    match groups {
        0 => 0,
        groups => groups.trailing_zeros() + 1,
    }
}
