//! Names of packet sockets: `struct sockaddr_ll`.

use abi::{Errno, Result};

use crate::socket::{Address, control::number};

/// The family's number.
pub const AF_PACKET: u32 = 17;

/// Bytes of a name, and where the address on the link begins.
pub const NAME: usize = 20;
const MAC: usize = 12;

/// A name.
#[derive(Clone, Copy, Default, Debug)]
pub struct Name {
    /// `ETH_P_*`.
    pub protocol: u16,
    /// The number of the interface; 0 for all.
    pub interface: u32,
    /// `ARPHRD_*`.
    pub hardware: u16,
    /// `PACKET_*`: for whom the packet is.
    pub kind: u8,
    /// The address on the link, and its length.
    pub mac: [u8; 6],
    pub mac_len: u8,
}

impl Name {
    /// Reads a name that a program gives.
    ///
    /// # Errors
    /// `EINVAL` for another family's, or one that is too short.
    pub fn read(address: &Address) -> Result<Name> {
        let bytes = address.bytes();
        if bytes.len() < MAC + 6 || address.family() != Some(AF_PACKET) {
            return Err(Errno::EINVAL);
        }
        let mut mac = [0; 6];
        mac.copy_from_slice(&bytes[MAC..MAC + 6]);
        Ok(Name {
            protocol: u16::from_be_bytes([bytes[2], bytes[3]]),
            interface: number(bytes, 4),
            hardware: u16::from_le_bytes([bytes[8], bytes[9]]),
            kind: bytes[10],
            mac,
            mac_len: bytes[11],
        })
    }

    /// Writes it.
    pub fn bytes(&self) -> [u8; NAME] {
        let mut bytes = [0; NAME];
        bytes[..2].copy_from_slice(&(AF_PACKET as u16).to_le_bytes());
        bytes[2..4].copy_from_slice(&self.protocol.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.interface.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.hardware.to_le_bytes());
        bytes[10] = self.kind;
        bytes[11] = self.mac_len;
        bytes[MAC..MAC + 6].copy_from_slice(&self.mac);
        bytes
    }
}
