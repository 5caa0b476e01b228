//! Pages that an object lends (`uvm.txt` 7), and those that devices write.

use core::ops::Range;
use core::sync::atomic::Ordering;
use nucleus::{
    Frame, PAGE_SIZE, Prot, ephemeral,
    frame::Owned,
    pmap::{self, Pending},
};

use super::{Object, page::Page};
use crate::counters::Counter;

/// What a loan leaves of the rights of a mapping.
pub(crate) const NARROWED: Prot = Prot::READ.union(Prot::EXEC).union(Prot::WIRED);

impl Object {
    /// Lends page `index` (`uvm.txt` 7): makes the caller another owner, if the page is resident,
    /// no page of a medium, whose bytes change with the disk, and no device may be writing it.
    /// Mappings lose the right to write it, and a writer [owns](Object::own) it first from now on;
    /// calls of the object's owner, which writes pages without mappings, are kept out by the
    /// caller. `may_be_mapped` says whether there may be mappings with that right; it is called
    /// with the page locked.
    pub fn lend(&self, index: u64, may_be_mapped: impl FnOnce() -> bool) -> Option<Owned> {
        if self.is_pinned() {
            return None;
        }
        let pages = self.lock(index)?;
        let page = pages.page(index).owned();
        let page = page.filter(|page| !page.is_of_medium())?.clone();
        if page.mappings() != 0 && may_be_mapped() {
            // With the chunk locked no mapping gets the right again.
            let mut pending = Pending::new();
            pmap::page_protect(&page, NARROWED, &mut pending);
            pending.flush();
        }
        // After the owner was made: a device's pin counts before it looks for the right to write.
        match self.is_pinned() {
            false => Some(page),
            true => take_back(page),
        }
    }

    /// Returns page `index`, resident as `found`, to be written: if it is lent, it is left to its
    /// other owners, and a copy in the frame that `make` gives takes its place, modified if the
    /// page was. `None` if the object has another page there by now.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn own<E>(
        &self,
        index: u64,
        found: Frame,
        make: impl FnOnce() -> Result<Frame, E>,
    ) -> Result<Option<Frame>, E> {
        if !found.is_lent() {
            return Ok(Some(found));
        }
        let copy = make()?;
        let Some(mut pages) = self.lock(index) else {
            return Ok(None);
        };
        let page = pages.page_mut(index);
        if page.frame() != Some(&found) {
            return Ok(None);
        }
        if !found.is_lent() {
            return Ok(Some(found));
        }
        if found.mappings() != 0 {
            // Before the bytes are copied, so that no store into the old page is missed. No new
            // mapping can appear: the chunk is locked.
            let mut pending = Pending::new();
            pmap::page_protect(&found, Prot::empty(), &mut pending);
            pending.flush();
        }
        ephemeral::copy(&copy, 0, &found, 0, PAGE_SIZE);
        if pmap::is_modified(&found) {
            pmap::set_modified(&copy);
        }
        let old = core::mem::replace(page, Page::resident(copy.clone()));
        drop(pages);
        Counter::loans_broken_by_write.add(1);
        // The handle first: the other owner is left without a reader.
        drop(found);
        drop(old);
        Ok(Some(copy))
    }

    /// Removes the right to write `pages` from their mappings; the next store faults and asks
    /// [`Pager::mark_dirty`](crate::Pager::mark_dirty), which must refuse by then. Returns false if
    /// a device may be writing the object's pages.
    pub fn write_protect(&self, pages: Range<u64>) -> bool {
        if self.is_pinned() {
            return false;
        }
        let mut pending = Pending::new();
        self.walk(&pages, &mut |_, chunk, slots| {
            // A fault that asked before has entered its mapping; a later one is refused.
            let there = chunk.lock();
            for frame in slots.filter_map(|slot| there[slot].frame()) {
                pmap::page_protect(frame, NARROWED, &mut pending);
            }
            true
        });
        pending.flush();
        // A pin counts before it looks for the right to write.
        !self.is_pinned()
    }

    /// Whether devices may be writing pages of mappings.
    pub fn is_pinned(&self) -> bool {
        self.write_pins.load(Ordering::SeqCst) > 0
    }

    /// Counts pins for writes by devices.
    pub(crate) fn pin_to_write(&self) {
        self.write_pins.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes back [`pin_to_write`](Object::pin_to_write).
    pub(crate) fn unpin_to_write(&self) {
        self.write_pins.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A page is not lent after all.
#[cold]
fn take_back(_page: Owned) -> Option<Owned> {
    None
}
