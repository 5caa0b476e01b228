//! The name of a word.

use alloc::sync::Arc;

use abi::{Errno, Result};
use nucleus::{VirtAddr, user};

use crate::process::Space;

/// Names a word in all address spaces that can reach it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Key {
    /// Address of the address space, or of the object.
    owner: usize,
    /// Address in the space, or byte in the object.
    offset: u64,
    shared: bool,
}

impl Key {
    /// No word's, and before all others.
    pub(super) const NONE: Key = Key {
        owner: 0,
        offset: 0,
        shared: false,
    };

    /// The key of the word at `address`; `private` if the program promises that no other address
    /// space shares it.
    ///
    /// # Errors
    /// `EINVAL` if the address is not aligned, `EFAULT` if it can't be a program's.
    pub fn new(space: &Arc<Space>, address: VirtAddr, private: bool) -> Result<Key> {
        if !address.0.is_multiple_of(4) {
            return Err(Errno::EINVAL);
        }
        if address.0 >= nucleus::addr::USER_END.0 {
            return Err(Errno::EFAULT);
        }
        if !private && let Some((owner, offset)) = space.map().shared_location(address) {
            return Ok(Key {
                owner,
                offset,
                shared: true,
            });
        }
        Ok(Key {
            owner: Arc::as_ptr(space.map()) as usize,
            offset: address.0 as u64,
            shared: false,
        })
    }

    /// As [`new`](Key::new), for a caller that does not read the word: unless it is private it must
    /// be there all the same, as on Linux.
    ///
    /// # Errors
    /// Those of [`new`](Key::new), and `EFAULT` if the word can't be read.
    pub fn of_word(space: &Arc<Space>, address: VirtAddr, private: bool) -> Result<Key> {
        let key = Key::new(space, address, private)?;
        if !private {
            user::load_u32(address).map_err(|_| Errno::EFAULT)?;
        }
        Ok(key)
    }

    /// A number that tells keys apart, its upper eight bits best.
    #[inline]
    pub(super) fn hash(&self) -> u64 {
        (self.owner as u64 ^ self.offset.rotate_left(20) ^ self.offset >> 2)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
