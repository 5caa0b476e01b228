//! Entries: one mapping each, with its attributes (`uvm.txt` 2, 3, 5.2).

use alloc::{boxed::Box, collections::LinkedList, sync::Arc};
use core::ops::Range;
use nucleus::{Access, OutOfMemory, PAGE_SHIFT, Prot, VirtAddr, VirtRange, pmap::Pending};

use super::request::{Advice, Inherit, LargeAdvice, Lock};
use crate::amap::{Amap, Key, Share};
use crate::object::Pager;

/// A reference to an object from page `first` on. Cloning and dropping tell the pager.
pub(crate) struct ObjectRef {
    pub pager: Arc<dyn Pager>,
    /// The object's page at the entry's start.
    pub first: u64,
    /// Whether the entry is shared and may ever be written.
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
    /// The same pages for an entry that does not write them.
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

/// One mapping. All pages of it have the same attributes.
pub(crate) struct MapEntry {
    pub range: VirtRange,
    pub prot: Prot,
    pub max_prot: Prot,
    /// Writes go to the object; there is no amap.
    pub shared: bool,
    pub grows_down: bool,
    /// The amap may have other references: it is copied before the first write (`uvm.txt` 5.2).
    /// Set only where there is an amap; nothing of the entry is mapped writable then.
    pub needs_copy: bool,
    pub no_reserve: bool,
    /// What is mapped of it is wired unless this is `None`.
    pub lock: Lock,
    pub inherit: Inherit,
    /// `Normal`, `Random` or `Sequential`.
    pub advice: Advice,
    pub large: LargeAdvice,
    pub label: &'static str,
    /// What added to a page number gives the amap's key: 0 until the entry is moved.
    pub shift: i64,
    /// The layer above; made at the first write.
    pub amap: Option<Arc<Amap>>,
    /// Others may write to the amap as well, and this is the entry's part of it. It does not need a copy then.
    pub share: Option<Share>,
    /// The layer below; zero-fill if there is none.
    pub object: Option<ObjectRef>,
}

/// Entries and references that left a map: dropped when no map lock is held and every
/// translation made through them is flushed (`uvm.txt` 3.1, the second phase of unmap).
#[derive(Default)]
pub(crate) struct Removed {
    /// The first of them, as a rule the only one.
    entry: Option<Box<MapEntry>>,
    more: LinkedList<Box<MapEntry>>,
    objects: LinkedList<ObjectRef>,
}

impl Removed {
    /// Puts an entry to the others, if there is one.
    pub fn put(&mut self, entry: Option<Box<MapEntry>>) {
        match self.entry {
            None => self.entry = entry,
            Some(_) => self.more.extend(entry),
        }
    }

    /// Takes the only entry out.
    pub fn take_only(&mut self) -> Option<MapEntry> {
        self.entry.take().map(|entry| *entry)
    }
}

impl MapEntry {
    /// Pages.
    pub fn pages(&self) -> usize {
        self.range.len() >> PAGE_SHIFT
    }

    /// The amap's key of the page at `va`.
    pub fn key(&self, va: VirtAddr) -> Key {
        (va.0 >> PAGE_SHIFT) as i64 + self.shift
    }

    /// The page with this key.
    pub fn address(&self, key: Key) -> VirtAddr {
        VirtAddr(((key - self.shift) as usize) << PAGE_SHIFT)
    }

    /// The amap's keys of `range`.
    pub fn keys(&self, range: VirtRange) -> Range<Key> {
        self.key(range.start)..self.key(range.end)
    }

    /// The object's page at `va`, where there is an object.
    pub fn index(&self, object: &ObjectRef, va: VirtAddr) -> u64 {
        object.first + ((va - self.range.start) >> PAGE_SHIFT) as u64
    }

    /// Whether a program may do `access`. What may be written or executed can be read: x86-64 has
    /// no other.
    pub fn allows(&self, access: Access) -> bool {
        match access {
            Access::Read => !self.prot.is_empty(),
            _ => self.prot.contains(access.needs()),
        }
    }

    /// What its pages are entered with at most.
    #[inline]
    pub fn rights(&self) -> Prot {
        match self.lock {
            Lock::None => self.prot,
            _ => self.prot | Prot::WIRED,
        }
    }

    /// What an anon of the entry may be mapped with; `writable`: nobody else refers to it, and no slot of the swap space has the same
    /// bytes.
    pub(crate) fn anon_prot(&self, writable: bool) -> Prot {
        match writable && !self.needs_copy {
            true => self.rights(),
            false => self.rights() - Prot::WRITE,
        }
    }

    /// Whether it counts against `RLIMIT_DATA`.
    pub fn is_data(&self) -> bool {
        !self.shared && !self.grows_down && self.prot.contains(Prot::WRITE)
    }

    /// Whether it holds the code of a program.
    pub fn is_text(&self) -> bool {
        self.object.is_some() && self.prot & (Prot::EXEC | Prot::WRITE) == Prot::EXEC
    }

    /// Whether others write to the amap as well.
    pub fn shares_amap(&self) -> bool {
        self.share.is_some()
    }

    /// Lets others write to the amap as well, of which there is one from now on.
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

    /// Makes the amap, if there is one, the entry's own: clears needs-copy. Nothing is copied
    /// when the others have gone. One that others write to stays as it is.
    pub fn unshare(&mut self) -> Result<(), OutOfMemory> {
        if self.shares_amap() {
            return Ok(());
        }
        if let Some(amap) = &mut self.amap
            && Arc::get_mut(amap).is_none()
        {
            // The anons keep a reference through the copy, so whatever of them is mapped
            // stays covered.
            *amap = Arc::new(amap.copy()?);
        }
        self.needs_copy = false;
        Ok(())
    }

    /// Gives the entry an amap of its own, with a place for the page at `va`.
    pub fn own_amap(&mut self, va: VirtAddr) -> Result<(), OutOfMemory> {
        let key = self.key(va);
        if self.amap.is_none() {
            self.amap = Some(Arc::new(Amap::new(key, self.pages())));
        }
        self.unshare()?;
        match self.amap.as_mut().and_then(Arc::get_mut) {
            Some(amap) => amap.prepare(key),
            None => Ok(()),
        }
    }

    /// Parts the entry; what comes back starts at `at`, which lies inside.
    pub fn split_off(&mut self, at: VirtAddr) -> Result<MapEntry, OutOfMemory> {
        self.unshare()?;
        let key = self.key(at);
        // What is moved to a new amap is the shorter part: it may be one page of a large entry.
        let lower = at - self.range.start < self.range.end - at;
        let share = self.share.as_mut().map(|share| share.split_off(key));
        let share = share.transpose()?;
        let mut part = match share {
            Some(_) => self.amap.clone(),
            None => {
                // Unshared, so `get_mut` succeeds wherever there is an amap.
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

    /// Whether `next`, which starts where this ends, could as well be one entry with it.
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
            && self.label == next.label
            && !self.grows_down
            && !next.grows_down
            && own(self)
            && own(next)
            && (self.shift == next.shift || self.amap.is_none() || next.amap.is_none())
    }

    /// Takes over `next`, which it [can join](MapEntry::can_join), and leaves nothing in it.
    pub fn join(&mut self, next: &mut MapEntry, removed: &mut Removed) {
        // The anons of the shorter one move.
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

    /// The entry that a child gets at fork, if any, not locked. What it gets a copy of has needs-copy set on both sides (`uvm.txt` 5.2).
    /// What several others write is copied now (5.4): they lose the right to write it once `pending` is flushed.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn inherit(&mut self, pending: &mut Pending) -> Result<Option<MapEntry>, OutOfMemory> {
        let child = MapEntry {
            lock: Lock::None,
            needs_copy: false,
            amap: None,
            share: None,
            object: None,
            ..*self
        };
        let child = match self.inherit {
            Inherit::None => return Ok(None),
            Inherit::Zero => MapEntry {
                shared: false,
                ..child
            },
            Inherit::Copy if self.shared => MapEntry {
                // A private mapping of the object: what others write is seen until the child writes the page itself.
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
