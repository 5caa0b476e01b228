//! Map entries: one mapping each, with its attributes (`uvm.txt` 2, 3, 5.2).

use alloc::{boxed::Box, collections::LinkedList, sync::Arc};
use core::ops::Range;
use nucleus::{Access, OutOfMemory, PAGE_SHIFT, Prot, VirtAddr, VirtRange, pmap::Pending};

use super::request::{Advice, Inherit, LargeAdvice, Lock, MapRequest};
use crate::amap::{Amap, Key, Share};
use crate::object::Pager;

/// A reference to an object from page `first` on. Cloning and dropping it notifies the pager.
pub(crate) struct ObjectRef {
    pub pager: Arc<dyn Pager>,
    /// The object's page at the entry's start.
    pub first: u64,
    /// The entry is shared and may become writable.
    writable: bool,
}

impl ObjectRef {
    pub fn new(pager: Arc<dyn Pager>, first: u64, writable: bool) -> ObjectRef {
        pager.reference(writable);
        ObjectRef {
            pager,
            first,
            writable,
        }
    }
}

impl ObjectRef {
    /// Returns a reference to the same pages for an entry that does not write them.
    fn private(&self) -> ObjectRef {
        ObjectRef::new(self.pager.clone(), self.first, false)
    }
}

impl Clone for ObjectRef {
    fn clone(&self) -> ObjectRef {
        ObjectRef::new(self.pager.clone(), self.first, self.writable)
    }
}

impl Drop for ObjectRef {
    fn drop(&mut self) {
        self.pager.detach(self.writable);
    }
}

/// One mapping. All its pages have the same attributes.
pub(crate) struct MapEntry {
    pub range: VirtRange,
    pub prot: Prot,
    pub max_prot: Prot,
    /// Writes go to the object; there is no amap.
    pub shared: bool,
    pub grows_down: bool,
    /// The amap may have other references and is copied before the first write (`uvm.txt` 5.2).
    /// Only set if there is an amap; the entry's pages are then mapped read-only.
    pub needs_copy: bool,
    pub no_reserve: bool,
    /// It is not moved, passed on or inherited ([`MapRequest::stays`]).
    pub stays: bool,
    /// Unless `None`, the entry's mappings are wired.
    pub lock: Lock,
    pub inherit: Inherit,
    /// `Normal`, `Random` or `Sequential`.
    pub advice: Advice,
    pub large: LargeAdvice,
    pub label: &'static str,
    /// Page number plus this is the amap's key; 0 until the entry is moved.
    pub shift: i64,
    /// The layer above; made at the first write.
    pub amap: Option<Arc<Amap>>,
    /// The entry's part of an amap that other address spaces write. Such an entry does not need a
    /// copy.
    pub share: Option<Share>,
    /// The layer below; zero-fill if there is none.
    pub object: Option<ObjectRef>,
}

/// Entries and references removed from a map. Dropped when no map lock is held and every
/// translation made through them is flushed (`uvm.txt` 3.1, the second phase of unmap).
#[derive(Default)]
pub(crate) struct Removed {
    /// The first entry, usually the only one.
    entry: Option<Box<MapEntry>>,
    more: LinkedList<Box<MapEntry>>,
    objects: LinkedList<ObjectRef>,
}

impl Removed {
    /// Adds an entry, if there is one.
    pub fn put(&mut self, entry: Option<Box<MapEntry>>) {
        match self.entry {
            None => self.entry = entry,
            Some(_) => self.more.extend(entry),
        }
    }

    /// Takes the only entry.
    pub fn take_only(&mut self) -> Option<MapEntry> {
        self.entry.take().map(|entry| *entry)
    }
}

impl MapEntry {
    /// Returns an entry for a request.
    pub fn new(
        range: VirtRange,
        request: &MapRequest,
        lock: Lock,
        object: Option<ObjectRef>,
    ) -> MapEntry {
        MapEntry {
            range,
            prot: request.prot,
            max_prot: request.max_prot,
            shared: request.shared,
            grows_down: request.grows_down,
            needs_copy: false,
            no_reserve: request.no_reserve,
            stays: request.stays,
            lock,
            inherit: match request.shared {
                _ if request.stays => Inherit::None,
                true => Inherit::Share,
                false => Inherit::Copy,
            },
            advice: Advice::Normal,
            large: request.large,
            label: request.label,
            shift: 0,
            amap: None,
            share: None,
            object,
        }
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.range.len() >> PAGE_SHIFT
    }

    /// Returns the amap's key of the page at `va`.
    pub fn key(&self, va: VirtAddr) -> Key {
        (va.0 >> PAGE_SHIFT) as i64 + self.shift
    }

    /// Returns the address of the page with this key.
    pub fn address(&self, key: Key) -> VirtAddr {
        VirtAddr(((key - self.shift) as usize) << PAGE_SHIFT)
    }

    /// Returns the amap's keys of `range`.
    pub fn keys(&self, range: VirtRange) -> Range<Key> {
        self.key(range.start)..self.key(range.end)
    }

    /// Returns the object's page at `va`.
    pub fn index(&self, object: &ObjectRef, va: VirtAddr) -> u64 {
        object.first + ((va - self.range.start) >> PAGE_SHIFT) as u64
    }

    /// Returns whether the program may do `access`. Whatever may be written or executed can be
    /// read, as x86-64 requires.
    pub fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => !self.prot.is_empty(),
            _ => self.prot.contains(access.needs()),
        }
    }

    /// The most rights that its pages are mapped with.
    #[inline]
    pub fn rights(&self) -> Prot {
        match self.lock {
            Lock::None => self.prot,
            _ => self.prot | Prot::WIRED,
        }
    }

    /// The rights that an anon of the entry is mapped with; `writable` if it has no other owner and
    /// no valid swap slot.
    pub(crate) fn anon_prot(&self, writable: bool) -> Prot {
        match writable && !self.needs_copy {
            true => self.rights(),
            false => self.rights() - Prot::WRITE,
        }
    }

    /// Returns whether it may have mappings that can be written now and could not be once the entry
    /// needs a copy.
    pub fn may_be_mapped_writable(&self) -> bool {
        self.amap.is_some() && !self.shared && !self.needs_copy && self.prot.contains(Prot::WRITE)
    }

    /// Returns whether the kernel maps it into every program, with pages that are charged to none.
    pub fn is_kernels(&self) -> bool {
        self.label.starts_with("[v")
    }

    /// Returns whether its page-table entries can move with it. A page's mapping cannot be found
    /// while it moves. For anons only the map, which is locked, could need it. The owner of an
    /// object's pages, or another sharer of an amap, may unmap them at any time; so these are
    /// mapped again by faults.
    pub fn has_movable_mappings(&self) -> bool {
        self.object.is_none() && !self.shares_amap()
    }

    /// Returns whether its pages are locked into memory.
    pub fn is_locked(&self) -> bool {
        self.lock != Lock::None
    }

    /// Returns whether it counts against `RLIMIT_DATA`.
    pub fn is_data(&self) -> bool {
        !self.shared && !self.grows_down && self.prot.contains(Prot::WRITE)
    }

    /// Returns whether it holds program code.
    pub fn is_text(&self) -> bool {
        self.object.is_some() && self.prot & (Prot::EXEC | Prot::WRITE) == Prot::EXEC
    }

    /// Returns whether no other address space writes its pages: neither shared, nor with an amap
    /// that others share.
    pub fn is_private(&self) -> bool {
        !self.shared && !self.shares_amap()
    }

    /// Returns whether its pages are anons that no other address space writes.
    pub fn is_private_anonymous(&self) -> bool {
        self.object.is_none() && self.is_private()
    }

    /// Returns whether other address spaces write the amap as well.
    pub fn shares_amap(&self) -> bool {
        self.share.is_some()
    }

    /// Makes the amap, creating it if need be, one that other address spaces may write as well.
    fn share_amap(&mut self) -> Result<&Share, OutOfMemory> {
        if self.share.is_none() {
            self.own_amap(self.range.start)?;
            let keys = self.keys(self.range);
            if let Some(amap) = self.amap.as_mut().and_then(Arc::get_mut) {
                amap.make_shareable(keys.start)?;
            }
            let share = self.amap.as_ref().map(|amap| Share::new(amap, keys));
            self.share = share.transpose()?;
        }
        self.share.as_ref().ok_or(OutOfMemory)
    }

    /// Clears needs-copy: copies the amap if it has other references. A shared amap stays as it is.
    pub fn unshare(&mut self) -> Result<(), OutOfMemory> {
        if self.shares_amap() {
            return Ok(());
        }
        if let Some(amap) = &mut self.amap
            && Arc::get_mut(amap).is_none()
        {
            // The copy keeps references to the anons, so their mappings stay valid.
            *amap = Arc::new(amap.copy()?);
        }
        self.needs_copy = false;
        Ok(())
    }

    /// Gives the entry an amap if it has none: an empty one, smallest for pages near and above
    /// `va`.
    pub fn ensure_amap(&mut self, va: VirtAddr) {
        if self.amap.is_none() {
            self.amap = Some(Arc::new(Amap::new(self.key(va), self.pages())));
        }
    }

    /// Gives the entry an amap of its own with a slot for the page at `va`.
    pub fn own_amap(&mut self, va: VirtAddr) -> Result<(), OutOfMemory> {
        self.ensure_amap(va);
        self.unshare()?;
        let key = self.key(va);
        match self.amap.as_mut().and_then(Arc::get_mut) {
            Some(amap) => amap.prepare(key),
            None => Ok(()),
        }
    }

    /// Splits the entry at `at`, which lies inside, and returns the upper part.
    pub fn split_off(&mut self, at: VirtAddr) -> Result<MapEntry, OutOfMemory> {
        self.unshare()?;
        let key = self.key(at);
        // The shorter part moves to a new amap: it may be one page of a large entry.
        let lower = at - self.range.start < self.range.end - at;
        let share = self.share.as_mut().map(|share| share.split_off(key));
        let share = share.transpose()?;
        let mut part = match share {
            Some(_) => self.amap.clone(),
            None => {
                // After `unshare` there is no other reference.
                let amap = self.amap.as_mut().and_then(Arc::get_mut);
                let part = amap.map(|amap| amap.split_off(key, lower)).transpose()?;
                part.map(Arc::new)
            }
        };
        if lower {
            core::mem::swap(&mut self.amap, &mut part);
        }
        let upper = MapEntry {
            range: VirtRange::new(at, self.range.end),
            amap: part,
            share,
            object: self.object.as_ref().map(|object| {
                let mut object = object.clone();
                object.first = self.index(&object, at);
                object
            }),
            ..*self
        };
        self.range.end = at;
        Ok(upper)
    }

    /// Returns whether `next`, which starts at this entry's end, can be merged with it.
    pub fn can_join(&self, next: &MapEntry) -> bool {
        let objects = match (&self.object, &next.object) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                core::ptr::addr_eq(Arc::as_ptr(&a.pager), Arc::as_ptr(&b.pager))
                    && a.writable == b.writable
                    && self.index(a, self.range.end) == b.first
            }
            _ => false,
        };
        let own = |entry: &MapEntry| {
            let one = |amap| Arc::strong_count(amap) == 1;
            !entry.needs_copy && !entry.shares_amap() && entry.amap.as_ref().is_none_or(one)
        };
        objects
            && self.range.end == next.range.start
            && self.prot == next.prot
            && self.max_prot == next.max_prot
            && self.shared == next.shared
            && self.inherit == next.inherit
            && self.advice == next.advice
            && self.large == next.large
            && self.lock == next.lock
            && self.no_reserve == next.no_reserve
            && self.stays == next.stays
            && self.label == next.label
            && !self.grows_down
            && !next.grows_down
            && own(self)
            && own(next)
            && (self.shift == next.shift || self.amap.is_none() || next.amap.is_none())
    }

    /// Merges `next`, for which [`can_join`](MapEntry::can_join) holds, into this entry and leaves
    /// it empty.
    pub fn join(&mut self, next: &mut MapEntry, removed: &mut Removed) {
        // Moves the anons of the shorter one.
        if self.range.len() < next.range.len() && self.amap.is_some() && next.amap.is_some() {
            core::mem::swap(&mut self.amap, &mut next.amap);
        }
        self.range.end = next.range.end;
        match (&mut self.amap, next.amap.take()) {
            (None, theirs) => {
                self.shift = next.shift;
                self.amap = theirs;
            }
            (Some(_), None) => {}
            (Some(ours), Some(theirs)) => {
                if let (Some(ours), Ok(theirs)) = (Arc::get_mut(ours), Arc::try_unwrap(theirs)) {
                    ours.absorb(theirs);
                }
            }
        }
        removed.objects.extend(next.object.take());
    }

    /// Returns the entry that a child inherits at fork, if any, unlocked. A copied amap gets
    /// needs-copy on both sides (`uvm.txt` 5.2). An amap that several address spaces write is
    /// copied now (5.4); they lose the right to write its pages once `pending` is flushed.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn inherit(&mut self, pending: &mut Pending) -> Result<Option<MapEntry>, OutOfMemory> {
        self.another(self.inherit, pending)
    }

    /// As [`inherit`](MapEntry::inherit), whatever is set for children.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    #[inline(always)]
    pub fn another(
        &mut self,
        how: Inherit,
        pending: &mut Pending,
    ) -> Result<Option<MapEntry>, OutOfMemory> {
        let child = MapEntry {
            lock: Lock::None,
            needs_copy: false,
            amap: None,
            share: None,
            object: None,
            ..*self
        };
        let child = match how {
            Inherit::None => return Ok(None),
            Inherit::Zero => MapEntry {
                shared: false,
                ..child
            },
            Inherit::Copy if self.shared => MapEntry {
                // A private mapping of the object: shows other processes' writes until the child
                // writes the page.
                shared: false,
                object: self.object.as_ref().map(ObjectRef::private),
                ..child
            },
            Inherit::Share if !self.shared => {
                let share = self.share_amap()?.another()?;
                MapEntry {
                    amap: self.amap.clone(),
                    share: Some(share),
                    object: self.object.clone(),
                    ..child
                }
            }
            Inherit::Copy if self.shares_amap() => {
                let keys = self.keys(self.range);
                let copy = |amap: &Arc<Amap>| amap.copy_shared(keys, pending).map(Arc::new);
                MapEntry {
                    amap: self.amap.as_ref().map(copy).transpose()?,
                    object: self.object.clone(),
                    ..child
                }
            }
            Inherit::Share | Inherit::Copy => {
                self.needs_copy |= self.amap.is_some();
                MapEntry {
                    needs_copy: self.needs_copy,
                    amap: self.amap.clone(),
                    object: self.object.clone(),
                    ..child
                }
            }
        };
        Ok(Some(child))
    }
}
