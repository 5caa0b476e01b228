//! Amaps: the anonymous layer of an entry (`uvm.txt` 5.2).
//!
//! - `anon`: a page of anonymous memory, its reference count and where it is.
//! - `array`, `hash`: the two representations, hidden behind [`Amap`] (`uvm.txt` 5.2, 5.3).
//! - `shared_chunk`: how the copy of an amap shares chunks of slots until they are changed.
//! - `shared_amap`: amaps that several address spaces write (`minherit`).
//!
//! An amap maps *keys* to anons. A key is a page number in the address space in which the amap was
//! made; an entry that was moved keeps its keys and stores the distance (`MapEntry::key`). An amap
//! has no bounds, so an entry that grows at either end keeps its amap.
//!
//! ```text
//!   array   chunks of 32 neighbouring slots in trees    dense: 16 bytes a page, found by loads
//!   hash    chunks of any 32 slots, each with its key   sparse: 33 bytes a page if full, no trees
//! ```
//! The amap of a large entry starts as a hash and becomes an array as soon as that is smaller, at
//! the earliest with the third neighbouring page; the array of a large entry that turns out sparse
//! becomes a hash. All others stay arrays. The form changes with the map write-locked:
//! [`Amap::lock`] reports when it is time, and the rest of the fault path does not depend on the
//! form.
//!
//! Entries refer to whole amaps: before an entry is clipped its amap becomes its own, and is then
//! split. So *each anon of an amap lies inside each entry that refers to the amap*. All anons of an
//! amap with one reference are reachable, and no page is ever allocated but out of reach. For amaps
//! that several address spaces write see `shared_amap`.

pub(crate) mod anon;
mod array;
mod hash;
pub(crate) mod shared_amap;
mod shared_chunk;
#[cfg(test)]
mod tests;

use alloc::{boxed::Box, sync::Arc};
use core::ops::Range;
use core::sync::atomic::{AtomicI64, AtomicU8, Ordering::Relaxed};
use nucleus::{
    Frame, OutOfMemory, frame,
    pmap::Pending,
    sync::{MutexGuard, OnceBox},
};

use crate::chunks::{Chunk, SLOTS, SLOTS_SHIFT, SlotArray, drop_all, drop_noting};
use crate::counters::Counter;
use array::Array;
use hash::Hash;
use shared_amap::Sharers;

pub(crate) use anon::{Resident, Slot, copy_of};
pub(crate) use shared_amap::Share;

/// A page number in the address space where the amap was made.
pub type Key = i64;

/// Entries of so many pages (64 MiB) count as large: their amaps may be sparse. The trees of
/// smaller arrays have two levels at most and cost little.
const LARGE_PAGES: usize = 16 << 10;

/// The representations that amaps use, to compare them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AmapForm {
    /// Arrays, and hashes for large sparse entries.
    Hybrid,
    /// Arrays only, as in the paper's system.
    Array,
    /// Hashes for all sparse amaps, be they small or large.
    Sparse,
}

static FORM: AtomicU8 = AtomicU8::new(AmapForm::Hybrid as u8);

/// Sets the representations of amaps made from now on.
pub fn set_amap_form(form: AmapForm) {
    FORM.store(form as u8, Relaxed);
}

/// Returns the representations of amaps made now.
pub fn amap_form() -> AmapForm {
    match FORM.load(Relaxed) {
        1 => AmapForm::Array,
        2 => AmapForm::Sparse,
        _ => AmapForm::Hybrid,
    }
}

/// An anonymous layer.
pub struct Amap {
    form: Form,
    /// The parts of its entries, if it was ever shared.
    sharers: OnceBox<Sharers>,
}

enum Form {
    Array(Array),
    Hash(Hash),
}

/// Evaluates an expression that is written the same for both forms.
macro_rules! in_form {
    ($form:expr, $name:ident => $call:expr) => {
        match $form {
            Form::Array($name) => $call,
            Form::Hash($name) => $call,
        }
    };
}

/// Why the slots of a key cannot be locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// They do not exist, and the kernel's memory is scarce.
    OutOfMemory,
    /// The amap should have another form, or more buckets: [`Amap::prepare`].
    Form,
    /// They do not exist, and the caller prefers something else.
    Unwanted,
}

/// The slots around a key, locked.
pub struct Slots<'a> {
    chunk: &'a Chunk<Slot>,
    slots: MutexGuard<'a, SlotArray<Slot>>,
    /// Other amaps share them: then no slot is filled or emptied, and no page in them is written in
    /// place. While the map is locked, sharing may end but not begin.
    pub shared: bool,
    /// The first of the 32 neighbouring keys whose slots are locked.
    first: Key,
    /// In a hash: the key of each slot [written with the slots locked].
    keys: Option<&'a [AtomicI64; SLOTS]>,
}

/// The group of a key: 32 neighbouring keys, those of one chunk of an array.
fn group(key: Key) -> i64 {
    key >> SLOTS_SHIFT
}

/// The first key of a group.
fn first_key(group: i64) -> Key {
    group << SLOTS_SHIFT
}

impl Amap {
    /// Returns an empty amap for an entry of `pages` pages. It is smallest if most keys are near
    /// and above `key`.
    pub fn new(key: Key, pages: usize) -> Amap {
        Amap::with_form(amap_form(), key, pages)
    }

    fn with_form(form: AmapForm, key: Key, pages: usize) -> Amap {
        let large = match form {
            AmapForm::Hybrid => pages >= LARGE_PAGES,
            AmapForm::Array => false,
            AmapForm::Sparse => true,
        };
        Amap {
            form: match large {
                true => Form::Hash(Hash::new()),
                false => Form::Array(Array::new(key, false)),
            },
            sharers: OnceBox::new(),
        }
    }

    /// Locks the slots around `key` if any of them may be in use.
    pub fn lock_present(&self, key: Key) -> Option<Slots<'_>> {
        in_form!(&self.form, form => form.lock_present(key))
    }

    /// Returns the chunk with the slots of `keys`, which lie in one group, and a bit for each of
    /// these slots. Nothing is locked, so the slots may get other keys.
    pub fn part_of(&self, keys: Range<Key>) -> Option<(Arc<Chunk<Slot>>, u32)> {
        in_form!(&self.form, form => form.part_of(keys))
    }

    /// Calls `f` with each chunk that has slots of `keys`, and a bit for each of these slots.
    /// Nothing is locked, as for [`part_of`](Amap::part_of).
    pub fn for_each_chunk(&self, keys: Range<Key>, f: &mut dyn FnMut(Arc<Chunk<Slot>>, u32)) {
        in_form!(&self.form, form => form.for_each_chunk(keys, f))
    }

    /// Drops the pages of `keys`, whose program ends: lent ones are counted as such.
    pub fn end(&self, keys: Range<Key>) {
        self.for_each_chunk(keys, &mut |chunk, _| {
            if !chunk.is_shared() {
                let note = || Counter::loans_broken_by_exit.add(1);
                drop_noting(&mut chunk.lock()[..], &note);
            }
        });
    }

    /// Locks the slots around `key` and makes sure that `key` has one, unless the slots are
    /// [shared](Slots::are_shared); a caller that changes such a slot calls
    /// [`prepare`](Amap::prepare) first.
    ///
    /// # Errors
    /// [`Refused`].
    #[inline(always)]
    pub fn lock(&self, key: Key) -> Result<Slots<'_>, Refused> {
        in_form!(&self.form, form => form.lock(key))
    }

    /// As [`lock`](Amap::lock), but where the slot does not exist yet, `otherwise` decides whether
    /// to refuse. It is called with slots locked.
    ///
    /// # Errors
    /// [`Refused`].
    #[inline]
    pub fn lock_unless(
        &self,
        key: Key,
        otherwise: impl FnOnce() -> bool,
    ) -> Result<Slots<'_>, Refused> {
        in_form!(&self.form, form => form.lock_unless(key, otherwise))
    }

    /// Makes slots for all of `keys`, most of which will be filled at once.
    ///
    /// # Errors
    /// [`OutOfMemory`]; no anon was touched.
    pub fn make_all(&mut self, keys: Range<Key>) -> Result<(), OutOfMemory> {
        if let Form::Hash(hash) = &mut self.form {
            self.form = Form::Array(hash.take_as_array(keys.start, true).ok_or(OutOfMemory)?);
        }
        if let Form::Array(array) = &mut self.form {
            for number in group(keys.start)..=group(keys.end - 1) {
                if frame::is_scarce() {
                    return Err(OutOfMemory);
                }
                array.make(first_key(number));
            }
        }
        Ok(())
    }

    /// Fills the empty slots of `keys`, which [exist](Amap::make_all), with sole anons of these
    /// frames.
    pub fn fill(&mut self, keys: Range<Key>, mut frames: impl Iterator<Item = Frame>) {
        let mut key = keys.start;
        while key < keys.end
            && let Some(mut slots) = self.lock_present(key)
        {
            let places = slots.from(key);
            key += places.len() as Key;
            for (slot, frame) in places.iter_mut().zip(&mut frames) {
                slot.fill(frame);
            }
        }
    }

    /// Makes own copies of shared slots around `key`, and changes the form if [`lock`](Amap::lock)
    /// refused `key` for its sake. The next attempt succeeds, unless another key intervenes.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the amap is as it was.
    pub fn prepare(&mut self, key: Key) -> Result<(), OutOfMemory> {
        let shared = in_form!(&self.form, form => form.is_shared(key));
        if shared {
            if frame::is_scarce() {
                return Err(OutOfMemory);
            }
            match &mut self.form {
                Form::Array(array) => array.make(key),
                Form::Hash(hash) => hash.own(key),
            }
        }
        match self.lock(key).map(drop) {
            Ok(()) => return Ok(()),
            Err(Refused::OutOfMemory) => return Err(OutOfMemory),
            Err(Refused::Form | Refused::Unwanted) => {}
        }
        match &mut self.form {
            Form::Array(array) => match array.take_as_hash() {
                Some(mut hash) => {
                    hash.make_place(key);
                    self.form = Form::Hash(hash);
                }
                None => array.make(key),
            },
            Form::Hash(hash) => {
                if hash.is_better_as_array() || !hash.make_place(key) {
                    let mut array = hash.take_as_array(key, true).ok_or(OutOfMemory)?;
                    array.make(key);
                    self.form = Form::Array(array);
                }
            }
        }
        Ok(())
    }

    /// Returns a second amap with a reference to each anon: clears needs-copy. The two share their
    /// chunks, so the cost is proportional to the number of chunks.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the kernel's memory becomes scarce; this amap is as it was.
    pub fn copy(&self) -> Result<Amap, OutOfMemory> {
        let form = match &self.form {
            Form::Array(array) => Form::Array(array.copy()?),
            Form::Hash(hash) => Form::Hash(hash.copy()?),
        };
        Ok(Amap::of(form))
    }

    /// Returns a second amap with the anons in `keys`, for a child that gets a copy of memory that
    /// several address spaces write. All lose the right to write these pages once `pending` is
    /// flushed.
    ///
    /// # Errors
    /// As for [`copy`](Amap::copy); some pages may have lost the right to be written.
    pub fn copy_shared(
        &self,
        keys: Range<Key>,
        pending: &mut Pending,
    ) -> Result<Amap, OutOfMemory> {
        let form = match &self.form {
            Form::Array(array) => Form::Array(array.copy_shared(keys, pending)?),
            // A shared amap is an array.
            Form::Hash(hash) => Form::Hash(hash.copy()?),
        };
        Ok(Amap::of(form))
    }

    /// Prepares sharing: from now on the amap changes while only one of several maps is
    /// write-locked.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the amap is as it was.
    pub fn make_shareable(&mut self, key: Key) -> Result<(), OutOfMemory> {
        if let Form::Hash(hash) = &mut self.form {
            self.form = Form::Array(hash.take_as_array(key, true).ok_or(OutOfMemory)?);
        }
        match &mut self.form {
            Form::Array(array) => array.settle(),
            Form::Hash(_) => Ok(()),
        }
    }

    /// The parts of the entries that share it.
    pub fn sharers(&self) -> &Sharers {
        self.sharers.get_or_insert(|| Box::new(Sharers::new()))
    }

    fn of(form: Form) -> Amap {
        Amap {
            form,
            sharers: OnceBox::new(),
        }
    }

    /// Splits the amap: returns the anons from `key` on, or with `lower` those before it. The cost
    /// is proportional to the returned part, so callers ask for the smaller one.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the amap is as it was.
    pub fn split_off(&mut self, key: Key, lower: bool) -> Result<Amap, OutOfMemory> {
        let form = match &mut self.form {
            Form::Array(array) => Form::Array(array.split_off(key, lower)),
            Form::Hash(hash) => Form::Hash(hash.split_off(key, lower)?),
        };
        Ok(Amap::of(form))
    }

    /// Moves all anons of `other` here; none of their keys is in use. The cost is usually
    /// proportional to `other`.
    pub fn absorb(&mut self, mut other: Amap) {
        if matches!(self.form, Form::Hash(_)) && matches!(other.form, Form::Array(_)) {
            // An array takes any number of anons.
            core::mem::swap(self, &mut other);
        }
        match (&mut self.form, other.form) {
            (Form::Array(ours), Form::Array(theirs)) => ours.absorb(theirs),
            (_, Form::Array(_)) => {}
            (_, Form::Hash(mut theirs)) => theirs.take_all(&mut |key, slot| self.put(key, slot)),
        }
    }

    /// Fills an empty slot.
    fn put(&mut self, key: Key, slot: Slot) {
        if let Form::Hash(hash) = &mut self.form {
            if hash.make_place(key) {
                hash.put(key, slot);
                return;
            }
            if let Some(array) = hash.take_as_array(key, false) {
                self.form = Form::Array(array);
            }
        }
        if let Form::Array(array) = &mut self.form {
            array.put(key, slot);
        }
    }

    /// Drops the anons in `keys`, whose slots are not shared. Every translation made through them
    /// has been flushed.
    pub fn clear(&self, keys: Range<Key>) {
        in_form!(&self.form, form => form.clear(keys))
    }

    /// Drops the anons in `keys`, whose slots are not shared. Calls `unmap` with the keys of each
    /// part while its slots are locked: when it returns, every translation made through them has
    /// been flushed. The amap belongs to one entry, and the map is read-locked.
    pub fn discard(&self, keys: Range<Key>, unmap: &mut dyn FnMut(Range<Key>)) {
        self.for_each_part(keys, &mut |keys, mut slots| {
            unmap(keys.clone());
            let mut taken = slots.take(keys);
            drop(slots);
            drop_all(&mut taken);
        });
    }

    /// Returns in how many parts [`discard`](Amap::discard) drops `keys`, at most.
    pub fn parts_in(&self, keys: &Range<Key>) -> usize {
        match &self.form {
            Form::Array(_) => (group(keys.end - 1) - group(keys.start) + 1) as usize,
            Form::Hash(_) => (keys.end - keys.start) as usize,
        }
    }

    /// Returns whether other amaps share any of the slots of `keys`.
    pub fn is_shared_in(&self, keys: Range<Key>) -> bool {
        in_form!(&self.form, form => form.is_shared_in(keys))
    }

    /// As [`clear`](Amap::clear) for an amap with one reference, with or without shared chunks:
    /// also frees the slots of large parts.
    ///
    /// # Errors
    /// [`OutOfMemory`]; only shared anons were dropped.
    pub fn clear_out(&mut self, keys: Range<Key>) -> Result<(), OutOfMemory> {
        match &mut self.form {
            Form::Array(array) => array.clear_out(keys.clone()),
            Form::Hash(hash) => hash.leave_in(keys.clone())?,
        }
        self.clear(keys);
        Ok(())
    }

    /// Calls `f` with the locked slots of each part of `keys` that was ever in use, and the keys of
    /// that part.
    pub fn for_each_part(&self, keys: Range<Key>, f: &mut dyn FnMut(Range<Key>, Slots<'_>)) {
        in_form!(&self.form, form => form.for_each_part(keys, f))
    }

    /// Calls `f` with the key and slot of each anon in `keys`, in any order, and the number of
    /// amaps that share the slot. The chunk is locked.
    pub fn for_each(&self, keys: Range<Key>, f: &mut dyn FnMut(Key, &Slot, u32)) {
        in_form!(&self.form, form => form.for_each(keys, f))
    }

    /// Returns whether no other amap has any of the anons in `keys`, and their pages are not lent.
    /// The amap belongs to one entry, and the map is write-locked.
    pub fn is_sole_in(&self, keys: Range<Key>) -> bool {
        in_form!(&self.form, form => form.is_sole_in(keys))
    }

    /// The number of anons in `keys`.
    pub fn count(&self, keys: Range<Key>) -> usize {
        let mut count = 0;
        self.for_each(keys, &mut |_, _, _| count += 1);
        count
    }

    /// Returns whether it is a hash now.
    #[cfg(test)]
    fn is_hash(&self) -> bool {
        matches!(self.form, Form::Hash(_))
    }
}

impl Slots<'_> {
    /// Allows freeing the page of `key`, one of these slots, unless a mapping modifies it after
    /// `pending` was flushed (`MADV_FREE`). Shared pages stay.
    pub fn free_lazily(&mut self, key: Key, pending: &mut Pending) {
        let chunk = self.chunk;
        if !self.shared
            && let Some(slot) = self.get(key).filter(|slot| !slot.is_empty())
        {
            chunk.set_lazy(true);
            slot.free_lazily(pending);
        }
    }

    /// The number of slots after that of `key`, one of these, that can be filled.
    pub fn after(&self, key: Key) -> usize {
        match self.keys {
            None => (self.first + SLOTS as i64 - 1 - key) as usize,
            Some(_) => 0,
        }
    }

    /// The slots after that of `key` that can be filled, in order, as many as
    /// [`after`](Slots::after) says. They are not [shared](Slots::are_shared).
    pub fn behind(&mut self, key: Key) -> &mut [Slot] {
        debug_assert!(!self.shared, "others see a change of these slots, too");
        let first = SLOTS - self.after(key);
        &mut self.slots[first..]
    }

    /// The slot of `key`, one of these, and those after it, in order. They belong to an array and
    /// are not [shared](Slots::are_shared).
    fn from(&mut self, key: Key) -> &mut [Slot] {
        debug_assert!(!self.shared && self.keys.is_none() && self.holds(key));
        let first = (key - self.first) as usize;
        &mut self.slots[first..]
    }

    /// Takes the anons of `keys`, some of these, out. The slots are not
    /// [shared](Slots::are_shared).
    fn take(&mut self, keys: Range<Key>) -> [Slot; SLOTS] {
        debug_assert!(!self.shared, "others see a change of these slots, too");
        let mut taken: [Slot; SLOTS] = Default::default();
        if self.keys.is_none() {
            let range = (keys.start - self.first) as usize..(keys.end - self.first) as usize;
            self.slots[range.clone()].swap_with_slice(&mut taken[range]);
            return taken;
        }
        for (key, taken) in keys.zip(&mut taken) {
            if let Some(slot) = self.get(key) {
                core::mem::swap(slot, taken);
            }
        }
        taken
    }

    /// Returns whether the slot of `key` is one of these.
    pub fn holds(&self, key: Key) -> bool {
        (self.first..self.first + SLOTS as i64).contains(&key)
    }

    /// The slot of `key`, one of these, read-only.
    #[inline]
    pub fn peek(&self, key: Key) -> &Slot {
        debug_assert!(self.holds(key));
        match self.keys {
            None => &self.slots[(key - self.first) as usize % SLOTS],
            Some(keys) => self.peek_by_key(keys, key),
        }
    }

    #[inline(never)]
    fn peek_by_key(&self, keys: &[AtomicI64; SLOTS], key: Key) -> &Slot {
        static EMPTY: Slot = Slot::Empty;
        hash::find(keys, key).map_or(&EMPTY, |i| &self.slots[i])
    }

    /// The slot of `key`, one of these. A hash has none if the key has no place; it has one if the
    /// slots were [locked](Amap::lock) for it, or if it is not empty. The slots are not
    /// [shared](Slots::are_shared).
    #[inline]
    pub fn get(&mut self, key: Key) -> Option<&mut Slot> {
        debug_assert!(!self.shared, "others see a change of this slot, too");
        debug_assert!(self.holds(key));
        match self.keys {
            None => Some(&mut self.slots[(key - self.first) as usize % SLOTS]),
            Some(keys) => self.get_by_key(keys, key),
        }
    }

    #[inline(never)]
    fn get_by_key(&mut self, keys: &[AtomicI64; SLOTS], key: Key) -> Option<&mut Slot> {
        let index = hash::find(keys, key)?;
        Some(&mut self.slots[index])
    }
}
