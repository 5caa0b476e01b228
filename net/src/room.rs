//! Lists under spin locks that grow without them: memory is taken and freed by the caller in
//! between, and a list's items are moved at once, of which there are few.

use alloc::vec::Vec;

use abi::Result;
use nucleus::sync::{SpinGuard, SpinLock};

/// Locks a list with room for one more item.
///
/// # Errors
/// `ENOMEM`.
pub fn lock_with_room<T>(list: &SpinLock<Vec<T>>) -> Result<SpinGuard<'_, Vec<T>>> {
    loop {
        let needed = {
            let list = list.lock();
            if list.len() < list.capacity() {
                return Ok(list);
            }
            (2 * list.len()).max(8)
        };
        let mut larger = nucleus::try_vec(needed)?;
        let mut list = list.lock();
        if list.capacity() < larger.capacity() {
            larger.append(&mut list);
            core::mem::swap(&mut *list, &mut larger);
        }
        drop(list);
        // The old memory is freed here.
        drop(larger);
    }
}
