//! A list whose elements have numbers and keep their places.
//!
//! Memory comes in chunks that never move, so that an addition is short however long the list is,
//! and a lock around it is held briefly: the owner makes a chunk, and room for it in the table of
//! chunks, without the lock ([`Slots::add_with`]).

use alloc::{boxed::Box, vec::Vec};
use core::mem;

use crate::{OutOfMemory, try_vec};

/// Slots of the first chunk. Each further one has twice as many, up to [`LARGEST`].
const FIRST: usize = 2;
const LARGEST: usize = 64;
/// Chunks that are smaller than the largest ones, and their slots.
const SMALL_CHUNKS: usize = (LARGEST / FIRST).ilog2() as usize;
const SMALL_SLOTS: usize = LARGEST - FIRST;
/// Chunks in a row of the table: a table that grows in one piece would be copied under the owner's
/// lock. 2 KiB, the largest block that is a part of a frame.
const ROW: usize = 128;
/// The least room of a table.
const LEAST: usize = 4;

type Chunk<T> = Box<[Slot<T>]>;

/// The list.
pub struct Slots<T> {
    /// The first row, which grows to [`ROW`] chunks.
    first: Vec<Chunk<T>>,
    /// The further rows, all but the last of them full.
    rows: Vec<Vec<Chunk<T>>>,
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
pub struct Spare<T> {
    size: SpareSize,
    /// Taken by the list that uses the memory.
    chunk: Option<Chunk<T>>,
    /// A larger first row, or a further one; the one that was replaced afterwards.
    row: Vec<Chunk<T>>,
    /// A larger table of rows; the one that was replaced afterwards.
    rows: Vec<Vec<Chunk<T>>>,
}

/// What a [`Slots`] needs for more elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpareSize {
    slots: usize,
    /// Chunks of the larger or further row, 0 if there is room for the chunk.
    row: usize,
    /// Rows of the larger table of rows, 0 if it has room.
    rows: usize,
}

impl<T> Slots<T> {
    /// An empty list.
    pub const fn new() -> Slots<T> {
        Slots {
            first: Vec::new(),
            rows: Vec::new(),
            made: 0,
            free: 0,
            used: 0,
        }
    }

    /// Adds an element to a list that a lock protects. `add` takes the lock and calls
    /// [`add`](Slots::add) with its arguments; memory is made and freed without the lock. Returns
    /// what `add` does.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add_with(
        mut value: T,
        mut add: impl FnMut(T, &mut Option<Spare<T>>) -> Result<usize, (T, SpareSize)>,
    ) -> Result<usize, OutOfMemory> {
        let mut spare = None;
        loop {
            match add(value, &mut spare) {
                Ok(at) => return Ok(at),
                Err((again, size)) => {
                    value = again;
                    spare = Some(Spare::new(size)?);
                }
            }
        }
    }

    /// Adds an element, in memory that was made for it if there is no other room. Returns its
    /// number. Allocates and frees nothing: memory that the list no longer needs is left in
    /// `spare`, for the caller to drop without its lock.
    ///
    /// # Errors
    /// Without room and memory of the right size the element is returned, with that size.
    pub fn add(&mut self, value: T, spare: &mut Option<Spare<T>>) -> Result<usize, (T, SpareSize)> {
        if self.free >= self.made {
            let size = self.spare_size();
            let spare = spare.as_mut().filter(|spare| spare.size == size);
            match spare.and_then(|spare| Some((spare.chunk.take()?, spare))) {
                Some((chunk, spare)) => self.extend(chunk, spare),
                None => return Err((value, size)),
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

    /// The number of chunks.
    fn chunks(&self) -> usize {
        match self.rows.last() {
            None => self.first.len(),
            Some(last) => self.rows.len() * ROW + last.len(),
        }
    }

    fn spare_size(&self) -> SpareSize {
        let chunks = self.chunks();
        let mut size = SpareSize {
            slots: size_of_chunk(chunks),
            row: 0,
            rows: 0,
        };
        if chunks < ROW {
            if chunks == self.first.capacity() {
                size.row = (chunks * 2).clamp(LEAST, ROW);
            }
        } else if chunks.is_multiple_of(ROW) {
            size.row = ROW;
            if self.rows.len() == self.rows.capacity() {
                size.rows = (self.rows.len() * 2).max(LEAST);
            }
        }
        size
    }

    fn extend(&mut self, mut chunk: Chunk<T>, spare: &mut Spare<T>) {
        for (i, slot) in chunk.iter_mut().enumerate() {
            *slot = Slot::Free(self.made + i + 1);
        }
        self.free = self.made;
        self.made += chunk.len();
        if self.first.len() < ROW {
            if spare.size.row > 0 {
                replace_table(&mut self.first, &mut spare.row);
            }
            self.first.push(chunk);
            return;
        }
        if spare.size.rows > 0 {
            replace_table(&mut self.rows, &mut spare.rows);
        }
        if spare.size.row > 0 {
            self.rows.push(mem::take(&mut spare.row));
        }
        if let Some(last) = self.rows.last_mut() {
            last.push(chunk);
        }
    }

    fn slot(&mut self, at: usize) -> &mut Slot<T> {
        let (chunk, place) = place(at);
        let chunk = match chunk < ROW {
            true => &mut self.first[chunk],
            false => &mut self.rows[chunk / ROW - 1][chunk % ROW],
        };
        &mut chunk[place]
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
        let chunk = match chunk < ROW {
            true => &self.first[chunk],
            false => &self.rows[chunk / ROW - 1][chunk % ROW],
        };
        Some(match &chunk[place] {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        })
    }

    /// Returns the element with a number, if there is one.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        if at >= self.made {
            return None;
        }
        match self.slot(at) {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }

    /// Exchanges two elements; nothing happens without one of them.
    pub fn swap(&mut self, a: usize, b: usize) {
        let is_used = |at| matches!(self.get(at), Some(Some(_)));
        if a == b || !is_used(a) || !is_used(b) {
            return;
        }
        let first = mem::replace(self.slot(a), Slot::Free(0));
        let second = mem::replace(self.slot(b), first);
        *self.slot(a) = second;
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

impl<T> Spare<T> {
    /// Makes the memory that [`Slots::add`] wants.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    fn new(size: SpareSize) -> Result<Spare<T>, OutOfMemory> {
        let mut chunk = try_vec(size.slots)?;
        chunk.resize_with(size.slots, || Slot::Free(0));
        Ok(Spare {
            size,
            chunk: Some(chunk.into_boxed_slice()),
            row: try_vec(size.row)?,
            rows: try_vec(size.rows)?,
        })
    }
}

/// Moves all that is in `table` to `larger`, which has the room, and exchanges the two.
fn replace_table<T>(table: &mut Vec<T>, larger: &mut Vec<T>) {
    larger.append(table);
    mem::swap(table, larger);
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
                let at = Slots::add_with(step, |value, spare| slots.add(value, spare)).unwrap();
                assert!(model.insert(at, step).is_none());
            } else if let Some((&at, _)) = model.iter().nth((seed >> 40) as usize % 50) {
                assert_eq!(slots.remove(at), model.remove(&at));
                assert_eq!(slots.remove(at), None);
            }
            let (a, b) = ((seed >> 20) as usize % 50, (seed >> 50) as usize % 50);
            slots.swap(a, b);
            if a != b
                && let (Some(&x), Some(&y)) = (model.get(&a), model.get(&b))
            {
                model.insert(a, y);
                model.insert(b, x);
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
