//! Amaps as hashes: for large entries with few, scattered anons.
//!
//! ```text
//!   buckets (a power of two) ── bucket ── chunk: 32 slots behind one sleeping lock
//!                                      └─ keys: which key each slot belongs to
//! ```
//! All keys of a group share a bucket, so that its lock guards the same keys as the lock of an
//! array's chunk. A bucket is made with its first key. A full bucket makes all buckets split in
//! two, which takes the map's write lock. An emptied slot keeps its key until another key takes the
//! place.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};
use nucleus::{OutOfMemory, frame, sync::OnceBox};

use super::anon::Slot;
use super::array::Array;
use super::{Key, Refused, Slots, first_key, group, shared_chunk};
use crate::chunks::{Chunk, SLOTS, bits_of, slots_in};

/// The key of a place that was never taken.
const NO_KEY: Key = Key::MIN;

/// The number of places of one group from which it is worth checking whether an array would be
/// smaller.
const NEIGHBOURS: usize = 2;

/// The memory of a bucket, in bytes.
const BUCKET: usize = size_of::<Bucket>() + size_of::<Chunk<Slot>>();

/// A sparse anonymous layer.
pub struct Hash {
    /// A power of two.
    buckets: Vec<OnceBox<Bucket>>,
    /// Groups that ever had a key here: a bound on the chunks that an array would need.
    groups: AtomicUsize,
}

struct Bucket {
    /// [written with the chunk locked]
    keys: [AtomicI64; SLOTS],
    chunk: Arc<Chunk<Slot>>,
}

/// The place of `key`, if it has one.
#[inline]
pub fn find(keys: &[AtomicI64; SLOTS], key: Key) -> Option<usize> {
    keys.iter().position(|it| it.load(Relaxed) == key)
}

/// Returns the hash value of a group.
fn scatter(group: i64) -> usize {
    // Multiplication carries entropy upwards, so that the high bits are mixed best.
    let mixed = (group as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize
}

/// Returns whether a group falls into the first bucket of a hash that has grown so many times.
#[cfg(test)]
pub fn falls_together(group: i64, times: u32) -> bool {
    scatter(group) & ((1 << times) - 1) == 0
}

impl Bucket {
    fn new() -> Box<Bucket> {
        Box::new(Bucket {
            keys: [const { AtomicI64::new(NO_KEY) }; SLOTS],
            chunk: Chunk::new(),
        })
    }

    /// Returns whether it has an anon whose key satisfies `holds`.
    fn has(&self, holds: impl Fn(Key) -> bool) -> bool {
        let slots = self.chunk.lock();
        (0..SLOTS).any(|i| !slots[i].is_empty() && holds(self.key(i)))
    }

    /// Moves the anons whose keys satisfy `moves` to the same places of `to`, which are free.
    fn part(&self, to: &Bucket, moves: impl Fn(Key) -> bool) {
        let mut moved: [Slot; SLOTS] = Default::default();
        let mut from = self.chunk.lock();
        for i in 0..SLOTS {
            if moves(self.key(i)) {
                core::mem::swap(&mut moved[i], &mut from[i]);
                to.keys[i].store(self.key(i), Relaxed);
                self.keys[i].store(NO_KEY, Relaxed);
            }
        }
        drop(from);
        to.chunk.lock().swap_with_slice(&mut moved);
    }

    /// The number of anons in the group of `key`; `slots` are the bucket's.
    fn neighbours(&self, slots: &[Slot; SLOTS], key: Key) -> usize {
        (0..SLOTS)
            .filter(|&i| !slots[i].is_empty() && group(self.key(i)) == group(key))
            .count()
    }

    /// The number of anons.
    fn anons(&self) -> usize {
        let slots = self.chunk.lock();
        slots.iter().filter(|slot| !slot.is_empty()).count()
    }

    /// The place that `key` has or may take, that is, one that was never taken or is empty.
    fn place(&self, slots: &[Slot; SLOTS], key: Key) -> Option<usize> {
        find(&self.keys, key).or_else(|| slots.iter().position(Slot::is_empty))
    }

    /// A bit for each place that satisfies `holds`, by its number and key.
    fn bits(&self, holds: impl Fn(usize, Key) -> bool) -> u32 {
        bits_of((0..SLOTS).filter(|&i| holds(i, self.key(i))))
    }

    /// The key of place `i`.
    fn key(&self, i: usize) -> Key {
        self.keys[i].load(Relaxed)
    }

    /// Replaces a shared chunk by an own copy.
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
    /// Returns an empty hash; allocates nothing.
    pub fn new() -> Hash {
        Hash {
            buckets: Vec::new(),
            groups: AtomicUsize::new(0),
        }
    }

    /// Returns a hash of `count` buckets, none of which is made.
    fn with_buckets(count: usize) -> Result<Hash, OutOfMemory> {
        let mut buckets = nucleus::try_vec(count)?;
        buckets.resize_with(count, OnceBox::new);
        Ok(Hash {
            buckets,
            groups: AtomicUsize::new(0),
        })
    }

    /// The number of a key's bucket; the hash has buckets.
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

    fn slots(bucket: &Bucket, key: Key) -> Slots<'_> {
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
        Some((
            bucket.chunk.clone(),
            bucket.bits(|_, key| keys.contains(&key)),
        ))
    }

    pub fn for_each_chunk(&self, keys: Range<Key>, f: &mut dyn FnMut(Arc<Chunk<Slot>>, u32)) {
        for bucket in self.made() {
            match bucket.bits(|_, key| keys.contains(&key)) {
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

    /// A bound on its memory, in bytes.
    fn bytes(&self) -> usize {
        self.buckets.len() * BUCKET
    }

    /// A bound on the memory of an array with the same anons, in bytes.
    fn array_bytes(&self) -> usize {
        Array::bytes(self.groups.load(Relaxed))
    }

    /// Returns whether an array would be smaller, by an exact count.
    pub fn is_better_as_array(&mut self) -> bool {
        self.recount();
        *self.groups.get_mut() != 0 && self.array_bytes() <= self.bytes()
    }

    /// Counts the groups again.
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

    /// Returns whether the bucket of `key` has neither a place of its own nor a free one.
    fn lacks_place(&self, key: Key) -> bool {
        match self.bucket(key) {
            None => self.buckets.is_empty(),
            Some(bucket) => bucket.place(&bucket.chunk.lock(), key).is_none(),
        }
    }

    /// Returns whether more buckets are worth their memory: keys that were chosen to collide would
    /// ask for more and more.
    fn may_grow(&self) -> bool {
        const FEW: usize = 8;
        let anons: usize = self.made().map(Bucket::anons).sum();
        self.buckets.len() < FEW || anons * 8 >= self.buckets.len() * SLOTS
    }

    /// Doubles the buckets; each is split in two.
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
            |key: Key, number| key != NO_KEY && scatter(group(key)) & (2 * old - 1) != number;
        // The steps that may fail come first.
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

    /// Returns whether other amaps share the chunk of `key`.
    pub fn is_shared(&self, key: Key) -> bool {
        let bucket = self.bucket(key);
        bucket.is_some_and(|bucket| bucket.chunk.is_shared())
    }

    /// As [`Amap::is_shared_in`](super::Amap::is_shared_in).
    pub fn is_shared_in(&self, keys: Range<Key>) -> bool {
        let mut is_shared = false;
        self.walk(&keys, &mut |bucket, _| {
            is_shared |= bucket.chunk.is_shared()
        });
        is_shared
    }

    /// Replaces the chunk of `key` by an own copy if it is shared.
    pub fn own(&mut self, key: Key) {
        if !self.buckets.is_empty() {
            let number = self.number(key);
            if let Some(bucket) = self.buckets[number].get_mut() {
                bucket.own();
            }
        }
    }

    /// Replaces all shared chunks by own copies.
    ///
    /// # Errors
    /// [`OutOfMemory`]; some were replaced.
    fn own_all(&mut self) -> Result<(), OutOfMemory> {
        for bucket in self.buckets.iter_mut().filter_map(OnceBox::get_mut) {
            if bucket.chunk.is_shared() && frame::is_scarce() {
                return Err(OutOfMemory);
            }
            bucket.own();
        }
        Ok(())
    }

    /// Gives `key` a place if one is free.
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

    /// Gives `key` a place, and grows for it as far as that is worth the memory. Returns whether it
    /// has one now.
    pub fn make_place(&mut self, key: Key) -> bool {
        while self.lacks_place(key) && self.may_grow() && self.grow().is_ok() {}
        self.take_place(key)
    }

    /// Fills the place that `key` has.
    pub fn put(&mut self, key: Key, slot: Slot) {
        if let Some(bucket) = self.bucket(key)
            && let Some(place) = find(&bucket.keys, key)
        {
            bucket.chunk.lock()[place] = slot;
        }
    }

    /// Removes every anon and calls `f` with it.
    pub fn take_all(&mut self, f: &mut dyn FnMut(Key, Slot)) {
        for bucket in self.made() {
            for (key, slot) in bucket.keys.iter().zip(shared_chunk::take(&bucket.chunk)) {
                if !slot.is_empty() {
                    f(key.load(Relaxed), slot);
                }
            }
        }
    }

    /// Moves the anons to an array, which is smallest if most are near `key`. With `careful`,
    /// returns `None` without having moved any if memory became scarce.
    pub fn take_as_array(&mut self, key: Key, careful: bool) -> Option<Array> {
        if careful {
            // Shared chunks are copied first: the conversion cannot fail halfway.
            self.own_all().ok()?;
        }
        // The base lies where most anons are: the first group needs no tree.
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

    /// Returns a hash with room for the `count` keys that `each` enumerates, mostly of different
    /// groups; `None` if they do not fit without growing, or if memory is scarce.
    pub fn for_keys(count: usize, each: &dyn Fn(&mut dyn FnMut(Key))) -> Option<Hash> {
        let buckets = Hash::buckets_for(count);
        let hash = Hash::with_buckets(buckets).ok()?;
        // A place without an anon counts as free, so the keys are counted here.
        let mut taken = nucleus::try_filled(buckets, 0u8).ok()?;
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

    /// The number of buckets for `anons` anons, which take at most half of the places.
    fn buckets_for(anons: usize) -> usize {
        (anons * 2).div_ceil(SLOTS).next_power_of_two()
    }

    /// The usual memory of a hash with `anons` anons, in bytes.
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
            // The lock keeps keys from taking places meanwhile.
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
        let leaves = |it: Key| it != NO_KEY && (it < key) == lower;
        if let Some(part) = self.split_little_off(&leaves) {
            return Ok(part);
        }
        let mut part = Hash::with_buckets(self.buckets.len())?;
        // The steps that may fail come first.
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

    /// Splits off the anons whose keys satisfy `leaves` into as few buckets as they need. Returns
    /// `None`, with nothing changed, if these are no fewer buckets than here, or the keys do not
    /// fit.
    fn split_little_off(&mut self, leaves: &dyn Fn(Key) -> bool) -> Option<Hash> {
        // Collects the keys of one bucket at a time, since two chunks are never locked together.
        let leaving = |bucket: &Bucket| {
            let slots = bucket.chunk.lock();
            bucket.bits(|i, key| !slots[i].is_empty() && leaves(key))
        };
        let count = self.made().map(|it| leaving(it).count_ones()).sum::<u32>() as usize;
        if Hash::buckets_for(count) >= self.buckets.len() {
            return None;
        }
        let mut part = Hash::for_keys(count, &|f| {
            for bucket in self.made() {
                let which = leaving(bucket);
                slots_in(which).for_each(|i| f(bucket.key(i)));
            }
        })?;
        for bucket in self.made() {
            let which = leaving(bucket);
            let mut taken: [Slot; SLOTS] = Default::default();
            let mut slots = bucket.chunk.lock();
            for i in slots_in(which) {
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

    /// Calls `f` with each bucket that has slots of `keys`, and the part of `keys` to look for
    /// there.
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

    /// Replaces shared chunks with slots in `keys` by own copies, or drops them if all their slots
    /// are in `keys`.
    ///
    /// # Errors
    /// [`OutOfMemory`]; some were replaced.
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
                // Dropping the bucket leaves the chunk.
                drop(cell.take());
            } else if frame::is_scarce() {
                return Err(OutOfMemory);
            } else {
                bucket.own();
            }
        }
        Ok(())
    }

    /// Drops the anons in `keys`, whose chunks are not shared.
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
                // The place may have another key by now.
                if !slots.peek(key).is_empty() {
                    f(key..key + 1, slots);
                }
            }
        });
    }

    pub fn is_sole_in(&self, keys: Range<Key>) -> bool {
        let mut is_sole = true;
        self.for_each(keys, &mut |_, slot, owners| {
            is_sole &= owners == 1 && slot.is_sole();
        });
        is_sole
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
