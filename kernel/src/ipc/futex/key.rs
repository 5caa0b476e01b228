//! What names a word.

use alloc::{collections::VecDeque, sync::Arc};

use abi::{Errno, Result};
use nucleus::{
    VirtAddr,
    sync::{Mutex, Rank},
};

use super::table::Entry;
use crate::process::Space;

const BUCKETS: usize = 256;

/// Who waits, by a hash of the word's name, longest wait first.
static TABLE: [Mutex<VecDeque<Entry>>; BUCKETS] =
    [const { Mutex::new(Rank::Futex, VecDeque::new()) }; BUCKETS];

/// Names a word in all address spaces that can reach it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Address of the address space, or of the object.
    owner: usize,
    /// Address in the space, or byte in the object.
    offset: u64,
    shared: bool,
}

impl Key {
    /// No word's.
    pub(super) const NONE: Key = Key {
        owner: 0,
        offset: 0,
        shared: false,
    };

    /// The key of the word at `address`; `private` if the program promises that no other address space shares it.
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

    /// Where those stand who wait for the word.
    pub(super) fn bucket(&self) -> &'static Mutex<VecDeque<Entry>> {
        let mixed = (self.owner as u64 ^ self.offset.rotate_left(20) ^ self.offset >> 2)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &TABLE[(mixed >> 56) as usize % BUCKETS]
    }
}

/// Runs `f` with the buckets of both keys, the second one `None` if it is the same.
pub(super) fn with_both<R>(
    one: Key,
    two: Key,
    f: impl FnOnce(&mut VecDeque<Entry>, Option<&mut VecDeque<Entry>>) -> R,
) -> R {
    let (a, b) = (one.bucket(), two.bucket());
    if core::ptr::eq(a, b) {
        return f(&mut a.lock(), None);
    }
    let (mut a, mut b) = Mutex::lock_pair(a, b);
    f(&mut a, Some(&mut b))
}

/// The time of day was set: whoever waits looks at it again.
pub fn clock_was_set() {
    for bucket in &TABLE {
        for entry in bucket.lock().iter() {
            entry.waiter.look();
        }
    }
}
