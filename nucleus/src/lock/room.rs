//! Lists under spin locks that grow between two holds: the caller allocates without the lock, moves
//! the items with it, and frees the old memory afterwards.

use alloc::vec::Vec;

use super::{SpinGuard, SpinLock};
use crate::{OutOfMemory, try_vec};

/// Locks by `lock` what has room then. While `wanted` names a larger capacity, `make` makes memory
/// of it, and `replace` exchanges that for what is there, unless that has grown meanwhile. Memory
/// is made and freed without the lock.
///
/// # Errors
/// Those of `make` and `replace`.
pub fn lock_when_roomy<G, M, E>(
    lock: impl Fn() -> G,
    wanted: impl Fn(&G) -> Option<usize>,
    make: impl Fn(usize) -> Result<M, E>,
    replace: impl Fn(&mut G, &mut M) -> Result<(), E>,
) -> Result<G, E> {
    loop {
        let wanted = {
            let guard = lock();
            match wanted(&guard) {
                Some(wanted) => wanted,
                None => return Ok(guard),
            }
        };
        let mut larger = make(wanted)?;
        let mut guard = lock();
        let replaced = replace(&mut guard, &mut larger);
        drop(guard);
        // The old memory is freed here.
        drop(larger);
        replaced?;
    }
}

/// Locks a list with room for one more item. Its items are moved at once, of which there are few.
///
/// # Errors
/// [`OutOfMemory`].
pub fn lock_with_room<T>(list: &SpinLock<Vec<T>>) -> Result<SpinGuard<'_, Vec<T>>, OutOfMemory> {
    lock_field_with_room(|| list.lock(), |list| list, |list| list)
}

/// As [`lock_with_room`], of a list that is a part of what the lock protects.
///
/// # Errors
/// [`OutOfMemory`].
pub fn lock_field_with_room<G, T>(
    lock: impl Fn() -> G,
    list: impl Fn(&G) -> &Vec<T>,
    list_mut: impl Fn(&mut G) -> &mut Vec<T>,
) -> Result<G, OutOfMemory> {
    let wanted = |guard: &G| {
        let list = list(guard);
        (list.len() == list.capacity()).then(|| (2 * list.len()).max(8))
    };
    lock_when_roomy(lock, wanted, try_vec, |guard, larger: &mut Vec<T>| {
        let list = list_mut(guard);
        if list.capacity() < larger.capacity() {
            larger.append(list);
            core::mem::swap(list, larger);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::Arc;

    use super::*;
    use crate::{
        lock::Rank,
        sim::{Together, on_many_machines},
    };

    /// Lists that several tasks fill lose nothing, and take no memory with the lock held.
    #[test]
    fn lists_grow_between_holds_of_their_lock() {
        on_many_machines("lists with room", || {
            let list = Arc::new(SpinLock::new(Rank::Leaf, Vec::new()));
            let together = Arc::new(Together::default());
            for task in 0..4 {
                let list = list.clone();
                together.spawn(move || {
                    for n in 0..10 {
                        let mut list = lock_with_room(&list).unwrap();
                        assert!(list.len() < list.capacity());
                        list.push(10 * task + n);
                    }
                });
            }
            together.join();
            let mut list = list.lock();
            list.sort_unstable();
            assert!(list.iter().copied().eq(0..40));
        });
    }
}
