//! A list whose elements have numbers and keep their places.
//!
//! Memory comes in chunks that never move, so that an addition is short however long the list is,
//! and a lock around it is held briefly: the owner makes a chunk without the lock.

use alloc::{boxed::Box, vec::Vec};
use core::mem;

use crate::{OutOfMemory, try_vec};

/// Slots of the first chunk. Each further one has twice as many, up to [`LARGEST`].
const FIRST: usize = 2;
const LARGEST: usize = 64;
/// Chunks that are smaller than the largest ones, and their slots.
const SMALL_CHUNKS: usize = (LARGEST / FIRST).ilog2() as usize;
const SMALL_SLOTS: usize = LARGEST - FIRST;

/// The list.
pub struct Slots<T> {
    chunks: Vec<Chunk<T>>,
    /// Slots in all chunks.
    made: usize,
    /// The first of the chain of free slots; `made` or more ends it.
    free: usize,
    used: usize,
}

enum Slot<T> {
    Used(T),
    /// Holds the next free one.
    Free(usize),
}

/// Memory for more elements of a [`Slots`].
pub struct Chunk<T>(Box<[Slot<T>]>);

impl<T> Slots<T> {
    /// An empty list.
    pub const fn new() -> Slots<T> {
        Slots {
            chunks: Vec::new(),
            made: 0,
            free: 0,
            used: 0,
        }
    }

    /// Adds an element, in a chunk that was made for it if there is no other room. Returns its
    /// number.
    ///
    /// # Errors
    /// Without room and chunk the element is returned, with the number of slots that the chunk
    /// should have.
    pub fn add(&mut self, value: T, chunk: &mut Option<Chunk<T>>) -> Result<usize, (T, usize)> {
        if self.free >= self.made {
            let wanted = size_of_chunk(self.chunks.len());
            let fits = |chunk: &mut Chunk<T>| chunk.0.len() == wanted;
            match chunk.take_if(fits) {
                Some(chunk) if self.chunks.try_reserve(1).is_ok() => self.extend(chunk),
                _ => return Err((value, wanted)),
            }
        }
        let at = self.free;
        let slot = self.slot(at);
        if let Slot::Free(next) = mem::replace(slot, Slot::Used(value)) {
            self.free = next;
        }
        self.used += 1;
        Ok(at)
    }

    fn extend(&mut self, mut chunk: Chunk<T>) {
        for (i, slot) in chunk.0.iter_mut().enumerate() {
            *slot = Slot::Free(self.made + i + 1);
        }
        self.free = self.made;
        self.made += chunk.0.len();
        self.chunks.push(chunk);
    }

    fn slot(&mut self, at: usize) -> &mut Slot<T> {
        let (chunk, place) = place(at);
        &mut self.chunks[chunk].0[place]
    }

    /// Removes an element, whose number may be another's from now on.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        if !matches!(self.get(at), Some(Some(_))) {
            return None;
        }
        let free = mem::replace(&mut self.free, at);
        let Slot::Used(value) = mem::replace(self.slot(at), Slot::Free(free)) else {
            return None;
        };
        self.used -= 1;
        Some(value)
    }

    /// Returns the element with a number, an inner `None` if it is free, and an outer one if it and
    /// all greater ones are no element's.
    pub fn get(&self, at: usize) -> Option<Option<&T>> {
        if at >= self.made {
            return None;
        }
        let (chunk, place) = place(at);
        Some(match &self.chunks[chunk].0[place] {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        })
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Returns whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots::new()
    }
}

impl<T> Chunk<T> {
    /// Makes a chunk of so many slots, as [`Slots::add`] wants.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(slots: usize) -> Result<Chunk<T>, OutOfMemory> {
        let mut chunk = try_vec(slots)?;
        chunk.resize_with(slots, || Slot::Free(0));
        Ok(Chunk(chunk.into_boxed_slice()))
    }
}

fn size_of_chunk(chunk: usize) -> usize {
    FIRST << chunk.min(SMALL_CHUNKS)
}

/// The chunk of a slot, and its place there.
fn place(at: usize) -> (usize, usize) {
    if at < SMALL_SLOTS {
        let chunk = ((at + FIRST) / FIRST).ilog2() as usize;
        return (chunk, at + FIRST - (FIRST << chunk));
    }
    let beyond = at - SMALL_SLOTS;
    (SMALL_CHUNKS + beyond / LARGEST, beyond % LARGEST)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn chunks_stand_one_behind_the_other() {
        let (mut chunk, mut start) = (0, 0);
        for at in 0..1000 {
            if at == start + size_of_chunk(chunk) {
                start = at;
                chunk += 1;
            }
            assert_eq!(place(at), (chunk, at - start), "{at}");
        }
    }

    #[test]
    fn elements_keep_their_numbers() {
        let mut slots = Slots::new();
        let mut model = BTreeMap::new();
        let mut seed = 1u64;
        for step in 0..20_000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let growing = step / 1000 % 2 == 0;
            if (seed >> 33) % 8 < if growing { 6 } else { 2 } {
                let mut chunk = None;
                let at = loop {
                    match slots.add(step, &mut chunk) {
                        Ok(at) => break at,
                        Err((value, size)) => {
                            assert_eq!(value, step);
                            assert!(chunk.is_none());
                            chunk = Some(Chunk::new(size).unwrap());
                        }
                    }
                };
                assert!(model.insert(at, step).is_none());
            } else if let Some((&at, _)) = model.iter().nth((seed >> 40) as usize % 50) {
                assert_eq!(slots.remove(at), model.remove(&at));
                assert_eq!(slots.remove(at), None);
            }
            assert_eq!(slots.len(), model.len());
        }
        let mut at = 0;
        while let Some(element) = slots.get(at) {
            assert_eq!(element, model.get(&at));
            at += 1;
        }
        assert!(model.keys().all(|&known| known < at));
    }
}
