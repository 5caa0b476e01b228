//! Amaps as arrays: chunks of neighbouring slots, upwards and downwards from a base.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use nucleus::{
    OutOfMemory, Prot, frame,
    pmap::{self, Pending},
    sync::OnceArc,
};

use super::anon::{Slot, copy_of};
use super::hash::Hash;
use super::{Key, Refused, Slots, first_key, group, shared_chunk};
use crate::chunks::{Chunk, Chunks, NODE_BYTES, SLOTS, bits_of, drop_all};

/// The trees of an amap: 64^6 chunks exceed an address space.
const TREES: usize = 6;

/// A dense anonymous layer. The number of a chunk is that of its group of keys.
pub struct Array {
    /// The number of the group that has chunk 0.
    base: i64,
    /// Chunks from `base` on.
    above: Chunks<Slot, TREES>,
    /// Chunks before `base`, the nearest first.
    below: Chunks<Slot, TREES>,
    /// The entry is so large that a hash may be smaller.
    large: bool,
    /// The number of chunks; inexact while several are being made.
    made: AtomicUsize,
    /// Other amaps may share some of the chunks.
    shares: AtomicBool,
}

/// The keys of all chunks.
const ALL: Range<Key> = Key::MIN / 2..Key::MAX / 2;

/// The slot indexes of the part of `keys` that lies in chunk `number`.
fn slots_of(number: i64, keys: &Range<Key>) -> Range<usize> {
    let first = first_key(number);
    let start = (keys.start - first).clamp(0, SLOTS as i64) as usize;
    let end = (keys.end - first).clamp(0, SLOTS as i64) as usize;
    start..end.max(start)
}

impl Array {
    /// Returns an empty array. It is smallest if most keys are near and above `key`; `large`
    /// permits conversion to a hash.
    pub fn new(key: Key, large: bool) -> Array {
        Array {
            base: group(key),
            above: Chunks::new(),
            below: Chunks::new(),
            large,
            made: AtomicUsize::new(0),
            shares: AtomicBool::new(false),
        }
    }

    /// The memory of `chunks` scattered chunks, in bytes. The first one needs no tree.
    pub fn bytes(chunks: usize) -> usize {
        chunks * size_of::<Chunk<Slot>>() + chunks.saturating_sub(1) * NODE_BYTES
    }

    /// The side and index of a chunk: `Ok` at or above the base, `Err` below.
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

    pub fn part_of(&self, keys: Range<Key>) -> Option<(Arc<Chunk<Slot>>, u32)> {
        let number = group(keys.start);
        let chunk = match self.place(number) {
            Ok(i) => self.above.get_arc(i),
            Err(i) => self.below.get_arc(i),
        };
        let which = bits_of(slots_of(number, &keys));
        Some((chunk?, which))
    }

    pub fn for_each_chunk(&self, keys: Range<Key>, f: &mut dyn FnMut(Arc<Chunk<Slot>>, u32)) {
        self.walk(&keys, &mut |number, _| {
            let first = first_key(number).max(keys.start);
            if let Some((chunk, which)) = self.part_of(first..keys.end) {
                f(chunk, which);
            }
            true
        });
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

    pub fn lock_present(&self, key: Key) -> Option<Slots<'_>> {
        Some(Array::slots(self.chunk(group(key))?, key))
    }

    fn slots(chunk: &Chunk<Slot>, key: Key) -> Slots<'_> {
        let slots = chunk.lock();
        Slots {
            chunk,
            slots,
            shared: chunk.is_shared(),
            first: first_key(group(key)),
            keys: None,
        }
    }

    pub fn lock(&self, key: Key) -> Result<Slots<'_>, Refused> {
        self.lock_unless(key, || false)
    }

    /// As [`Amap::lock_unless`](super::Amap::lock_unless).
    #[inline]
    pub fn lock_unless(
        &self,
        key: Key,
        otherwise: impl FnOnce() -> bool,
    ) -> Result<Slots<'_>, Refused> {
        match self.chunk(group(key)) {
            Some(chunk) => Ok(Array::slots(chunk, key)),
            None if otherwise() => Err(Refused::Unwanted),
            None => self.lock_new(key),
        }
    }

    /// As [`lock`](Array::lock) for a key without a chunk.
    fn lock_new(&self, key: Key) -> Result<Slots<'_>, Refused> {
        if frame::is_scarce() {
            return Err(Refused::OutOfMemory);
        }
        let made = self.made.load(Relaxed);
        // The check visits all chunks, so it is made each time their number has doubled.
        if self.large && made > 1 && made.is_power_of_two() {
            return Err(Refused::Form);
        }
        let chunk = self.chunk_or_insert(group(key), Chunk::new);
        self.made.fetch_add(1, Relaxed);
        Ok(Array::slots(chunk.ok_or(Refused::OutOfMemory)?, key))
    }

    /// Makes the chunk of `key`, or an own copy of a shared one.
    pub fn make(&mut self, key: Key) {
        match self.chunk(group(key)) {
            None => {
                self.chunk_or_insert(group(key), Chunk::new);
                *self.made.get_mut() += 1;
            }
            Some(chunk) if chunk.is_shared() => self.own_one(group(key)),
            Some(_) => {}
        }
    }

    /// Returns whether other amaps share the chunk of `key`.
    pub fn is_shared(&self, key: Key) -> bool {
        self.chunk(group(key)).is_some_and(Chunk::is_shared)
    }

    /// As [`Amap::is_shared_in`](super::Amap::is_shared_in).
    pub fn is_shared_in(&self, keys: Range<Key>) -> bool {
        self.shares.load(Relaxed) && !self.walk(&keys, &mut |_, chunk| !chunk.is_shared())
    }

    /// Replaces a shared chunk by an own copy.
    fn own_one(&mut self, number: i64) {
        let place = match self.place(number) {
            Ok(i) => self.above.place_mut(i),
            Err(i) => self.below.place_mut(i),
        };
        if let Some(place) = place
            && let Some(chunk) = place.take()
        {
            place.get_or_insert(|| shared_chunk::own(chunk));
        }
    }

    /// Replaces all shared chunks by own copies.
    ///
    /// # Errors
    /// [`OutOfMemory`]; some were replaced.
    fn own_all(&mut self) -> Result<(), OutOfMemory> {
        let mut complete = true;
        if *self.shares.get_mut() {
            self.each_mut(&ALL, &mut |_, place| {
                if place.get().is_some_and(Chunk::is_shared) {
                    complete = complete && !frame::is_scarce();
                    if complete && let Some(chunk) = place.take() {
                        place.get_or_insert(|| shared_chunk::own(chunk));
                    }
                }
            });
        }
        match complete {
            true => Ok(()),
            false => Err(OutOfMemory),
        }
    }

    /// Fills an empty slot.
    pub fn put(&mut self, key: Key, slot: Slot) {
        self.make(key);
        if let Some(chunk) = self.chunk(group(key)) {
            chunk.lock()[(key - first_key(group(key))) as usize] = slot;
        }
    }

    /// Moves the anons to a hash if that is much smaller.
    pub fn take_as_hash(&mut self) -> Option<Hash> {
        let (mut anons, mut chunks) = (0, 0);
        self.walk(&ALL, &mut |_, chunk| {
            anons += chunk.lock().iter().filter(|slot| !slot.is_empty()).count();
            chunks += 1;
            true
        });
        *self.made.get_mut() = chunks;
        // At most half the size, so that an amap does not change its form back and forth.
        if Hash::bytes_for(anons) * 2 > Array::bytes(chunks) {
            return None;
        }
        let mut hash = Hash::for_keys(anons, &|f| self.for_each(ALL, &mut |key, _, _| f(key)))?;
        // Shared chunks are copied first: the conversion cannot fail halfway.
        self.own_all().ok()?;
        self.take(ALL, &mut |number, chunk| {
            let slots = shared_chunk::take(&chunk);
            chunk.leave();
            for (slot, key) in slots.into_iter().zip(first_key(number)..) {
                if !slot.is_empty() && hash.take_place(key) {
                    hash.put(key, slot);
                }
            }
        });
        Some(hash)
    }

    /// The index ranges, above and below the base, of the chunks with numbers from `start` to
    /// `end`, exclusive.
    fn places(&self, start: i64, end: i64) -> (Range<u64>, Range<u64>) {
        let base = self.base;
        let above = (start - base).max(0) as u64..(end - base).max(0) as u64;
        let below = (base - end).max(0) as u64..(base - start).max(0) as u64;
        (above, below)
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
        let (above, below) = self.places(group(keys.start), group(keys.end - 1) + 1);
        self.below
            .walk(below, &mut |i, chunk| f(base - 1 - i as i64, chunk))
            && self
                .above
                .walk(above, &mut |i, chunk| f(base + i as i64, chunk))
    }

    /// Calls `f` with the cell of each chunk that has slots in `keys`, and its number.
    fn each_mut(&mut self, keys: &Range<Key>, f: &mut dyn FnMut(i64, &mut OnceArc<Chunk<Slot>>)) {
        if keys.is_empty() {
            return;
        }
        let base = self.base;
        let (above, below) = self.places(group(keys.start), group(keys.end - 1) + 1);
        self.below
            .each_mut(&below, &mut |i, place| f(base - 1 - i as i64, place));
        self.above
            .each_mut(&above, &mut |i, place| f(base + i as i64, place));
    }

    /// Removes the chunks with these numbers.
    fn take(&mut self, numbers: Range<i64>, f: &mut dyn FnMut(i64, Arc<Chunk<Slot>>)) {
        let base = self.base;
        let (above, below) = self.places(numbers.start, numbers.end);
        self.below
            .take(below, &mut |i, chunk| f(base - 1 - i as i64, chunk));
        self.above
            .take(above, &mut |i, chunk| f(base + i as i64, chunk));
    }

    /// As [`Amap::copy`](super::Amap::copy): shares the chunks.
    pub fn copy(&self) -> Result<Array, OutOfMemory> {
        let copy = Array::new(first_key(self.base), self.large);
        for array in [self, &copy] {
            array.shares.store(true, Relaxed);
        }
        copy.made.store(self.made.load(Relaxed), Relaxed);
        let before = &mut shared_chunk::before_sharing;
        let complete = self.above.share_with(&copy.above, before)
            && self.below.share_with(&copy.below, before);
        if complete { Ok(copy) } else { Err(OutOfMemory) }
    }

    /// As [`Amap::copy_shared`](super::Amap::copy_shared).
    pub fn copy_shared(
        &self,
        keys: Range<Key>,
        pending: &mut Pending,
    ) -> Result<Array, OutOfMemory> {
        let copy = Array::new(first_key(self.base), false);
        let complete = self.walk(&keys, &mut |number, chunk| {
            if frame::is_scarce() {
                return false;
            }
            let mut from = chunk.lock();
            let part = slots_of(number, &keys);
            // Write-protects the pages before their anons get a second owner.
            for page in from[part.clone()].iter().filter_map(Slot::resident) {
                pmap::page_protect(&page, Prot::READ | Prot::EXEC, pending);
            }
            let mut slots: [Slot; SLOTS] = Default::default();
            for i in part {
                let copied = match from[i].sole_frame() {
                    Some(page) if page.has_users() => {
                        // A device may be writing it, for any of the programs. Before the bytes are
                        // copied the programs' own stores come to their end.
                        pending.flush();
                        copy_of(page).map(Slot::sole)
                    }
                    _ => Ok(from[i].share()),
                };
                let Ok(slot) = copied else {
                    return false;
                };
                slots[i] = slot;
            }
            if slots.iter().any(|slot| !slot.is_empty()) {
                copy.chunk_or_insert(number, || Chunk::from_slots(slots));
                copy.made.fetch_add(1, Relaxed);
            }
            true
        });
        if complete { Ok(copy) } else { Err(OutOfMemory) }
    }

    /// Fixes the form and copies shared chunks.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the form is not fixed.
    pub fn settle(&mut self) -> Result<(), OutOfMemory> {
        self.own_all()?;
        self.large = false;
        *self.shares.get_mut() = false;
        Ok(())
    }

    /// As [`Amap::split_off`](super::Amap::split_off).
    pub fn split_off(&mut self, key: Key, lower: bool) -> Array {
        let boundary = group(key);
        let within = (key - first_key(boundary)) as usize;
        let mut part = Array::new(if lower { key - 1 } else { key }, self.large);
        part.shares = AtomicBool::new(*self.shares.get_mut());
        if within != 0 {
            self.own_one(boundary);
        }
        if within != 0
            && let Some(chunk) = self.chunk(boundary)
        {
            let mut slots: [Slot; SLOTS] = Default::default();
            let moved = if lower { 0..within } else { within..SLOTS };
            slots[moved.clone()].swap_with_slice(&mut chunk.lock()[moved]);
            part.chunk_or_insert(boundary, || Chunk::from_slots(slots));
            *part.made.get_mut() += 1;
        }
        let adopt = &mut |number, chunk| part.adopt(number, chunk);
        match lower {
            true => self.take(ALL.start..boundary, adopt),
            false => self.take(boundary + i64::from(within != 0)..ALL.end, adopt),
        }
        let moved = *part.made.get_mut();
        *self.made.get_mut() = self.made.get_mut().saturating_sub(moved);
        part
    }

    /// Takes a chunk over. None of its keys is in use here, but the array may have a chunk of the
    /// same number.
    fn adopt(&mut self, number: i64, chunk: Arc<Chunk<Slot>>) {
        if self.chunk(number).is_none() {
            self.chunk_or_insert(number, || chunk);
            *self.made.get_mut() += 1;
            return;
        }
        let slots = shared_chunk::take(&chunk);
        chunk.leave();
        self.make(first_key(number));
        if let Some(there) = self.chunk(number) {
            for (to, from) in there.lock().iter_mut().zip(slots) {
                if !from.is_empty() {
                    *to = from;
                }
            }
        }
    }

    /// As [`Amap::absorb`](super::Amap::absorb).
    pub fn absorb(&mut self, mut other: Array) {
        *self.shares.get_mut() |= *other.shares.get_mut();
        other.take(ALL, &mut |number, chunk| {
            self.adopt(number, chunk);
        });
    }

    /// Drops the chunks whose keys are all in `keys`, if there are many; a program that discards a
    /// few pages will soon touch others. Shared chunks are dropped in any case, and those that are
    /// partly in `keys` are replaced by own copies.
    pub fn clear_out(&mut self, keys: Range<Key>) {
        const MANY: i64 = 16;
        let (start, end) = (group(keys.start + SLOTS as i64 - 1), group(keys.end));
        let mut count = 0;
        if *self.shares.get_mut() {
            self.each_mut(&keys, &mut |number, place| {
                if !place.get().is_some_and(Chunk::is_shared) {
                    return;
                }
                let Some(chunk) = place.take() else { return };
                if (start..end).contains(&number) {
                    chunk.leave();
                    count += 1;
                } else {
                    place.get_or_insert(|| shared_chunk::own(chunk));
                }
            });
        }
        if end - start >= MANY {
            self.take(start..end, &mut |_, chunk| {
                count += 1;
                chunk.leave();
            });
        }
        *self.made.get_mut() = self.made.get_mut().saturating_sub(count);
    }

    /// Drops the anons in `keys`, whose chunks are not shared.
    pub fn clear(&self, keys: Range<Key>) {
        self.walk(&keys, &mut |number, chunk| {
            let mut freed: [Slot; SLOTS] = Default::default();
            let range = slots_of(number, &keys);
            freed[range.clone()].swap_with_slice(&mut chunk.lock()[range]);
            drop_all(&mut freed);
            true
        });
    }

    pub fn for_each_part(&self, keys: Range<Key>, f: &mut dyn FnMut(Range<Key>, Slots<'_>)) {
        self.walk(&keys, &mut |number, chunk| {
            let first = first_key(number);
            let part = slots_of(number, &keys);
            let slots = Array::slots(chunk, first);
            f(first + part.start as i64..first + part.end as i64, slots);
            true
        });
    }

    pub fn is_sole_in(&self, keys: Range<Key>) -> bool {
        self.walk(&keys, &mut |number, chunk| {
            let is_own = chunk.owners() == 1;
            let slots = chunk.lock();
            let mut some = slots[slots_of(number, &keys)].iter();
            some.all(|slot| slot.is_empty() || is_own && slot.is_sole())
        })
    }

    pub fn for_each(&self, keys: Range<Key>, f: &mut dyn FnMut(Key, &Slot, u32)) {
        self.walk(&keys, &mut |number, chunk| {
            let slots = chunk.lock();
            for i in slots_of(number, &keys) {
                if !slots[i].is_empty() {
                    f(first_key(number) + i as i64, &slots[i], chunk.owners());
                }
            }
            true
        });
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if *self.shares.get_mut() {
            self.above.leave_all();
            self.below.leave_all();
        }
    }
}
