//! Pages of a program that are pinned for a transfer by a device (`uvm.txt` 3.2: `physio`).
//!
//! No entry records the pin. It consists of references to the frames, held by the caller: page-out
//! and copy-on-write leave a frame alone that has more references than its owner and its mappings.
//! An unmapped page is kept by these references, too; data written to it is then lost, unless it
//! is a page of shared memory or of a file, which its other users see.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::Ordering::SeqCst;
use nucleus::{Access, PAGE_SIZE, Prot, VirtAddr, VirtRange, addr::USER_END, dma::Part, pmap};

use crate::map::{Fault, Map, Space};
use crate::object::Pager;

/// Bytes of an address space whose pages stay resident, and the address space's own, until this is
/// dropped.
pub struct PinnedPages {
    map: Arc<Map>,
    access: Access,
    parts: Vec<Part>,
    /// The parts among them that a device writes and that belong to objects.
    shared: Vec<SharedPart>,
    len: usize,
}

/// A page of shared memory or of a file.
struct SharedPart {
    /// The index of its part.
    part: usize,
    pager: Arc<dyn Pager>,
    /// The page's index in the object.
    page: u64,
}

impl Map {
    /// Pins the bytes of `range`, which need not be page-aligned: brings them in and, for a write,
    /// copies shared pages. A device may then read them, or write them if `access` is a write.
    /// Pins fewer where a page cannot be brought in, up to that page. Forks wait for pins for
    /// writes, since the owner of a page that is written across a fork would be undefined, and new
    /// ones wait for forks that wait. May sleep; the caller holds no lock that a fault takes, and
    /// no other pins.
    ///
    /// # Errors
    /// That of the first page, with nothing pinned. [`Fault::OutOfMemory`] also if memory for the
    /// list is missing.
    pub fn pin(self: &Arc<Map>, range: VirtRange, access: Access) -> Result<PinnedPages, Fault> {
        // Before the count, so that a failure has nothing to take back.
        let parts = nucleus::try_vec(PinnedPages::pages_of(range))?;
        if access == Access::Write && self.waiting_forks.load(SeqCst) > 0 {
            // This thread has no pins, and a fork waits only for those that there are.
            let none = || (self.waiting_forks.load(SeqCst) == 0).then_some(());
            self.unpinned.wait_soundly(none);
        }
        {
            // No fork is under way while the map is locked, and the next one sees the count.
            let _space = self.space.read();
            if access == Access::Write {
                self.write_pins.fetch_add(1, SeqCst);
            }
        }
        // From here on dropping it wakes waiting forks.
        let mut pinned = PinnedPages {
            map: self.clone(),
            access,
            parts,
            shared: Vec::new(),
            len: 0,
        };
        pinned.add(range)?;
        Ok(pinned)
    }
}

impl PinnedPages {
    /// How many pages `range` touches at most.
    fn pages_of(range: VirtRange) -> usize {
        range.len().div_ceil(PAGE_SIZE) + 1
    }

    /// Pins the bytes of `range` behind the others, as [`Map::pin`] does; returns how many.
    ///
    /// # Errors
    /// As there; what was pinned before stays pinned.
    pub fn add(&mut self, range: VirtRange) -> Result<usize, Fault> {
        if range.end > USER_END {
            return Err(Fault::NotMapped);
        }
        let pages = PinnedPages::pages_of(range);
        let is_full = self.parts.try_reserve(pages).is_err();
        let is_full = is_full || self.is_written() && self.shared.try_reserve(pages).is_err();
        if is_full {
            return Err(Fault::OutOfMemory);
        }
        let (map, access) = (self.map.clone(), self.access);
        let before = self.len;
        while self.len - before < range.len() {
            let rest = VirtRange::new(range.start + (self.len - before), range.end);
            if self.add_mapped(&map, rest) > 0 {
                continue;
            }
            let page = rest.start.page_floor();
            let added = map.resolve_or_wait(page, access, |space| self.add_page(space, rest));
            match added {
                Err(fault) if self.len == before => return Err(fault),
                Err(_) => break,
                Ok(()) => {}
            }
        }
        Ok(self.len - before)
    }

    /// Adds the pages of `range` that are mapped for the access, up to the first that is not;
    /// returns how many.
    fn add_mapped(&mut self, map: &Map, range: VirtRange) -> usize {
        let space = map.space.read();
        let mut count = 0;
        let mut at = range.start;
        while at < range.end {
            let rest = VirtRange::new(at, range.end);
            if self.add_page(&space, rest).is_none() {
                break;
            }
            count += 1;
            at = at.page_floor() + PAGE_SIZE;
        }
        count
    }

    /// Adds the bytes at the begin of `range` that are in one page; `None` if the page is not
    /// mapped for the access. The map is locked, and the lists have room.
    fn add_page(&mut self, space: &Space, range: VirtRange) -> Option<()> {
        let at = range.start;
        let offset = at.page_offset();
        let len = (PAGE_SIZE - offset).min(range.len());
        let shared = match self.is_written() {
            true => SharedPart::new(space, at, self.parts.len())?,
            false => None,
        };
        // After the count of a part of an object: a loan sees one of the two.
        let (frame, prot) = self.map.pmap.extract(at.page_floor())?;
        if self.is_written() && !prot.contains(Prot::WRITE) {
            return None;
        }
        self.shared.extend(shared);
        self.parts.push(Part::new(frame, offset, len));
        self.len += len;
        Some(())
    }

    /// Whether the device writes the bytes.
    fn is_written(&self) -> bool {
        self.access == Access::Write
    }

    /// The bytes, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// How many bytes are pinned.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl SharedPart {
    /// Counts a pin of the page at `at`, which `part` will be, if it is an object's; none if
    /// nothing is mapped.
    fn new(space: &Space, at: VirtAddr, part: usize) -> Option<Option<SharedPart>> {
        let entry = space.lookup(at)?;
        let Some(object) = entry.object.as_ref().filter(|_| entry.shared) else {
            return Some(None);
        };
        object.pager.object().pin_to_write();
        Some(Some(SharedPart {
            part,
            pager: object.pager.clone(),
            page: entry.index(object, at),
        }))
    }

    /// Notes that a device has written `part`, if that is still the object's page.
    fn written(&self, part: &Part) {
        if self.pager.object().resident(self.page).as_ref() == Some(&part.frame) {
            self.pager.mark_dirty(self.page, None);
        }
    }
}

impl Drop for SharedPart {
    fn drop(&mut self) {
        self.pager.object().unpin_to_write();
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        if !self.is_written() {
            return;
        }
        for part in &self.parts {
            // The device's store left no modified bit.
            pmap::set_modified(&part.frame);
        }
        for shared in &self.shared {
            shared.written(&self.parts[shared.part]);
        }
        // The frames first: a fork may start as soon as it is woken, and a lender go on.
        self.parts.clear();
        self.shared.clear();
        if self.map.write_pins.fetch_sub(1, SeqCst) == 1 {
            self.map.unpinned.wake_all();
        }
    }
}
