//! Page loanout and page transfer (`uvm.txt` 7).
//!
//! A page that a program lends stays where it is. It gets another [owner](Owned), the borrower, and
//! loses the right to be written: the fault routine gives a writer a copy, since the page is lent,
//! and the borrower keeps the old one. Page-out may take the page from one owner and leave it to
//! the others. No entry and no amap is changed by a loan.
//!
//! A page that is transferred to a program becomes an ordinary anon of an aligned buffer, in the
//! place of the one that was there. If others own it as well, it is written like any lent page:
//! after a copy, or in place once they have given it up. It is mapped at once if the program has
//! used what was mapped there; else a fault maps it, so that one that is never touched has
//! no mapping.
//!
//! *Races.* Chunks are locked from the look at their slots until the mappings that could be written
//! are narrowed and flushed, unless all pages had several owners before: none of these is mapped
//! writable. The fault routine takes that lock, so it neither copies a page that a
//! processor still writes nor makes a lent one writable. A pin for a device's writes counts before
//! it looks, and a loan looks for such pins after it has made its owners: one of the two sees the
//! other.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use nucleus::{
    Access, OutOfMemory, PAGE_SHIFT, PAGE_SIZE, VirtAddr, VirtRange, addr::USER_END, frame::Owned,
    pmap::Pending,
};

use super::moved::CopyReason;
use super::policy::{PASSED_TOGETHER, least_move, may_move, reason_to_copy};
use crate::amap::Slot;
use crate::chunks::SLOTS;
use crate::counters::Counter;
use crate::map::{Map, MapEntry, Space};
use crate::object::NARROWED;

/// What a loan leaves of the program's mappings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leaving {
    /// All, without the right to write.
    Readable,
    /// None: the program is about to give its pages up.
    Nothing,
}

/// Whether pages that are received are mapped at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mapping {
    /// If the program has used what was mapped in their place.
    AsUsed,
    /// Later.
    Later,
}

impl MapEntry {
    /// Whether its pages can be replaced by others. Those of locked memory stay mapped as such.
    fn may_receive(&self) -> bool {
        self.is_private() && self.allows(Access::Write) && !self.is_locked()
    }

    /// Whether its pages are those that a call gives it.
    fn may_show(&self) -> bool {
        let object = self.object.as_ref();
        let shows = object.is_some_and(|object| object.pager.shows_given_pages());
        shows && self.is_private() && !self.is_locked()
    }

    /// Drops its pages, since the program, which has moved some, ends.
    pub(crate) fn end(&self) {
        // After a fork others may have the amap as well.
        let own = self.amap.as_ref().filter(|it| Arc::strong_count(it) == 1);
        if let Some(amap) = own {
            let first = self.key(self.range.start);
            amap.end(first..first + self.pages() as i64);
        }
    }
}

impl Map {
    /// Lends the pages from the one at `from` on, which is aligned, to the caller: as many as
    /// `lent` has places for, up to the first that is not resident, that the program may not read,
    /// or that cannot be lent: anons of private memory can, and pages of files and shared memory as
    /// far as their pager [lends](Pager::lend) them. Returns how many. Their bytes do not change
    /// any more. With no lock held that comes after the map's.
    pub fn lend(&self, from: VirtAddr, lent: &mut [Option<Owned>]) -> usize {
        self.lend_leaving(from, lent, Leaving::Readable)
    }

    /// As [`lend`](Map::lend) if that is worth it, by what became of the pages that it lent before.
    ///
    /// # Errors
    /// Why they are to be copied.
    pub fn lend_if_worth(
        &self,
        from: VirtAddr,
        lent: &mut [Option<Owned>],
    ) -> Result<usize, CopyReason> {
        may_move(lent.len(), &self.lent)?;
        Ok(self.lend(from, lent))
    }

    /// As [`lend`](Map::lend), and leaves the program what `leaving` says.
    pub(super) fn lend_leaving(
        &self,
        from: VirtAddr,
        lent: &mut [Option<Owned>],
        leaving: Leaving,
    ) -> usize {
        let mut done = 0;
        self.note_movement();
        let space = self.space.read();
        // Until the flush, a TLB may allow writes to pages that are mapped read-only.
        let end = from.0.saturating_add(lent.len() << PAGE_SHIFT);
        self.unflushed.wait_for(VirtRange::new(from, VirtAddr(end)));
        while done < lent.len() {
            let places = &mut lent[done..];
            match self.lend_chunk(&space, from + (done << PAGE_SHIFT), places, leaving) {
                0 => break,
                n => done += n,
            }
        }
        Counter::pages_lent.add(done as u64);
        done
    }

    /// Lends pages of one entry, those of one chunk at most.
    fn lend_chunk(
        &self,
        space: &Space,
        at: VirtAddr,
        lent: &mut [Option<Owned>],
        leaving: Leaving,
    ) -> usize {
        let entry = space.lookup(at).filter(|_| at < USER_END);
        // The pages of locked memory stay where they are, mapped as such: another owner of a page
        // could take its mappings away.
        let Some(entry) = entry.filter(|it| it.allows(Access::Read) && !it.is_locked()) else {
            return 0;
        };
        let left = (entry.range.end - at) >> PAGE_SHIFT;
        let most = lent.len().min(left).min(SLOTS);
        let count = match entry.is_private() {
            true => self.lend_anons(entry, at, &mut lent[..most], leaving),
            false => 0,
        };
        match (&entry.object, count) {
            (Some(object), 0) if entry.shared || entry.is_private() => {
                // Pages above the object's are anons: they are no run of the object's.
                let is_below = |at| entry.shared || !entry.has_anon(at);
                let places = lent[..most].iter_mut().enumerate();
                let pages = places.map_while(|(i, place)| {
                    let at = at + (i << PAGE_SHIFT);
                    let page = is_below(at).then(|| object.pager.lend(entry.index(object, at)));
                    *place = Some(page??);
                    Some(())
                });
                pages.count()
            }
            _ => count,
        }
    }

    /// Lends anons of one chunk of a private entry.
    fn lend_anons(
        &self,
        entry: &MapEntry,
        at: VirtAddr,
        lent: &mut [Option<Owned>],
        leaving: Leaving,
    ) -> usize {
        let key = entry.key(at);
        let Some(mut slots) = entry.amap.as_ref().and_then(|amap| amap.lock_present(key)) else {
            return 0;
        };
        let most = lent.len();
        let is_own = !slots.shared && !entry.needs_copy;
        let mut count = 0;
        let mut were_lent = true;
        while count < most && slots.holds(key + count as i64) {
            let key = key + count as i64;
            if is_own && let Some(slot) = slots.get(key) {
                slot.keep();
            }
            let Some((page, was_lent)) = slots.peek(key).lend() else {
                break;
            };
            lent[count] = Some(page);
            were_lent &= was_lent;
            count += 1;
        }
        let run = VirtRange::new(at, at + (count << PAGE_SHIFT));
        let is_done = leaving == Leaving::Readable && were_lent;
        if !run.is_empty() && !is_done {
            let mut pending = Pending::new();
            match leaving {
                Leaving::Readable => self.pmap.protect(run, NARROWED, &mut pending),
                Leaving::Nothing => self.pmap.remove(run, &mut pending),
            }
            pending.flush();
        }
        if self.write_pins.load(SeqCst) > 0 {
            // A device may be writing them.
            lent[..count].fill(None);
            return 0;
        }
        count
    }

    /// Gives pages to the program, in the place of those from `at` on, which is aligned: as many as
    /// there are, up to the first place that is not in private memory which the program may write,
    /// or for which there is no memory. Returns how many were taken out of `pages`. With no lock
    /// held that comes before the map's.
    pub fn receive(&self, at: VirtAddr, pages: &mut [Option<Owned>]) -> usize {
        self.receive_mapping(at, pages, Mapping::AsUsed)
    }

    /// As [`receive`](Map::receive), in mappings that [show](Pager::shows_given_pages) such pages.
    pub fn show(&self, at: VirtAddr, pages: &mut [Option<Owned>]) -> usize {
        self.receive_where(at, pages, Mapping::AsUsed, MapEntry::may_show)
    }

    /// Whether a mapping that [shows](Map::show) pages begins at or before `at`; returns the bytes
    /// from there to its end.
    pub fn shows_from(&self, at: VirtAddr) -> Option<usize> {
        let space = self.space.read();
        let entry = space.lookup(at).filter(|it| it.may_show())?;
        Some(entry.range.end - at)
    }

    /// As [`receive`](Map::receive) if that is worth it, by what became of the pages that it
    /// received before.
    ///
    /// # Errors
    /// Why they are to be copied.
    pub fn receive_if_worth(
        &self,
        at: VirtAddr,
        pages: &mut [Option<Owned>],
    ) -> Result<usize, CopyReason> {
        may_move(pages.len(), &self.received)?;
        Ok(self.receive(at, pages))
    }

    /// As [`receive`](Map::receive), and maps the pages as `mapping` says.
    pub(super) fn receive_mapping(
        &self,
        at: VirtAddr,
        pages: &mut [Option<Owned>],
        mapping: Mapping,
    ) -> usize {
        self.receive_where(at, pages, mapping, MapEntry::may_receive)
    }

    /// As [`receive_mapping`](Map::receive_mapping), in entries that `may` have the pages.
    #[inline(always)]
    fn receive_where(
        &self,
        at: VirtAddr,
        pages: &mut [Option<Owned>],
        mapping: Mapping,
        may: fn(&MapEntry) -> bool,
    ) -> usize {
        let mut done = 0;
        self.note_movement();
        while done < pages.len() {
            let at = at + (done << PAGE_SHIFT);
            match self.receive_chunk(at, &mut pages[done..], mapping, may) {
                Ok(0) | Err(OutOfMemory) => break,
                Ok(n) => done += n,
            }
        }
        Counter::pages_transferred.add(done as u64);
        done
    }

    fn note_movement(&self) {
        if !self.moves.load(Relaxed) {
            self.moves.store(true, Relaxed);
        }
    }

    /// Whether the program has used the page at `at` since it was mapped.
    pub(super) fn has_used(&self, at: VirtAddr) -> bool {
        self.pmap.use_of(at) == Some(true)
    }

    /// Lends pages from the one at `from` on, which is aligned, to another address space, in the
    /// place of those from `at` on: of `bytes` bytes, and a few at most. Returns how many.
    ///
    /// # Errors
    /// Why the first page is to be copied.
    pub fn pass_to(
        &self,
        from: VirtAddr,
        to: &Map,
        at: VirtAddr,
        bytes: usize,
    ) -> Result<usize, CopyReason> {
        let is_aligned = from.is_page_aligned() && at.is_page_aligned();
        let pages = bytes / PAGE_SIZE;
        if !is_aligned || pages * PAGE_SIZE < least_move() {
            return Err(reason_to_copy(bytes));
        }
        let most = pages.min(PASSED_TOGETHER);
        may_move(most, &self.lent)?;
        may_move(most, &to.received)?;
        let mut pages = [const { None }; PASSED_TOGETHER];
        match self.lend(from, &mut pages[..most]) {
            0 => Err(CopyReason::NotLent),
            count => match to.receive(at, &mut pages[..count]) {
                0 => Err(CopyReason::NotTaken),
                taken => Ok(taken),
            },
        }
    }

    /// Gives pages to slots of one chunk.
    fn receive_chunk(
        &self,
        at: VirtAddr,
        pages: &mut [Option<Owned>],
        mapping: Mapping,
        may: fn(&MapEntry) -> bool,
    ) -> Result<usize, OutOfMemory> {
        // The entry may need an amap, and then a page table, of its own.
        for _ in 0..3 {
            let space = self.space.read();
            let entry = space.lookup(at).filter(|_| at < USER_END);
            let Some(entry) = entry.filter(|it| may(it)) else {
                return Ok(0);
            };
            let key = entry.key(at);
            let amap = entry.amap.as_ref().filter(|_| !entry.needs_copy);
            let slots = amap.and_then(|amap| amap.lock(key).ok());
            let Some(mut slots) = slots.filter(|slots| !slots.shared) else {
                drop(space);
                self.own_amap(at).map_err(|_| OutOfMemory)?;
                continue;
            };
            if self.pmap.is_shared(at) {
                drop(slots);
                drop(space);
                self.own_table(at)?;
                continue;
            }
            let left = (entry.range.end - at) >> PAGE_SHIFT;
            let count = pages.len().min(left).min(slots.after(key) + 1);
            let is_same = |slot: &Slot, page: &Option<Owned>| {
                slot.sole_frame()
                    .is_some_and(|frame| page.as_deref() == Some(frame))
            };
            let mut done = 0;
            while done < count {
                let first = done;
                // A page that comes again, since neither side has written it, is there.
                while done < count && !is_same(slots.peek(key + done as i64), &pages[done]) {
                    done += 1;
                }
                let run = VirtRange::new(at + (first << PAGE_SHIFT), at + (done << PAGE_SHIFT));
                if !run.is_empty() {
                    let was_used = self.pmap.use_of(run.start);
                    let maps = mapping == Mapping::AsUsed && was_used == Some(true);
                    if was_used.is_some() || run.len() > PAGE_SIZE {
                        let mut pending = Pending::new();
                        self.pmap.remove(run, &mut pending);
                        // From here on no TLB holds the old pages.
                        pending.flush();
                    }
                    for (key, page) in (key + first as i64..).zip(&mut pages[first..done]) {
                        let Some(slot) = slots.get(key) else {
                            // Those that are there count; a fault maps them.
                            return Ok((key - entry.key(at)) as usize);
                        };
                        if let Some(page) = page.take() {
                            *slot = Slot::sole(page);
                        }
                    }
                    if maps {
                        self.pmap.enter_ahead_each(run, |va| {
                            let page = slots.peek(entry.key(va)).resident()?;
                            let prot = entry.anon_prot(!page.is_fixed);
                            Some((page, prot))
                        });
                    }
                }
                if done < count {
                    // These are its bytes from now on, whatever it said of them before.
                    if let Some(slot) = slots.get(key + done as i64) {
                        slot.keep();
                    }
                    pages[done] = None;
                    done += 1;
                }
            }
            return Ok(count);
        }
        Ok(0)
    }
}
