//! Amaps as hashes: for large entries with few anons here and there.
//!
//! ```text
//!   buckets (a power of two) ── bucket ── chunk: 32 slots behind one sleeping lock
//!                                      └─ keys: which key each slot belongs to
//! ```
//! All keys of a group are in one bucket, so that its lock guards the same keys as that of an array's chunk. A bucket is made
//! with its first key. One that is full makes all of them part in two, which takes the map's write lock. A slot that
//! became empty keeps its key until another one wants its place.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use nucleus::{OutOfMemory, frame, sync::OnceBox};

use super::anon::Slot;
use super::array::Array;
use super::{Key, Refused, Slots, first_key, group, shared_chunk};
use crate::chunks::{Chunk, SLOTS};

/// The key of a place that was never taken.
const NOBODY: Key = Key::MIN;

/// Of a group's places in a bucket, how many are taken before it is worth to ask whether an array would be smaller.
const NEIGHBOURS: usize = 2;

/// What a bucket takes, in bytes.
const BUCKET: usize = size_of::<Bucket>() + size_of::<Chunk<Slot>>();

/// A sparse anonymous layer.
pub struct Hash {
    /// A power of two of them.
    buckets: Vec<OnceBox<Bucket>>,
    /// Groups that ever had a key here: so many chunks an array would have, at most.
    groups: AtomicUsize,
}

struct Bucket {
    /// Written with the chunk locked.
    keys: [AtomicI64; SLOTS],
    chunk: Arc<Chunk<Slot>>,
}

/// The place of `key`, if it has one.
#[inline]
pub fn find(keys: &[AtomicI64; SLOTS], key: Key) -> Option<usize> {
    keys.iter().position(|it| it.load(Relaxed) == key)
}

/// What a bucket's number is made of.
fn scatter(group: i64) -> usize {
    // Multiplication carries the low bits up; the high ones are the best mixed.
    let mixed = (group as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize
}

/// Whether a group falls into the first bucket of a hash that has grown so many times.
#[cfg(test)]
pub fn falls_together(group: i64, times: u32) -> bool {
    scatter(group) & ((1 << times) - 1) == 0
}

impl Bucket {
    fn new() -> Box<Bucket> {
        Box::new(Bucket {
            keys: [const { AtomicI64::new(NOBODY) }; SLOTS],
            chunk: Chunk::new(),
        })
    }

    /// Whether it has an anon with a key for which `holds`.
    fn has(&self, holds: impl Fn(Key) -> bool) -> bool {
        let slots = self.chunk.lock();
        (0..SLOTS).any(|i| !slots[i].is_empty() && holds(self.key(i)))
    }

    /// Moves the anons with keys for which `moves` holds to the same places of `to`, which are free.
    fn part(&self, to: &Bucket, moves: impl Fn(Key) -> bool) {
        let mut moved: [Slot; SLOTS] = Default::default();
        let mut from = self.chunk.lock();
        for i in 0..SLOTS {
            if moves(self.key(i)) {
                core::mem::swap(&mut moved[i], &mut from[i]);
                to.keys[i].store(self.key(i), Relaxed);
                self.keys[i].store(NOBODY, Relaxed);
            }
        }
        drop(from);
        to.chunk.lock().swap_with_slice(&mut moved);
    }

    /// Anons of the group of `key` in the bucket, whose slots are these.
    fn neighbours(&self, slots: &[Slot; SLOTS], key: Key) -> usize {
        (0..SLOTS)
            .filter(|&i| !slots[i].is_empty() && group(self.key(i)) == group(key))
            .count()
    }

    /// Anons in it.
    fn anons(&self) -> usize {
        let slots = self.chunk.lock();
        slots.iter().filter(|slot| !slot.is_empty()).count()
    }

    /// The place that `key` has or may take: never taken, or empty.
    fn place(&self, slots: &[Slot; SLOTS], key: Key) -> Option<usize> {
        find(&self.keys, key).or_else(|| slots.iter().position(Slot::is_empty))
    }

    /// The key of place `i`.
    fn key(&self, i: usize) -> Key {
        self.keys[i].load(Relaxed)
    }

    /// Makes its chunk this amap's own.
    fn own(&mut self) {
        if self.chunk.is_shared() {
            self.chunk = shared_chunk::own(self.chunk.clone());
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.chunk.leave();
    }
}

impl Hash {
    /// No anons. Nothing is allocated.
    pub fn new() -> Hash {
        Hash {
            buckets: Vec::new(),
            groups: AtomicUsize::new(0),
        }
    }

    /// As many buckets as `count` says, none of which is made.
    fn with_buckets(count: usize) -> Result<Hash, OutOfMemory> {
        let mut buckets = Vec::new();
        buckets.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        buckets.resize_with(count, OnceBox::new);
        Ok(Hash {
            buckets,
            groups: AtomicUsize::new(0),
        })
    }

    /// The number of the bucket that a key belongs to; there are some.
    fn number(&self, key: Key) -> usize {
        scatter(group(key)) & (self.buckets.len() - 1)
    }

    fn bucket(&self, key: Key) -> Option<&Bucket> {
        match self.buckets.is_empty() {
            true => None,
            false => self.buckets[self.number(key)].get(),
        }
    }

    /// The buckets that were made.
    fn made(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter().filter_map(OnceBox::get)
    }

    fn slots<'a>(bucket: &'a Bucket, key: Key) -> Slots<'a> {
        let slots = bucket.chunk.lock();
        Slots {
            chunk: &bucket.chunk,
            slots,
            shared: bucket.chunk.is_shared(),
            first: first_key(group(key)),
            keys: Some(&bucket.keys),
        }
    }

    pub fn part_of(&self, keys: Range<Key>) -> Option<(Arc<Chunk<Slot>>, u32)> {
        let bucket = self.bucket(keys.start)?;
        let its = (0..SLOTS).filter(|&i| keys.contains(&bucket.key(i)));
        Some((bucket.chunk.clone(), its.fold(0, |which, i| which | 1 << i)))
    }

    pub fn for_each_chunk(&self, keys: Range<Key>, f: &mut dyn FnMut(Arc<Chunk<Slot>>, u32)) {
        for bucket in self.made() {
            let its = (0..SLOTS).filter(|&i| keys.contains(&bucket.key(i)));
            match its.fold(0, |which, i| which | 1 << i) {
                0 => {}
                which => f(bucket.chunk.clone(), which),
            }
        }
    }

    pub fn lock_present(&self, key: Key) -> Option<Slots<'_>> {
        Some(Hash::slots(self.bucket(key)?, key))
    }

    pub fn lock(&self, key: Key) -> Result<Slots<'_>, Refused> {
        self.lock_unless(key, || false)
    }

    /// As [`Amap::lock_unless`](super::Amap::lock_unless).
    pub fn lock_unless(
        &self,
        key: Key,
        otherwise: impl FnOnce() -> bool,
    ) -> Result<Slots<'_>, Refused> {
        if self.buckets.is_empty() {
            return Err(match otherwise() {
                true => Refused::Unwanted,
                false => Refused::Form,
            });
        }
        let cell = &self.buckets[self.number(key)];
        let bucket = match cell.get() {
            Some(bucket) => bucket,
            None if frame::is_scarce() => return Err(Refused::OutOfMemory),
            None => cell.get_or_insert(Bucket::new),
        };
        let slots = Hash::slots(bucket, key);
        if slots.shared || find(&bucket.keys, key).is_some() {
            return Ok(slots);
        }
        if otherwise() {
            return Err(Refused::Unwanted);
        }
        let neighbours = bucket.neighbours(&slots.slots, key);
        if neighbours >= NEIGHBOURS && self.array_bytes() <= self.bytes() {
            return Err(Refused::Form);
        }
        let place = bucket.place(&slots.slots, key);
        bucket.keys[place.ok_or(Refused::Form)?].store(key, Relaxed);
        if neighbours == 0 {
            self.groups.fetch_add(1, Relaxed);
        }
        Ok(slots)
    }

    /// What it takes, at most.
    fn bytes(&self) -> usize {
        self.buckets.len() * BUCKET
    }

    /// What an array with the same anons would take, at most.
    fn array_bytes(&self) -> usize {
        Array::bytes(self.groups.load(Relaxed))
    }

    /// Whether an array would be smaller, by an exact count.
    pub fn is_better_as_array(&mut self) -> bool {
        self.recount();
        *self.groups.get_mut() != 0 && self.array_bytes() <= self.bytes()
    }

    /// Counts the groups anew.
    fn recount(&mut self) {
        let mut groups = 0;
        for bucket in self.made() {
            let slots = bucket.chunk.lock();
            let its = |i: usize| (!slots[i].is_empty()).then(|| group(bucket.key(i)));
            // A group counts with its first anon.
            let is_first =
                |&i: &usize| its(i).is_some() && (0..i).all(|before| its(before) != its(i));
            groups += (0..SLOTS).filter(is_first).count();
        }
        *self.groups.get_mut() = groups;
    }

    /// Whether the bucket of `key` has neither a place of its own nor a free one.
    fn lacks_place(&self, key: Key) -> bool {
        match self.bucket(key) {
            None => self.buckets.is_empty(),
            Some(bucket) => bucket.place(&bucket.chunk.lock(), key).is_none(),
        }
    }

    /// Whether more buckets are worth their memory: keys that were chosen to fall into one bucket would take more and more.
    fn may_grow(&self) -> bool {
        const FEW: usize = 8;
        let anons: usize = self.made().map(Bucket::anons).sum();
        self.buckets.len() < FEW || anons * 8 >= self.buckets.len() * SLOTS
    }

    /// Twice as many buckets; each parts in two.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the hash is as it was.
    fn grow(&mut self) -> Result<(), OutOfMemory> {
        self.own_all()?;
        let old = self.buckets.len();
        let mut more = Hash::with_buckets(old.max(1))?.buckets;
        self.buckets
            .try_reserve_exact(more.len())
            .map_err(|_| OutOfMemory)?;
        let moves =
            |key: Key, number| key != NOBODY && scatter(group(key)) & (2 * old - 1) != number;
        // First all that may fail.
        for (number, (from, to)) in self.buckets.iter().zip(&more).enumerate() {
            if from
                .get()
                .is_some_and(|from| from.has(|key| moves(key, number)))
            {
                if frame::is_scarce() {
                    return Err(OutOfMemory);
                }
                to.get_or_insert(Bucket::new);
            }
        }
        for (number, (from, to)) in self.buckets.iter().zip(&more).enumerate() {
            if let (Some(from), Some(to)) = (from.get(), to.get()) {
                from.part(to, |key| moves(key, number));
            }
        }
        self.buckets.append(&mut more);
        Ok(())
    }

    /// Whether others have the chunk of `key`, too.
    pub fn is_shared(&self, key: Key) -> bool {
        let bucket = self.bucket(key);
        bucket.is_some_and(|bucket| bucket.chunk.is_shared())
    }

    /// Makes the chunk of `key` this amap's own.
    pub fn own(&mut self, key: Key) {
        if !self.buckets.is_empty() {
            let number = self.number(key);
            if let Some(bucket) = self.buckets[number].get_mut() {
                bucket.own();
            }
        }
    }

    /// Makes all chunks this amap's own.
    ///
    /// # Errors
    /// [`OutOfMemory`]; some are.
    fn own_all(&mut self) -> Result<(), OutOfMemory> {
        for bucket in self.buckets.iter_mut().filter_map(OnceBox::get_mut) {
            if bucket.chunk.is_shared() && frame::is_scarce() {
                return Err(OutOfMemory);
            }
            bucket.own();
        }
        Ok(())
    }

    /// Gives `key` a place if there is one.
    pub fn take_place(&mut self, key: Key) -> bool {
        if self.buckets.is_empty() {
            return false;
        }
        self.own(key);
        let bucket = self.buckets[self.number(key)].get_or_insert(Bucket::new);
        let slots = bucket.chunk.lock();
        let Some(place) = bucket.place(&slots, key) else {
            return false;
        };
        bucket.keys[place].store(key, Relaxed);
        let first = bucket.neighbours(&slots, key) == 0;
        self.groups.fetch_add(usize::from(first), Relaxed);
        true
    }

    /// Gives `key` a place, and grows for it as far as that is worth its memory. Returns whether it has one now.
    pub fn make_place(&mut self, key: Key) -> bool {
        while self.lacks_place(key) && self.may_grow() && self.grow().is_ok() {}
        self.take_place(key)
    }

    /// Fills the place of `key`, which it has.
    pub fn put(&mut self, key: Key, slot: Slot) {
        if let Some(bucket) = self.bucket(key)
            && let Some(place) = find(&bucket.keys, key)
        {
            bucket.chunk.lock()[place] = slot;
        }
    }

    /// Calls `f` with every anon, taken out.
    pub fn take_all(&mut self, f: &mut dyn FnMut(Key, Slot)) {
        for bucket in self.made() {
            for (key, slot) in bucket.keys.iter().zip(shared_chunk::take(&bucket.chunk)) {
                if !slot.is_empty() {
                    f(key.load(Relaxed), slot);
                }
            }
        }
    }

    /// The same anons as an array, smallest if most are near `key`; this is empty then. `None` if memory became scarce, which
    /// matters to who is `careful`, and no anon was moved.
    pub fn take_as_array(&mut self, key: Key, careful: bool) -> Option<Array> {
        if careful {
            // What others have, too, would be counted anon by anon when it is too late to stop.
            self.own_all().ok()?;
        }
        // It begins where most anons are: no tree leads to the group of its base.
        let mut array = Array::new(key, true);
        for bucket in self.made() {
            let slots = bucket.chunk.lock();
            for i in (0..SLOTS).filter(|&i| !slots[i].is_empty()) {
                if careful && frame::is_scarce() {
                    return None;
                }
                array.make(bucket.key(i));
            }
        }
        self.take_all(&mut |key, slot| array.put(key, slot));
        Some(array)
    }

    /// A hash with room for the `count` keys that `each` calls a function with, in different groups as a rule; `None` if it would not
    /// have place for them without growing, or if memory is scarce.
    pub fn for_keys(count: usize, each: &dyn Fn(&mut dyn FnMut(Key))) -> Option<Hash> {
        let buckets = Hash::buckets_for(count);
        let hash = Hash::with_buckets(buckets).ok()?;
        // A place without an anon is free for the next one: so they are counted here.
        let mut taken: Vec<u8> = Vec::new();
        taken.try_reserve_exact(buckets).ok()?;
        taken.resize(buckets, 0);
        let mut fits = true;
        each(&mut |key| {
            let number = hash.number(key);
            taken[number] = taken[number].saturating_add(1);
            fits &= usize::from(taken[number]) <= SLOTS && !frame::is_scarce();
            if fits {
                hash.buckets[number].get_or_insert(Bucket::new);
            }
        });
        fits.then_some(hash)
    }

    /// Buckets of a hash with so many anons, half of whose places they take at most.
    fn buckets_for(anons: usize) -> usize {
        (anons * 2).div_ceil(SLOTS).next_power_of_two()
    }

    /// What a hash with so many anons takes, in bytes, as a rule.
    pub fn bytes_for(anons: usize) -> usize {
        Hash::buckets_for(anons) * BUCKET
    }

    /// As [`Amap::copy`](super::Amap::copy).
    pub fn copy(&self) -> Result<Hash, OutOfMemory> {
        let mut copy = Hash::with_buckets(self.buckets.len())?;
        copy.groups = AtomicUsize::new(self.groups.load(Relaxed));
        for (from, to) in self.buckets.iter().zip(&copy.buckets) {
            let Some(from) = from.get() else { continue };
            if frame::is_scarce() {
                return Err(OutOfMemory);
            }
            shared_chunk::before_sharing(&from.chunk);
            // Nobody gives a key a place while it is written down here.
            let slots = from.chunk.lock();
            from.chunk.share();
            to.get_or_insert(|| {
                Box::new(Bucket {
                    keys: core::array::from_fn(|i| AtomicI64::new(from.key(i))),
                    chunk: from.chunk.clone(),
                })
            });
            drop(slots);
        }
        Ok(copy)
    }

    /// As [`Amap::split_off`](super::Amap::split_off).
    pub fn split_off(&mut self, key: Key, lower: bool) -> Result<Hash, OutOfMemory> {
        self.own_all()?;
        let leaves = |it: Key| it != NOBODY && (it < key) == lower;
        if let Some(part) = self.split_little_off(&leaves) {
            return Ok(part);
        }
        let mut part = Hash::with_buckets(self.buckets.len())?;
        // First all that may fail.
        for (from, to) in self.buckets.iter().zip(&part.buckets) {
            if from.get().is_some_and(|from| from.has(leaves)) {
                if frame::is_scarce() {
                    return Err(OutOfMemory);
                }
                to.get_or_insert(Bucket::new);
            }
        }
        for (from, to) in self.buckets.iter().zip(&part.buckets) {
            if let (Some(from), Some(to)) = (from.get(), to.get()) {
                from.part(to, leaves);
            }
        }
        self.recount();
        part.recount();
        Ok(part)
    }

    /// The anons with keys for which `leaves` holds, in as many buckets as they need. `None` if these are as many as there are here, or if the
    /// keys don't fit into them: nothing has changed.
    fn split_little_off(&mut self, leaves: &dyn Fn(Key) -> bool) -> Option<Hash> {
        // A bucket's keys, one after the other: two chunks are never locked at a time.
        let leaving = |bucket: &Bucket| {
            let slots = bucket.chunk.lock();
            let leaves = |i: usize| !slots[i].is_empty() && leaves(bucket.key(i));
            (0..SLOTS)
                .filter(|&i| leaves(i))
                .fold(0u32, |which, i| which | 1 << i)
        };
        let count = self.made().map(|it| leaving(it).count_ones()).sum::<u32>() as usize;
        if Hash::buckets_for(count) >= self.buckets.len() {
            return None;
        }
        let mut part = Hash::for_keys(count, &|f| {
            for bucket in self.made() {
                let which = leaving(bucket);
                let its = (0..SLOTS).filter(|i| which >> i & 1 != 0);
                its.for_each(|i| f(bucket.key(i)));
            }
        })?;
        for bucket in self.made() {
            let which = leaving(bucket);
            let mut taken: [Slot; SLOTS] = Default::default();
            let mut slots = bucket.chunk.lock();
            for i in (0..SLOTS).filter(|i| which >> i & 1 != 0) {
                core::mem::swap(&mut taken[i], &mut slots[i]);
            }
            drop(slots);
            for (i, slot) in taken.into_iter().enumerate() {
                let key = bucket.key(i);
                if !slot.is_empty() && part.take_place(key) {
                    part.put(key, slot);
                }
            }
        }
        self.recount();
        Some(part)
    }

    /// Calls `f` with the buckets that have slots of `keys`, and the part of `keys` that it is to look at there.
    fn walk<'a>(&'a self, keys: &Range<Key>, f: &mut dyn FnMut(&'a Bucket, &Range<Key>)) {
        if keys.is_empty() || self.buckets.is_empty() {
            return;
        }
        let (first, last) = (group(keys.start), group(keys.end - 1));
        if ((last - first) as u64) < self.buckets.len() as u64 {
            for group in first..=last {
                let start = first_key(group).max(keys.start);
                if let Some(bucket) = self.bucket(start) {
                    f(bucket, &(start..first_key(group + 1).min(keys.end)));
                }
            }
        } else {
            for bucket in self.buckets.iter().filter_map(OnceBox::get) {
                f(bucket, keys);
            }
        }
    }

    /// Makes all chunks with slots in `keys` this amap's own, where it has them in common with others, or gives them up where all of their
    /// slots are among these.
    ///
    /// # Errors
    /// [`OutOfMemory`]; some are.
    pub fn leave_in(&mut self, keys: Range<Key>) -> Result<(), OutOfMemory> {
        for cell in &mut self.buckets {
            let Some(bucket) = cell.get_mut().filter(|it| it.chunk.is_shared()) else {
                continue;
            };
            let within = |i: usize| keys.contains(&bucket.key(i));
            if !(0..SLOTS).any(within) {
                continue;
            }
            if !bucket.has(|key| !keys.contains(&key)) {
                // Its end leaves the chunk.
                drop(cell.take());
            } else if frame::is_scarce() {
                return Err(OutOfMemory);
            } else {
                bucket.own();
            }
        }
        Ok(())
    }

    /// Drops the anons in `keys`, none of which others have, too.
    pub fn clear(&self, keys: Range<Key>) {
        self.walk(&keys, &mut |bucket, keys| {
            let mut freed: [Slot; SLOTS] = Default::default();
            let mut slots = bucket.chunk.lock();
            for i in 0..SLOTS {
                if keys.contains(&bucket.key(i)) {
                    core::mem::swap(&mut freed[i], &mut slots[i]);
                }
            }
            drop(slots);
        });
    }

    pub fn for_each_part(&self, keys: Range<Key>, f: &mut dyn FnMut(Range<Key>, Slots<'_>)) {
        self.walk(&keys, &mut |bucket, keys| {
            for i in 0..SLOTS {
                let key = bucket.key(i);
                if !keys.contains(&key) {
                    continue;
                }
                let slots = Hash::slots(bucket, key);
                // Its place may have been taken meanwhile.
                if !slots.peek(key).is_empty() {
                    f(key..key + 1, slots);
                }
            }
        });
    }

    pub fn for_each(&self, keys: Range<Key>, f: &mut dyn FnMut(Key, &Slot, u32)) {
        self.walk(&keys, &mut |bucket, keys| {
            let slots = bucket.chunk.lock();
            for (i, slot) in slots.iter().enumerate() {
                if !slot.is_empty() && keys.contains(&bucket.key(i)) {
                    f(bucket.key(i), slot, bucket.chunk.owners());
                }
            }
        });
    }
}
