//! The fault routine (`uvm.txt` 5.4): one for all kinds of memory.
//!
//! ```text
//!                    entry at the address?  no ──> does a stack grow to it?  no ──> NotMapped
//!                           │ yes
//!                    access allowed?        no ──> Protection
//!                           │ yes
//!   amap layer       slot of the page in the amap
//!                      │ empty              │ an anon
//!                      │                    ├─ in swap: read it in without locks, start again
//!                      │                    ├─ read: map it; writable if sole, dirty, own amap
//!                      │                    ├─ write, needs-copy: copy the amap, start again
//!                      │                    ├─ write, one reference: write in place
//!                      │                    └─ write, more: copy the page to a new anon
//!   object layer     object below?
//!                      │ yes                │ no: zero-fill into a new anon
//!                      ├─ a device's page: map it, which has no frame
//!                      ├─ shown pages: map the one that the pager shows, or zeros
//!                      ├─ shared: map the object's page
//!                      ├─ private, read: map the object's page without write permission
//!                      └─ private, write: promote, that is, copy the page to a new anon
//! ```
//!
//! *Races.* A fault holds the map's read lock from the lookup until the page is entered. Unmap,
//! protect, fork, remap and brk change entries and translations with the write lock held, so each
//! comes wholly before or wholly after it. They flush before they release it; unmap and protect of
//! private anonymous memory flush after that, while faults find no entry, or one with fewer rights
//! (`map/unflushed.rs`). `MADV_DONTNEED` of a few pages holds the read lock, and their chunk's lock
//! from before it removes the mappings until they are flushed and the slots empty. Two faults on
//! one page of an entry with an amap hold the same chunk lock from the lookup of the slot until the
//! page is entered, so the slot's content is what is mapped. An object's page is entered with its
//! chunk of the object locked, and truncation takes the page out under that lock before it removes
//! mappings: an earlier fault's mapping is removed, and a later fault gets `BeyondEnd`. Two faults
//! on one page of a shared mapping enter the same frame.
//!
//! *Missing pages.* A pager that would have to wait says so before anything has changed. The fault
//! releases its locks, lets the pager read, and starts again with the lookup, so that it sees
//! whatever changed meanwhile (`uvm.txt` 5.4, 6). Of several faults on one page the first reads and
//! the others wait: see `object/busy.rs`. A fault that has mapped pages tells the pager, which may
//! want to read the next ones (`Pager::touched`): that read starts when the locks are released, and
//! the fault does not wait for it.
//!
//! *Replacing a page.* When a copy replaces a page that may be mapped, the old translation is
//! removed and flushed before the new one is entered: otherwise one thread could read the old page
//! after another has written the new one. Only then is the reference to the old anon dropped (see
//! `amap/anon.rs`).
//!
//! *Fault-ahead.* Resident neighbours are mapped with a page (`uvm.txt` 5.4): those in the window
//! of the advice, or as many ahead as the program has used consecutively before it, by the bits
//! that the processor sets in page-table entries. So the window doubles during sequential access
//! without any stored state, and other programs pay for one check. After many consecutive writes
//! the next zero-fill pages or copies are made in the same fault: see `fault_ahead.rs`. Where the
//! amap has no chunk for the page yet, at most once in 32 pages, a large page may be made: see
//! `large.rs`.
//!
//! *Reads of zero-fill memory* get their own page at once, as writes do. A shared page of zeros
//! would be cheaper for a program that only reads, but each page written later would cost a second
//! fault and a flush, and all CPUs would write the cache line of the zero page's record.

pub(crate) mod fault_ahead;
mod large;
mod large_shared;
mod populate;

use crate::counters::Counter;
use nucleus::{
    Access, DevicePage, Frame, PAGE_SHIFT, PAGE_SIZE, Prot, VirtAddr, VirtRange,
    frame::{self, Contents, RUN_FRAMES},
    pmap::Pending,
};

use crate::amap::{Refused, Resident, Slot, Slots, copy_of, shared_amap};
use crate::map::{Fault, Map, MapEntry, ObjectRef, Space};
use crate::memory_wait::retry_for_memory;
use crate::object::Lookup;
use crate::swap;
use fault_ahead::Neighbours;
pub use fault_ahead::{fault_ahead, set_fault_ahead};

/// The outcome of an attempt.
enum Outcome {
    /// The page is mapped, and its neighbours may be worth mapping.
    Mapped(Neighbours),
    /// A page of a device is mapped.
    Device,
    /// The entry needs an amap of its own first, or another form of it.
    NeedsAmap,
    /// The 2 MiB around the page are to be filled at once.
    NeedsLarge,
    /// A shared page table must be replaced before a page in it becomes writable.
    NeedsTable,
    /// The entry's object must read this page in first.
    NeedsPage(u64),
    /// The anon's page must be read from swap first.
    NeedsSlot,
    /// The entry's object must prepare a write to this page first.
    NeedsRoom(u64),
}

/// One attempt to resolve a fault, with the map read-locked.
struct Attempt<'a> {
    map: &'a Map,
    entry: &'a MapEntry,
    /// The page.
    va: VirtAddr,
    access: Access,
    /// Pages after it that the caller will need.
    wanted: usize,
    /// No large page was tried yet.
    may_be_large: bool,
}

impl Map {
    /// Resolves a fault at `addr`, which may be any value: the one fault routine. May sleep.
    ///
    /// # Errors
    /// Which signal the program gets; [`Fault::OutOfMemory`] leaves everything unchanged and may be
    /// retried.
    pub fn fault(&self, addr: VirtAddr, access: Access) -> Result<(), Fault> {
        self.fault_noting(addr, access, &mut false)
    }

    /// As [`fault`](Map::fault). Sets `was_read` if a page was read, from a file or from swap, or
    /// was being read already: a major fault.
    ///
    /// # Errors
    /// As [`fault`](Map::fault).
    pub fn fault_noting(
        &self,
        addr: VirtAddr,
        access: Access,
        was_read: &mut bool,
    ) -> Result<(), Fault> {
        let result = self.resolve_with(addr, access, 0, was_read, |_| Some(()));
        if result.is_err() {
            Counter::fault_error.add(1);
        }
        result
    }

    /// Resolves a fault and then runs `then` with the map still read-locked, so that only the owner
    /// of an object can have removed the page meanwhile; starts again if it returns `None`.
    pub(crate) fn resolve<R>(
        &self,
        addr: VirtAddr,
        access: Access,
        then: impl FnMut(&Space) -> Option<R>,
    ) -> Result<R, Fault> {
        self.resolve_with(addr, access, 0, &mut false, then)
    }

    /// As [`fault`](Map::fault) for the kernel's own access, waiting for memory as long as the
    /// pagedaemon makes progress. No lock is held.
    ///
    /// # Errors
    /// Why the page can't be accessed.
    pub fn bring_in(&self, addr: VirtAddr, access: Access) -> Result<(), Fault> {
        self.resolve_or_wait(addr, access, |_| Some(()))
    }

    /// As [`resolve`](Map::resolve), waiting for memory as long as the pagedaemon makes progress.
    /// No lock is held.
    pub(crate) fn resolve_or_wait<R>(
        &self,
        addr: VirtAddr,
        access: Access,
        mut then: impl FnMut(&Space) -> Option<R>,
    ) -> Result<R, Fault> {
        retry_for_memory(|| self.resolve(addr, access, &mut then))
    }

    /// As [`resolve`](Map::resolve) for a caller that will need `wanted` pages after this one;
    /// `was_read` as in [`fault_noting`](Map::fault_noting).
    fn resolve_with<R>(
        &self,
        addr: VirtAddr,
        access: Access,
        wanted: usize,
        was_read: &mut bool,
        mut then: impl FnMut(&Space) -> Option<R>,
    ) -> Result<R, Fault> {
        let va = addr.page_floor();
        let mut may_be_large = true;
        loop {
            let space = self.space.read();
            let Some(entry) = space.lookup(va) else {
                drop(space);
                self.grow_stack(va)?;
                continue;
            };
            if !entry.allows(access) {
                return Err(Fault::Protection);
            }
            let attempt = Attempt {
                map: self,
                entry,
                va,
                access,
                wanted,
                may_be_large,
            };
            match attempt.run()? {
                Outcome::Mapped(far) => {
                    let write = access == Access::Write;
                    let mapped =
                        fault_ahead::map_neighbours(&self.pmap, entry, va, write, far, wanted);
                    if let Some(result) = then(&space) {
                        let next = fault_ahead::next_window(entry, mapped);
                        drop(space);
                        if let Some((pager, pages)) = next {
                            pager.prefetch(pages);
                        }
                        return Ok(result);
                    }
                }
                // A caller that looks for a frame finds none, however often it tries.
                Outcome::Device => return then(&space).ok_or(Fault::Io),
                Outcome::NeedsAmap => {
                    drop(space);
                    self.own_amap(va)?;
                }
                Outcome::NeedsLarge => {
                    may_be_large = false;
                    let shared = entry.object.as_ref().filter(|_| entry.shared);
                    let shared = shared.map(|object| {
                        let first = entry.index(object, va) & !(RUN_FRAMES as u64 - 1);
                        (object.pager.clone(), first)
                    });
                    let writable = entry.prot.contains(Prot::WRITE);
                    drop(space);
                    match shared {
                        Some((pager, first)) => {
                            self.make_shared_large(va, access, &pager, first, writable);
                        }
                        None => self.make_large(va, access)?,
                    }
                }
                Outcome::NeedsTable => {
                    drop(space);
                    self.own_table(va)?;
                }
                Outcome::NeedsPage(index) => {
                    let object = entry.object.as_ref().map(|object| object.pager.clone());
                    let window = fault_ahead::read_window(entry, index);
                    drop(space);
                    if let Some(pager) = object {
                        Counter::fault_read_in.add(1);
                        *was_read = true;
                        pager.page_in(index, window)?;
                    }
                }
                Outcome::NeedsSlot => {
                    let wanted = fault_ahead::swap_window(&self.pmap, entry, va, wanted);
                    let key = entry.key(va);
                    let part = entry
                        .amap
                        .as_ref()
                        .and_then(|amap| amap.part_of(key..key + 1));
                    drop(space);
                    if let Some((chunk, which)) = part.filter(|(_, which)| *which != 0) {
                        Counter::fault_swap_in.add(1);
                        *was_read = true;
                        swap::page_in(chunk, which.trailing_zeros() as usize, wanted)?;
                    }
                }
                Outcome::NeedsRoom(index) => {
                    let object = entry.object.as_ref().map(|object| object.pager.clone());
                    drop(space);
                    if let Some(pager) = object {
                        pager.reserve(index)?;
                    }
                }
            }
        }
    }

    /// Clears needs-copy of the entry at `va`, or gives it an amap with a slot for the page
    /// (`uvm.txt` 5.2).
    pub(crate) fn own_amap(&self, va: VirtAddr) -> Result<(), Fault> {
        let mut space = self.space.write();
        match space.lookup_mut(va) {
            Some(entry) if !entry.shared => entry.own_amap(va)?,
            // The entry has changed; the retry handles it.
            _ => return Ok(()),
        }
        self.take_table_back(&mut space, va);
        Ok(())
    }
}

impl Attempt<'_> {
    fn run(&self) -> Result<Outcome, Fault> {
        let write = self.access == Access::Write;
        let entry = self.entry;
        let key = entry.key(self.va);
        match (&entry.amap, &entry.object) {
            (_, Some(object)) if entry.shared => self.map_shared(object),
            (Some(_), _) if entry.needs_copy && write => Ok(Outcome::NeedsAmap),
            (Some(amap), object) if entry.needs_copy => {
                // An amap with other references gets no new anons, so an absent slot stays absent.
                let slots = amap.lock_present(key);
                match (slots.filter(|slots| !slots.peek(key).is_empty()), object) {
                    (Some(slots), _) => self.map_anon(slots),
                    (None, Some(object)) => self.map_object(object),
                    (None, None) => Ok(Outcome::NeedsAmap),
                }
            }
            (Some(amap), object) => {
                let slots = match amap.lock_unless(key, || self.wants_large()) {
                    Ok(slots) => slots,
                    Err(Refused::Unwanted) => return Ok(Outcome::NeedsLarge),
                    Err(Refused::OutOfMemory) => return Err(Fault::OutOfMemory),
                    Err(Refused::Form) => return Ok(Outcome::NeedsAmap),
                };
                // Slots that other amaps share are read-only.
                let shared = slots.shared;
                if write && shared {
                    return Ok(Outcome::NeedsAmap);
                }
                if !slots.peek(key).is_empty() {
                    return self.map_anon(slots);
                }
                match object {
                    None if shared => Ok(Outcome::NeedsAmap),
                    None => self.zero_fill(slots),
                    Some(object) if write => self.promote(slots, object),
                    // The slot stays empty meanwhile.
                    Some(object) => self.map_object(object),
                }
            }
            (None, Some(object)) if !write => self.map_object(object),
            (None, _) if self.wants_large() => Ok(Outcome::NeedsLarge),
            (None, _) => Ok(Outcome::NeedsAmap),
        }
    }

    /// Returns whether a large page is preferred. Called if the page has no slot yet.
    #[inline]
    fn wants_large(&self) -> bool {
        self.may_be_large
            && self
                .entry
                .wants_large(&self.map.pmap, self.va, self.access, self.wanted)
    }

    /// Enters `frame` where nothing, or the same frame, is mapped.
    fn enter(&self, frame: &Frame, prot: Prot) -> Result<(), Fault> {
        let mut pending = Pending::new();
        self.map.pmap.enter(self.va, frame, prot, &mut pending)?;
        Ok(())
    }

    /// Returns whether another thread has resolved the fault, or this CPU's TLB was stale.
    fn is_spurious(&self) -> bool {
        let spurious = self.map.pmap.permits(self.va, self.access);
        // A large page that this fault has made does not count.
        if spurious && self.may_be_large {
            Counter::fault_spurious.add(1);
        }
        spurious
    }

    /// Maps the anon of the slot. For a write, the amap is the entry's own.
    fn map_anon(&self, mut slots: Slots<'_>) -> Result<Outcome, Fault> {
        if self.is_spurious() {
            return Ok(Outcome::Mapped(Neighbours::None));
        }
        let key = self.entry.key(self.va);
        let write = self.access == Access::Write;
        if slots.shared {
            return self.map_common(slots.peek(key));
        }
        let Some(slot) = slots.get(key) else {
            return Ok(Outcome::NeedsAmap);
        };
        let sole = !self.entry.needs_copy && slot.make_sole();
        if write && sole {
            slot.dirty();
        }
        let Some(page) = slot.resident() else {
            return Ok(Outcome::NeedsSlot);
        };
        if write && !sole {
            if self.entry.shares_amap() {
                shared_amap::unmap_everywhere(&page);
            }
            let copy = copy_of(&page)?;
            self.note_broken(&page);
            drop(page);
            if self.map.pmap.is_shared(self.va)
                && (self.va.0.is_multiple_of(RUN_FRAMES * PAGE_SIZE)
                    || fault_ahead::writes_in_order(&self.map.pmap, self.entry, self.va))
            {
                // Copying the table would have its mappings replaced one by one. A program that
                // writes its first page mostly writes on, and pages that are only read return by a
                // few faults.
                self.map.pmap.leave_shared(self.va);
            }
            Counter::fault_copy.add(1);
            self.replace(slot, copy)?;
            let far = match self.copy_ahead(&mut slots) {
                // Pages further away would be mapped without the right that the program needs next.
                0 => Neighbours::Near,
                _ => Neighbours::None,
            };
            return Ok(Outcome::Mapped(far));
        }
        if write && self.map.pmap.is_shared(self.va) {
            return Ok(Outcome::NeedsTable);
        }
        let (counter, far) = match write {
            true => (Counter::fault_in_place, Neighbours::Again),
            false => (Counter::fault_anon, Neighbours::InOrder),
        };
        counter.add(1);
        self.enter(&page, self.entry.anon_prot(sole && !page.is_fixed))?;
        Ok(Outcome::Mapped(far))
    }

    /// Notes that a page was copied, if that ends a loan.
    #[inline]
    fn note_broken(&self, page: &Resident<'_>) {
        if page.is_fixed && page.is_lent() {
            Counter::loans_broken_by_write.add(1);
            // Whether it was lent or received, the page does not say.
            self.map.lent.broke();
            self.map.received.broke();
        }
    }

    /// Maps for reading the page of an anon whose slot other amaps share.
    fn map_common(&self, slot: &Slot) -> Result<Outcome, Fault> {
        let Some(page) = slot.resident() else {
            return Ok(Outcome::NeedsSlot);
        };
        Counter::fault_anon.add(1);
        self.enter(&page, self.entry.anon_prot(false))?;
        Ok(Outcome::Mapped(Neighbours::InOrder))
    }

    /// Copies the pages that will be written next, as far as they have other owners and memory is
    /// not short. Returns how many.
    fn copy_ahead(&self, slots: &mut Slots<'_>) -> usize {
        if self.entry.shares_amap() {
            return 0;
        }
        let range =
            fault_ahead::made_ahead(&self.map.pmap, self.entry, self.va, slots, self.wanted);
        let pages = range.len() >> PAGE_SHIFT;
        let behind = &mut slots.behind(self.entry.key(self.va))[..pages];
        let count = behind.iter().take_while(|slot| slot.has_others()).count();
        if count == 0 {
            return 0;
        }
        // As in `replace`: the old pages must not be visible here any more.
        let range = VirtRange::new(range.start, range.start + count * PAGE_SIZE);
        let mut pending = Pending::new();
        self.map.pmap.remove(range, &mut pending);
        pending.flush();
        let mut copied = 0;
        for slot in &mut behind[..count] {
            let copy = match slot.resident() {
                Some(page) if !frame::is_scarce() => {
                    self.note_broken(&page);
                    copy_of(&page)
                }
                _ => break,
            };
            let Ok(copy) = copy else { break };
            *slot = Slot::sole(copy);
            copied += 1;
        }
        if copied > 0 {
            let made = VirtRange::new(range.start, range.start + copied * PAGE_SIZE);
            fault_ahead::map_made(&self.map.pmap, self.entry, slots, made);
        }
        copied
    }

    /// Stores a new anon, a copy, in the slot and maps it.
    fn replace(&self, slot: &mut Slot, copy: Frame) -> Result<(), Fault> {
        let mut pending = Pending::new();
        let page = VirtRange::new(self.va, self.va + PAGE_SIZE);
        self.map.pmap.remove(page, &mut pending);
        pending.flush();
        // No TLB holds the old page for this address, so the reference may be dropped.
        *slot = Slot::sole(copy.clone());
        self.enter(&copy, self.entry.rights())
    }

    fn zero_fill(&self, mut slots: Slots<'_>) -> Result<Outcome, Fault> {
        let Some(slot) = slots.get(self.entry.key(self.va)) else {
            return Ok(Outcome::NeedsAmap);
        };
        let frame = Frame::alloc(Contents::Zeroed)?;
        self.enter(&frame, self.entry.rights())?;
        slot.fill(frame);
        Counter::fault_zero_fill.add(1);
        self.zero_fill_ahead(&mut slots);
        Ok(Outcome::Mapped(Neighbours::None))
    }

    /// Zero-fills the pages that will be written next, as far as they are empty, `slots` reach, and
    /// memory is not short.
    fn zero_fill_ahead(&self, slots: &mut Slots<'_>) {
        let range =
            fault_ahead::made_ahead(&self.map.pmap, self.entry, self.va, slots, self.wanted);
        let mut end = range.start;
        while end < range.end
            && let Some(slot) = slots.get(self.entry.key(end))
        {
            if !slot.is_empty() || frame::is_scarce() {
                break;
            }
            let Ok(frame) = Frame::alloc(Contents::Zeroed) else {
                break;
            };
            slot.fill(frame);
            end = end + PAGE_SIZE;
        }
        if end > range.start {
            let made = VirtRange::new(range.start, end);
            fault_ahead::map_made(&self.map.pmap, self.entry, slots, made);
        }
    }

    /// Copies the object's page into the amap layer.
    fn promote(&self, mut slots: Slots<'_>, object: &ObjectRef) -> Result<Outcome, Fault> {
        let Some(slot) = slots.get(self.entry.key(self.va)) else {
            return Ok(Outcome::NeedsAmap);
        };
        let index = self.entry.index(object, self.va);
        let below = match object.pager.object().resident(index) {
            Some(frame) => frame,
            None => {
                Counter::fault_pager.add(1);
                match object.pager.lookup(index)? {
                    Lookup::Resident(frame) => frame,
                    Lookup::Absent => return Ok(Outcome::NeedsPage(index)),
                    // A copy of registers would mean nothing, and shown pages are not written.
                    Lookup::Device(_) | Lookup::Shown => return Err(Fault::Io),
                }
            }
        };
        if self.entry.shares_amap() {
            // Other sharers of the amap may be reading it at this position.
            shared_amap::unmap_everywhere(&below);
        }
        let copy = copy_of(&below)?;
        drop(below);
        Counter::fault_promote.add(1);
        self.replace(slot, copy)?;
        Ok(Outcome::Mapped(Neighbours::None))
    }

    /// Maps the object's page for a private mapping, without write permission.
    fn map_object(&self, object: &ObjectRef) -> Result<Outcome, Fault> {
        self.map_page(object, self.entry.rights() - Prot::WRITE)
    }

    /// Maps the object's page for a shared mapping: writable only at the first write, so that the
    /// object is told.
    fn map_shared(&self, object: &ObjectRef) -> Result<Outcome, Fault> {
        let write = self.access == Access::Write;
        if self.wants_large() {
            return Ok(Outcome::NeedsLarge);
        }
        let rights = self.entry.rights();
        let prot = match write {
            true => rights,
            false => rights - Prot::WRITE,
        };
        self.map_page(object, prot)
    }

    fn map_page(&self, object: &ObjectRef, prot: Prot) -> Result<Outcome, Fault> {
        let index = self.entry.index(object, self.va);
        let mut asked = false;
        loop {
            if let Some(mut pages) = object.pager.object().lock(index)
                && let Some(frame) = pages.get_for(index, self.access)
            {
                if self.is_spurious() {
                    return Ok(Outcome::Mapped(Neighbours::None));
                }
                // With the chunk locked: no writeback or truncation sees the page between this and
                // its entering.
                if self.access == Access::Write && !object.pager.mark_dirty(index, Some(frame)) {
                    return Ok(Outcome::NeedsRoom(index));
                }
                if !asked {
                    Counter::fault_object.add(1);
                }
                self.enter(frame, prot)?;
                // Each page of a shared mapping faults at its first write, since the object must be
                // told.
                return Ok(Outcome::Mapped(match self.access {
                    Access::Write => Neighbours::Near,
                    _ => Neighbours::InOrder,
                }));
            }
            asked = true;
            Counter::fault_pager.add(1);
            // If it is truncated before the lock is taken, the pager is asked again and reports
            // that.
            match object.pager.lookup(index)? {
                Lookup::Resident(_) => {}
                Lookup::Absent => return Ok(Outcome::NeedsPage(index)),
                Lookup::Device(page) => return self.map_device(page),
                Lookup::Shown => return self.map_shown(object, index, prot),
            }
        }
    }

    /// Maps the page that a pager shows, or zeros.
    fn map_shown(&self, object: &ObjectRef, index: u64, prot: Prot) -> Result<Outcome, Fault> {
        let mut pending = Pending::new();
        let entered = object.pager.show(index, &mut |frame| {
            self.map.pmap.enter(self.va, frame, prot, &mut pending)
        });
        Ok(match entered? {
            true => {
                Counter::fault_object.add(1);
                Outcome::Mapped(Neighbours::None)
            }
            false => Outcome::NeedsPage(index),
        })
    }

    /// Maps a page of a device.
    fn map_device(&self, page: DevicePage) -> Result<Outcome, Fault> {
        let rights = match self.entry.shared {
            true => self.entry.rights(),
            false => self.entry.rights() - Prot::WRITE,
        };
        let mut pending = Pending::new();
        self.map
            .pmap
            .enter_device(self.va, page, rights, &mut pending)?;
        Counter::fault_device.add(1);
        Ok(Outcome::Device)
    }
}
