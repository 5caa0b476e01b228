//! Amaps: the anonymous layer of an entry (`uvm.txt` 5.2).
//!
//! An amap maps *keys* to anons. A key is a page number in the address space in which the amap was
//! made; an entry that was moved keeps its keys and remembers the distance ([`MapEntry::key`]).
//! An amap has no bounds of its own, so an entry that grows at either end needs no new one.
//! Callers see keys, slots and guards; how slots are found is known in this folder only (`uvm.txt` 5.2, 5.3: the
//! implementation of amaps is apart from their interface, and may be a hybrid of arrays and hashes).
//!
//! ```text
//!   array   chunks of 32 neighbouring slots in trees      dense: 16 bytes a page, found by loads alone
//!   hash    chunks of any 32 slots, each with its key     sparse: 33 bytes a page with every place taken, no trees
//! ```
//! An amap of a large entry begins as a hash and becomes an array as soon as that takes less memory, with the third page in a row at
//! the earliest; an array of a large entry that turns out sparse becomes a hash. All others are arrays for ever. A form changes with
//! the map write-locked: [`Amap::lock`] says that it is time, and nothing else on a fault's way knows of it.
//!
//! Whole entries refer to an amap, never parts of one: an entry is clipped only after its amap has
//! been made its own, and its amap is then parted in two. So *each anon of an amap
//! lies inside each entry that refers to the amap*; an amap with one reference is reachable in
//! all its anons, and there is nothing like a page that is allocated and out of reach. Amaps that several
//! write are different: `share.rs`.
//!
//! What fork makes two amaps of has its chunks in common until they are changed: `common.rs`.
//!
//! [`MapEntry::key`]: crate::entry::MapEntry::key

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

use crate::chunks::{Chunk, Places, SLOTS, SLOTS_SHIFT};
use array::Array;
use hash::Hash;
use shared_amap::Sharers;

pub(crate) use anon::{Resident, Slot};
pub(crate) use shared_amap::Share;

/// A page number in the address space where the amap was made.
pub type Key = i64;

/// Entries with so many pages (64 MiB) are large: their amaps may be sparse. Below it an array's trees have two levels at most, and
/// whatever a program touches costs little.
const LARGE_PAGES: usize = 16 << 10;

/// Which representations amaps use, for comparing them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AmapForm {
    /// Arrays and, for what is large and sparse, hashes.
    Hybrid,
    /// Arrays only, as the paper's system.
    Array,
    /// Whatever is sparse is a hash, be it small or large.
    Sparse,
}

static FORM: AtomicU8 = AtomicU8::new(AmapForm::Hybrid as u8);

/// Sets the representations of amaps that are made from now on.
pub fn set_amap_form(form: AmapForm) {
    FORM.store(form as u8, Relaxed);
}

/// The representations of amaps that are made now.
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
    /// Who shares it, if it was ever shared.
    sharers: OnceBox<Sharers>,
}

enum Form {
    Array(Array),
    Hash(Hash),
}

/// Why the slots of a key can't be locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// They would have to be made, and the kernel's memory is scarce.
    OutOfMemory,
    /// The amap should have another form, or a larger one: [`Amap::prepare`].
    Form,
    /// They would have to be made, and the caller would rather have something else.
    Unwanted,
}

/// The slots around a key, locked.
pub struct Slots<'a> {
    chunk: &'a Chunk<Slot>,
    slots: MutexGuard<'a, Places<Slot>>,
    /// Other amaps have them, too: to look at only.
    shared: bool,
    /// The first of the 32 neighbouring keys whose slots are locked.
    first: Key,
    /// In a hash: the key that each slot belongs to. Changes with the slots locked only.
    keys: Option<&'a [AtomicI64; SLOTS]>,
}

/// Keys come in groups of 32 neighbours, those of one chunk of an array.
fn group(key: Key) -> i64 {
    key >> SLOTS_SHIFT
}

/// The first key of a group.
fn first_key(group: i64) -> Key {
    group << SLOTS_SHIFT
}

impl Amap {
    /// An empty amap for an entry of `pages` pages; it is smallest if most keys are near and above `key`.
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
        match &self.form {
            Form::Array(array) => array.lock_present(key),
            Form::Hash(hash) => hash.lock_present(key),
        }
    }

    /// The chunk with the slots of `keys`, 32 neighbours' at most as those of an array's chunk, and a bit for each slot of it that is among
    /// them. Nothing is locked: they may be others' slots by the time that they are.
    pub fn part_of(&self, keys: Range<Key>) -> Option<(Arc<Chunk<Slot>>, u32)> {
        match &self.form {
            Form::Array(array) => array.part_of(keys),
            Form::Hash(hash) => hash.part_of(keys),
        }
    }

    /// Calls `f` with each chunk that has slots of `keys`, and a bit for each of these. Nothing is locked, as for
    /// [`part_of`](Amap::part_of).
    pub fn for_each_chunk(&self, keys: Range<Key>, f: &mut dyn FnMut(Arc<Chunk<Slot>>, u32)) {
        match &self.form {
            Form::Array(array) => array.for_each_chunk(keys, f),
            Form::Hash(hash) => hash.for_each_chunk(keys, f),
        }
    }

    /// Locks the slots around `key` and makes sure that there is one for `key` itself, unless others have these slots, too
    /// ([`Slots::are_shared`]): then who wants to change one [prepares](Amap::prepare) that.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn lock(&self, key: Key) -> Result<Slots<'_>, Refused> {
        match &self.form {
            Form::Array(array) => array.lock(key),
            Form::Hash(hash) => hash.lock(key),
        }
    }

    /// As [`lock`](Amap::lock), but where the slot would have to be made it is asked first whether something else is wanted. `otherwise`
    /// is called with slots locked.
    ///
    /// # Errors
    /// [`Refused`].
    #[inline]
    pub fn lock_unless(
        &self,
        key: Key,
        otherwise: impl FnOnce() -> bool,
    ) -> Result<Slots<'_>, Refused> {
        match &self.form {
            Form::Array(array) => array.lock_unless(key, otherwise),
            Form::Hash(hash) => hash.lock_unless(key, otherwise),
        }
    }

    /// Makes room for an anon with each of `keys`, most of which will be filled at once.
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

    /// Puts sole anons of these frames into the slots of `keys`, of which there are as many, which are empty, and for which there is
    /// [room](Amap::make_all).
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

    /// Makes the slots around `key` this amap's own, and changes the form where [`lock`](Amap::lock) refuses `key` for its sake:
    /// then it does not any more, unless another key comes between.
    ///
    /// # Errors
    /// [`OutOfMemory`]; the amap is as it was.
    pub fn prepare(&mut self, key: Key) -> Result<(), OutOfMemory> {
        let shared = match &self.form {
            Form::Array(array) => array.is_shared(key),
            Form::Hash(hash) => hash.is_shared(key),
        };
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

    /// A second amap with a reference to each anon of this one: what clearing needs-copy means. The two have their chunks in
    /// common, so it costs what there is of those.
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

    /// A second amap with the anons of this one that have keys in `keys`, for a child that gets a copy of what several others write:
    /// all lose the right to write them, once `pending` is flushed.
    ///
    /// # Errors
    /// As for [`copy`](Amap::copy); some pages may be written by a fault only then.
    pub fn copy_shared(
        &self,
        keys: Range<Key>,
        pending: &mut Pending,
    ) -> Result<Amap, OutOfMemory> {
        let form = match &self.form {
            Form::Array(array) => Form::Array(array.copy_shared(keys, pending)?),
            // One that is shared is an array.
            Form::Hash(hash) => Form::Hash(hash.copy()?),
        };
        Ok(Amap::of(form))
    }

    /// Makes it ready to be shared: what happens to it from now on happens with no map write-locked but one.
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

    /// Who shares it.
    pub fn sharers(&self) -> &Sharers {
        self.sharers.get_or_insert(|| Box::new(Sharers::new()))
    }

    fn of(form: Form) -> Amap {
        Amap {
            form,
            sharers: OnceBox::new(),
        }
    }

    /// Parts the amap: what comes back has the anons from `key` on, or with `lower` those before it. It is made of
    /// what is taken out, so the smaller part is the one to ask for.
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

    /// Takes over all anons of `other`, none of which has a key that is in use here. The cost is `other`'s size, as a rule.
    pub fn absorb(&mut self, mut other: Amap) {
        if matches!(self.form, Form::Hash(_)) && matches!(other.form, Form::Array(_)) {
            // An array takes everything, whatever there is of it.
            core::mem::swap(self, &mut other);
        }
        match (&mut self.form, other.form) {
            (Form::Array(ours), Form::Array(theirs)) => ours.absorb(theirs),
            (_, Form::Array(_)) => {}
            (_, Form::Hash(mut theirs)) => theirs.take_all(&mut |key, slot| self.put(key, slot)),
        }
    }

    /// Puts a slot where there is none.
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

    /// Drops the anons in `keys`, whose slots this amap does not have in common with others. Every translation made through them
    /// has been flushed.
    pub fn clear(&self, keys: Range<Key>) {
        match &self.form {
            Form::Array(array) => array.clear(keys),
            Form::Hash(hash) => hash.clear(keys),
        }
    }

    /// As [`clear`](Amap::clear) for one that nobody else refers to, whether or not it has chunks in common with others: what held
    /// the slots of large parts goes, too.
    ///
    /// # Errors
    /// [`OutOfMemory`]; no anon was dropped but those that others have, too.
    pub fn clear_out(&mut self, keys: Range<Key>) -> Result<(), OutOfMemory> {
        match &mut self.form {
            Form::Array(array) => array.clear_out(keys.clone()),
            Form::Hash(hash) => hash.leave_in(keys.clone())?,
        }
        self.clear(keys);
        Ok(())
    }

    /// Calls `f` with the slots of each part of `keys` where any was ever in use, locked, and the keys of that part.
    pub fn for_each_part(&self, keys: Range<Key>, f: &mut dyn FnMut(Range<Key>, Slots<'_>)) {
        match &self.form {
            Form::Array(array) => array.for_each_part(keys, f),
            Form::Hash(hash) => hash.for_each_part(keys, f),
        }
    }

    /// Calls `f` with the key and slot of each anon in `keys`, in any order, its chunk locked, and how many amaps have that slot.
    pub fn for_each(&self, keys: Range<Key>, f: &mut dyn FnMut(Key, &Slot, u32)) {
        match &self.form {
            Form::Array(array) => array.for_each(keys, f),
            Form::Hash(hash) => hash.for_each(keys, f),
        }
    }

    /// Anons in `keys`.
    pub fn count(&self, keys: Range<Key>) -> usize {
        let mut count = 0;
        self.for_each(keys, &mut |_, _, _| count += 1);
        count
    }

    /// Whether it is a hash now.
    #[cfg(test)]
    fn is_hash(&self) -> bool {
        matches!(self.form, Form::Hash(_))
    }
}

impl Slots<'_> {
    /// Whether other amaps have these slots, too: then none is changed, no page in them is written in place, and one that is empty stays
    /// so. As long as the map is locked, that may end, but not begin.
    #[inline]
    pub fn are_shared(&self) -> bool {
        self.shared
    }

    /// The page of `key`, which is among these, may be freed as soon as that is of use, unless a mapping modifies it after `pending` was
    /// flushed (`MADV_FREE`). Others' pages stay.
    pub fn free_lazily(&mut self, key: Key, pending: &mut Pending) {
        let chunk = self.chunk;
        if !self.shared
            && let Some(slot) = self.get(key).filter(|slot| !slot.is_empty())
        {
            chunk.set_lazy(true);
            slot.free_lazily(pending);
        }
    }

    /// How many slots behind that of `key`, which is among these, are there to be filled.
    pub fn after(&self, key: Key) -> usize {
        match self.keys {
            None => (self.first + SLOTS as i64 - 1 - key) as usize,
            Some(_) => 0,
        }
    }

    /// The slots behind that of `key` that are there to be filled, in order: [`after`](Slots::after) says how many. They are not
    /// [common](Slots::are_shared).
    pub fn behind(&mut self, key: Key) -> &mut [Slot] {
        debug_assert!(!self.shared, "others see a change of these slots, too");
        let first = SLOTS - self.after(key);
        &mut self.slots[first..]
    }

    /// The slot of `key`, which is among these, and those behind it, in order. They are an array's, and not
    /// [common](Slots::are_shared).
    fn from(&mut self, key: Key) -> &mut [Slot] {
        debug_assert!(!self.shared && self.keys.is_none() && self.holds(key));
        let first = (key - self.first) as usize;
        &mut self.slots[first..]
    }

    /// Whether the slot of `key` is among these.
    pub fn holds(&self, key: Key) -> bool {
        (self.first..self.first + SLOTS as i64).contains(&key)
    }

    /// The slot of `key`, which is among these, to look at.
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

    /// The slot of `key`, which is among these. There is none if the key has no place in a hash: it has one if they were
    /// [locked](Amap::lock) for it, or if it is not empty. They are not [common](Slots::are_shared).
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
