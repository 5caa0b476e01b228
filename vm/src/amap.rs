//! Amaps: the anonymous layer of an entry (`uvm.txt` 5.2).
//!
//! An amap maps *keys* to anons. A key is a page number in the address space in which the amap was
//! made; an entry that was moved keeps its keys and remembers the distance ([`MapEntry::key`]).
//! An amap has no bounds of its own, so an entry that grows at either end needs no new one.
//! Callers see keys, slots and guards; that slots stand in chunks is known in this file only.
//!
//! Whole entries refer to an amap, never parts of one: an entry is clipped only after its amap has
//! been made its own, and its amap is then parted in two. So *each anon of an amap
//! lies inside each entry that refers to the amap*; an amap with one reference is reachable in
//! all its anons, and there is nothing like a page that is allocated and out of reach.
//!
//! [`MapEntry::key`]: crate::entry::MapEntry::key

use alloc::sync::Arc;
use core::ops::Range;
use nucleus::{OutOfMemory, frame, sync::MutexGuard};

use crate::anon::Slot;
use crate::chunks::{Chunk, Chunks, SLOTS, SLOTS_SHIFT};

/// A page number in the address space where the amap was made.
pub type Key = i64;

/// Trees of an amap: 64^6 chunks are more than an address space has.
const TREES: usize = 6;

/// An anonymous layer.
pub struct Amap {
    /// The chunk number that counts as 0.
    base: i64,
    /// Chunks from `base` on.
    above: Chunks<Slot, TREES>,
    /// Chunks before `base`, the nearest first.
    below: Chunks<Slot, TREES>,
}

/// The slots around a key, locked.
pub struct Slots<'a> {
    slots: MutexGuard<'a, [Slot; SLOTS]>,
    /// The key of the first slot.
    first: Key,
}

fn chunk_number(key: Key) -> i64 {
    key >> SLOTS_SHIFT
}

fn first_key(number: i64) -> Key {
    number << SLOTS_SHIFT
}

/// The slot indexes of the part of `keys` that lies in chunk `number`.
fn slots_of(number: i64, keys: &Range<Key>) -> Range<usize> {
    let first = first_key(number);
    let start = (keys.start - first).clamp(0, SLOTS as i64) as usize;
    let end = (keys.end - first).clamp(0, SLOTS as i64) as usize;
    start..end.max(start)
}

impl Amap {
    /// An empty amap; it is smallest if most keys are near and above `key`.
    pub fn new(key: Key) -> Amap {
        Amap {
            base: chunk_number(key),
            above: Chunks::new(),
            below: Chunks::new(),
        }
    }

    /// Side and index of a chunk: `Ok` above the base, `Err` below.
    fn place(&self, number: i64) -> Result<u64, u64> {
        let distance = number - self.base;
        match distance >= 0 {
            true => Ok(distance as u64),
            false => Err((-distance - 1) as u64),
        }
    }

    fn chunk(&self, number: i64) -> Option<&Chunk<Slot>> {
        match self.place(number) {
            Ok(i) => self.above.get(i),
            Err(i) => self.below.get(i),
        }
    }

    fn chunk_or_insert(
        &self,
        number: i64,
        make: impl FnOnce() -> Arc<Chunk<Slot>>,
    ) -> Option<&Chunk<Slot>> {
        match self.place(number) {
            Ok(i) => self.above.get_or_insert(i, make),
            Err(i) => self.below.get_or_insert(i, make),
        }
    }

    /// Locks the slots around `key` if any of them was ever in use.
    pub fn lock_present(&self, key: Key) -> Option<Slots<'_>> {
        let number = chunk_number(key);
        Some(Slots {
            slots: self.chunk(number)?.lock(),
            first: first_key(number),
        })
    }

    /// Locks the slots around `key`, making them if there are none.
    ///
    /// # Errors
    /// [`OutOfMemory`] if they would have to be made and the kernel's memory is scarce.
    pub fn lock(&self, key: Key) -> Result<Slots<'_>, OutOfMemory> {
        let number = chunk_number(key);
        let chunk = match self.chunk(number) {
            Some(chunk) => chunk,
            None if frame::is_scarce() => return Err(OutOfMemory),
            None => self
                .chunk_or_insert(number, Chunk::new)
                .ok_or(OutOfMemory)?,
        };
        Ok(Slots {
            slots: chunk.lock(),
            first: first_key(number),
        })
    }

    /// Calls `f` for each chunk that has slots in `keys`, with its number, until it returns false.
    fn walk<'a>(
        &'a self,
        keys: &Range<Key>,
        f: &mut dyn FnMut(i64, &'a Chunk<Slot>) -> bool,
    ) -> bool {
        if keys.is_empty() {
            return true;
        }
        let base = self.base;
        let (start, end) = (chunk_number(keys.start), chunk_number(keys.end - 1) + 1);
        let above = (start - base).max(0) as u64..(end - base).max(0) as u64;
        let below = (base - end).max(0) as u64..(base - start).max(0) as u64;
        self.below
            .walk(below, &mut |i, chunk| f(base - 1 - i as i64, chunk))
            && self
                .above
                .walk(above, &mut |i, chunk| f(base + i as i64, chunk))
    }

    /// Takes the chunks with numbers from `start` on out.
    fn take_from(&mut self, start: i64, f: &mut dyn FnMut(i64, Arc<Chunk<Slot>>)) {
        let base = self.base;
        if start < base {
            self.below.take(0..(base - start) as u64, &mut |i, chunk| {
                f(base - 1 - i as i64, chunk)
            });
        }
        self.above
            .take((start - base).max(0) as u64..u64::MAX, &mut |i, chunk| {
                f(base + i as i64, chunk)
            });
    }

    /// Takes the chunks with numbers before `end` out.
    fn take_before(&mut self, end: i64, f: &mut dyn FnMut(i64, Arc<Chunk<Slot>>)) {
        let base = self.base;
        self.below
            .take((base - end).max(0) as u64..u64::MAX, &mut |i, chunk| {
                f(base - 1 - i as i64, chunk)
            });
        if end > base {
            self.above.take(0..(end - base) as u64, &mut |i, chunk| {
                f(base + i as i64, chunk)
            });
        }
    }

    /// A second amap with a reference to each anon of this one: what clearing needs-copy means.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the kernel's memory becomes scarce; this amap is as it was.
    pub fn copy(&self) -> Result<Amap, OutOfMemory> {
        let copy = Amap::new(first_key(self.base));
        let complete = self.walk(&(Key::MIN / 2..Key::MAX / 2), &mut |number, chunk| {
            if frame::is_scarce() {
                return false;
            }
            let mut from = chunk.lock();
            if from.iter().any(|slot| !slot.is_empty()) {
                let slots = core::array::from_fn(|i| from[i].share());
                copy.chunk_or_insert(number, || Chunk::from_slots(slots));
            }
            true
        });
        if complete { Ok(copy) } else { Err(OutOfMemory) }
    }

    /// Parts the amap: what comes back has the anons from `key` on, or with `lower` those before it. It is made of
    /// what is taken out, so the smaller part is the one to ask for.
    pub fn split_off(&mut self, key: Key, lower: bool) -> Amap {
        let boundary = chunk_number(key);
        let within = (key - first_key(boundary)) as usize;
        let mut part = Amap::new(if lower { key - 1 } else { key });
        if within != 0 {
            if let Some(chunk) = self.chunk(boundary) {
                let mut slots: [Slot; SLOTS] = Default::default();
                let moved = if lower { 0..within } else { within..SLOTS };
                slots[moved.clone()].swap_with_slice(&mut chunk.lock()[moved]);
                part.chunk_or_insert(boundary, || Chunk::from_slots(slots));
            }
        }
        let adopt = &mut |number, chunk| part.adopt(number, chunk);
        match lower {
            true => self.take_before(boundary, adopt),
            false => self.take_from(boundary + i64::from(within != 0), adopt),
        }
        part
    }

    /// Takes a chunk over; none of its keys is in use here, but some of the same chunk may be.
    fn adopt(&mut self, number: i64, chunk: Arc<Chunk<Slot>>) {
        match self.chunk(number) {
            None => {
                self.chunk_or_insert(number, || chunk);
            }
            Some(there) => {
                let slots = chunk.take();
                for (to, from) in there.lock().iter_mut().zip(slots) {
                    if !from.is_empty() {
                        *to = from;
                    }
                }
            }
        }
    }

    /// Takes over all anons of `other`, none of which has a key that is in use here. The cost is `other`'s size.
    pub fn absorb(&mut self, mut other: Amap) {
        other.take_from(i64::MIN / 2, &mut |number, chunk| {
            self.adopt(number, chunk);
        });
    }

    /// Drops the anons in `keys`. Every translation made through them has been flushed.
    pub fn clear(&self, keys: Range<Key>) {
        self.walk(&keys, &mut |number, chunk| {
            let mut freed: [Slot; SLOTS] = Default::default();
            let range = slots_of(number, &keys);
            freed[range.clone()].swap_with_slice(&mut chunk.lock()[range]);
            true
        });
    }

    /// Calls `f` with the slots of each part of `keys` where any was ever in use, locked, and the keys of that part.
    pub fn for_each_part(&self, keys: Range<Key>, f: &mut dyn FnMut(Range<Key>, Slots<'_>)) {
        self.walk(&keys, &mut |number, chunk| {
            let first = first_key(number);
            let part = slots_of(number, &keys);
            let slots = Slots {
                slots: chunk.lock(),
                first,
            };
            f(first + part.start as i64..first + part.end as i64, slots);
            true
        });
    }

    /// Calls `f` with the key and slot of each anon in `keys`, in any order, its chunk locked.
    pub fn for_each(&self, keys: Range<Key>, f: &mut dyn FnMut(Key, &Slot)) {
        self.walk(&keys, &mut |number, chunk| {
            let slots = chunk.lock();
            for i in slots_of(number, &keys) {
                if !slots[i].is_empty() {
                    f(first_key(number) + i as i64, &slots[i]);
                }
            }
            true
        });
    }

    /// Anons in `keys`.
    pub fn count(&self, keys: Range<Key>) -> usize {
        let mut count = 0;
        self.for_each(keys, &mut |_, _| count += 1);
        count
    }
}

impl Slots<'_> {
    /// How many slots there are behind that of `key`, which is among these.
    pub fn after(&self, key: Key) -> usize {
        (self.first + SLOTS as i64 - 1 - key) as usize
    }

    /// Whether the slot of `key` is among these.
    pub fn holds(&self, key: Key) -> bool {
        (self.first..self.first + SLOTS as i64).contains(&key)
    }

    /// The slot of `key`, which is among these, to look at.
    pub fn peek(&self, key: Key) -> &Slot {
        &self.slots[(key - self.first) as usize]
    }

    /// The slot of `key`, which is among these.
    pub fn get(&mut self, key: Key) -> &mut Slot {
        &mut self.slots[(key - self.first) as usize]
    }
}
