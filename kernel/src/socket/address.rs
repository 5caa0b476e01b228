//! Socket addresses.

use abi::{Errno, Result};
use nucleus::{VirtAddr, user};

/// Bytes of a `struct sockaddr_storage`: the longest address.
const MAX: usize = 128;

/// A `sockaddr` as a program passes it: family in the first two bytes, then the family's own
/// fields.
#[derive(Clone, Copy)]
pub struct Address {
    bytes: [u8; MAX],
    len: usize,
}

impl Address {
    /// No bytes at all.
    pub const EMPTY: Address = Address {
        bytes: [0; MAX],
        len: 0,
    };

    /// These bytes, 128 at most.
    pub fn new(from: &[u8]) -> Address {
        let mut address = Address::EMPTY;
        let len = from.len().min(MAX);
        address.bytes[..len].copy_from_slice(&from[..len]);
        address.len = len;
        address
    }

    /// Reads the address that a program gives.
    ///
    /// # Errors
    /// `EINVAL` for a length that is negative or above 128, `EFAULT`.
    pub fn read(at: VirtAddr, len: i32) -> Result<Address> {
        let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
        let mut address = Address::EMPTY;
        let to = address.bytes.get_mut(..len).ok_or(Errno::EINVAL)?;
        user::copy_in(to, at)?;
        address.len = len;
        Ok(address)
    }

    /// Writes as much as `room` bytes at `to` hold.
    ///
    /// # Errors
    /// `EINVAL` for negative room, `EFAULT`.
    pub fn write(&self, to: VirtAddr, room: i32) -> Result<()> {
        let room = usize::try_from(room).map_err(|_| Errno::EINVAL)?;
        let n = self.len.min(room);
        Ok(user::copy_out(to, &self.bytes[..n])?)
    }

    /// Writes it to `to` and its whole length to the `int` at `len`, which says how much room there
    /// is.
    ///
    /// # Errors
    /// Those of [`write`](Address::write).
    pub fn write_with_len(&self, to: VirtAddr, len: VirtAddr) -> Result<()> {
        let room: i32 = user::read(len)?;
        self.write(to, room)?;
        Ok(user::write(len, &(self.len as i32))?)
    }

    /// The bytes, family included.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The family in the first two bytes, if they are there.
    pub fn family(&self) -> Option<u32> {
        match self.bytes() {
            [low, high, ..] => Some(u16::from_le_bytes([*low, *high]).into()),
            _ => None,
        }
    }
}
