//! Pages that a program hands to another one because it asked to: by loan, or for good (`uvm.txt`
//! 7).
//!
//! The receiver's memory is private and writable, chosen by the kernel or given. Private pages of
//! the sender change hands, and those of files and shared memory where their pager lends them;
//! pages that are common with other programs (`minherit`) or cannot be lent are copied, as all are
//! where the switch `movement` allows copies only. Memory that was never touched takes no page on
//! either side, unless the receiver's place needs one. A transfer is a loan whose lender then gives
//! its pages up: its memory reads zero, and the receiver owns the pages alone. So a page is never
//! without an owner, and a transfer that fails loses none. The sender's mappings go with the loan,
//! and the receiver's come when it owns the pages: in new memory, and where it has used what was
//! there before, it may write them without a fault. Writes of the sender's other threads to pages
//! under transfer are lost, and so is what devices are told to write there meanwhile; those that
//! write already are waited for.

use nucleus::{Access, PAGE_SHIFT, PAGE_SIZE, Prot, VirtAddr, VirtRange, frame::Owned};

use super::loan::{Leaving, Mapping};
use super::policy::{Movement, movement};
use crate::chunks::SLOTS;
use crate::fault::fault_ahead;
use crate::map::{Advice, Fault, Lock, Map, MapEntry, MapError, MapRequest, page_range};

/// How pages are handed over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handing {
    /// Both have the pages, until one of them writes.
    Lend,
    /// The sender's pages become zero-fill memory.
    Transfer,
}

/// What was handed over.
#[derive(Clone, Copy, Debug)]
pub struct HandedOver {
    /// Where the receiver has it.
    pub at: VirtAddr,
    /// Pages that the receiver got without a copy: those that changed hands, and untouched ones.
    pub passed: usize,
    /// Pages that were copied.
    pub copied: usize,
}

/// Whether pages change hands, rather than their bytes.
fn passes_pages() -> bool {
    matches!(movement(), Movement::Loan | Movement::Auto)
}

impl Map {
    /// Hands the pages of `range` to `to`, which may be this map: in the place of those at `at`, or
    /// at an address of new memory. Stops early, with [`MapError::Again`], once `goes_on` returns
    /// false. May sleep; no lock is held.
    ///
    /// # Errors
    /// [`MapError::Invalid`] for an empty or unaligned range, for one that overlaps its place, and
    /// for a transfer of memory that is not private or not anonymous. [`MapError::NotMapped`] if
    /// part of the range cannot be read, or part of the place is no private memory that may be
    /// written: nothing has changed, unless a program has changed the mappings meanwhile. For new
    /// memory as [`map`](Map::map). [`MapError::NoMemory`] or [`MapError::Io`] for a page.
    pub fn hand_over(
        &self,
        range: VirtRange,
        to: &Map,
        at: Option<VirtAddr>,
        how: Handing,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<HandedOver, MapError> {
        let range = page_range(range)?;
        if range.is_empty() {
            return Err(MapError::Invalid);
        }
        if let Some(at) = at
            && how == Handing::Lend
            && range.len() == PAGE_SIZE
            && self.lend_one(range.start, to, at)
        {
            return Ok(HandedOver {
                at,
                passed: 1,
                copied: 0,
            });
        }
        self.space.read().check_each(range, |entry| {
            if !entry.allows(Access::Read) {
                return Err(MapError::NotMapped);
            }
            let is_anonymous = entry.is_private_anonymous();
            match how == Handing::Lend || is_anonymous && !entry.is_kernels() {
                true => Ok(()),
                false => Err(MapError::Invalid),
            }
        })?;
        let (start, is_full) = match at {
            Some(at) => {
                let end = at.checked_add(range.len()).ok_or(MapError::NotMapped)?;
                let there = page_range(VirtRange::new(at, end))?;
                let overlaps = !there.intersect(range).is_empty();
                if core::ptr::eq(self, to) && overlaps {
                    return Err(MapError::Invalid);
                }
                to.space.read().check_each(there, |entry| {
                    let may_receive = entry.is_private() && entry.allows(Access::Write);
                    may_receive.then_some(()).ok_or(MapError::NotMapped)
                })?;
                (at, false)
            }
            None => {
                let request = MapRequest::zero(range.len(), Prot::READ | Prot::WRITE);
                let (there, is_full) = to.establish(&request)?;
                (there.start, is_full)
            }
        };
        let there = VirtRange::new(start, start + range.len());
        let mut handed = HandedOver {
            at: start,
            passed: 0,
            copied: 0,
        };
        let maps = how == Handing::Transfer && at.is_none_or(|at| to.has_used(at));
        let mut result = self.hand_each(range, to, &mut handed, how, goes_on);
        if how == Handing::Transfer && result.is_ok() {
            result = self.give_up(range);
            if maps {
                to.map_owned(there);
            }
        }
        if result.is_err() && at.is_none() {
            // The first error is the one that counts.
            let _ = to.unmap(there);
        } else if is_full {
            // Pages for which memory is missing are left to later faults.
            let _ = to.populate_while(there, goes_on);
        }
        result.map(|()| handed)
    }

    /// Lends one page to the place of another one, if both are fit for it. Unlike several, it needs
    /// no check beforehand: either it goes, or nothing has changed.
    fn lend_one(&self, from: VirtAddr, to: &Map, at: VirtAddr) -> bool {
        let is_itself = core::ptr::eq(self, to) && from == at;
        at.is_page_aligned()
            && !is_itself
            && passes_pages()
            && self.pass_pages::<1>(from, to, at, 1, Handing::Lend) == 1
    }

    /// Drops the pages of a range that have another owner now.
    fn give_up(&self, range: VirtRange) -> Result<(), MapError> {
        match self.advise(range, Advice::DontNeedLocked) {
            // Another thread has unmapped some of it, and the rest is dropped.
            Err(MapError::NotMapped) => Ok(()),
            result => result,
        }
    }

    /// Maps the pages in `range` where the program may write, those that it owns alone writable.
    fn map_owned(&self, range: VirtRange) {
        let space = self.space.read();
        for entry in space.overlapping(range) {
            if entry.prot.contains(Prot::WRITE) {
                let part = entry.range.intersect(range);
                fault_ahead::map_all(&self.pmap, entry, part, true);
            }
        }
    }

    fn hand_each(
        &self,
        range: VirtRange,
        to: &Map,
        handed: &mut HandedOver,
        how: Handing,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<(), MapError> {
        let may_move = passes_pages();
        let mut at = range.start;
        while at < range.end {
            if !goes_on() {
                return Err(MapError::Again);
            }
            let there = handed.at + (at - range.start);
            let left = (range.end - at) >> PAGE_SHIFT;
            let passed = match (may_move, left) {
                (false, _) => 0,
                (true, 1) => self.pass_pages::<1>(at, to, there, left, how),
                // A step locks one chunk.
                (true, _) => self.pass_pages::<SLOTS>(at, to, there, left, how),
            };
            let passed = match passed {
                0 => to.receive_zeros(there, self.untouched(at, left))?,
                count => count,
            };
            let passed = match (may_move, passed, left) {
                (true, 0, 1) => self.bring_in_and_pass::<1>(at, to, there, left, how),
                (true, 0, _) => self.bring_in_and_pass::<SLOTS>(at, to, there, left, how),
                (_, count, _) => count,
            };
            handed.passed += passed;
            if passed == 0 {
                self.copy_page(at, to, there)?;
                handed.copied += 1;
            }
            at = at + passed.max(1) * PAGE_SIZE;
        }
        Ok(())
    }

    /// Returns how many pages from the one at `at` on, `most` at most, are private zero-fill memory
    /// that was never touched.
    fn untouched(&self, at: VirtAddr, most: usize) -> usize {
        let space = self.space.read();
        let is_zero = |it: &&MapEntry| it.is_private_anonymous() && it.allows(Access::Read);
        let Some(entry) = space.lookup(at).filter(is_zero) else {
            return 0;
        };
        let most = most.min((entry.range.end - at) >> PAGE_SHIFT);
        let Some(amap) = &entry.amap else {
            return most;
        };
        let (first, last) = (entry.key(at), entry.key(at) + most as i64);
        let (mut start, mut span) = (first, SLOTS as i64);
        // In ever larger steps: a look at a few slots tells mostly, and few steps pass a large gap.
        while start < last {
            let end = last.min(start + span);
            let mut anon = end;
            amap.for_each(start..end, &mut |key, _, _| anon = anon.min(key));
            if anon < end {
                return (anon - first) as usize;
            }
            (start, span) = (end, 2 * span);
        }
        most
    }

    /// Makes pages from the one at `at` on read zero, `most` at most, without memory for them;
    /// returns how many: 0 where pages have something below them, or are to be resident.
    fn receive_zeros(&self, at: VirtAddr, most: usize) -> Result<usize, MapError> {
        if most == 0 {
            return Ok(0);
        }
        let fits = |it: &&MapEntry| {
            let is_anonymous = it.is_private_anonymous();
            is_anonymous && it.allows(Access::Write) && it.lock != Lock::Full
        };
        let left = |it: &MapEntry| (it.range.end - at) >> PAGE_SHIFT;
        let count = self.space.read().lookup(at).filter(fits).map_or(0, left);
        let count = count.min(most);
        self.give_up(VirtRange::new(at, at + count * PAGE_SIZE))?;
        Ok(count)
    }

    /// Brings in a page that is not there yet, or in swap, and passes it and those that follow it.
    fn bring_in_and_pass<const N: usize>(
        &self,
        at: VirtAddr,
        to: &Map,
        there: VirtAddr,
        most: usize,
        how: Handing,
    ) -> usize {
        match self.resolve(at, Access::Read, |_| Some(())) {
            Ok(()) => self.pass_pages::<N>(at, to, there, most, how),
            Err(_) => 0,
        }
    }

    /// Lends up to `N` pages, `most` at most, and returns how many: 0 if the first cannot be lent.
    /// Waits for devices that write the sender's pages.
    fn pass_pages<const N: usize>(
        &self,
        at: VirtAddr,
        to: &Map,
        there: VirtAddr,
        most: usize,
        how: Handing,
    ) -> usize {
        let (leaving, mapping) = match how {
            Handing::Lend => (Leaving::Readable, Mapping::AsUsed),
            Handing::Transfer => (Leaving::Nothing, Mapping::Later),
        };
        let mut pages = [const { None::<Owned> }; N];
        let most = most.min(N);
        let count = self.while_unpinned(|| {
            pages.fill(None);
            self.lend_leaving(at, &mut pages[..most], leaving)
        });
        to.receive_mapping(there, &mut pages[..count], mapping)
    }

    fn copy_page(&self, at: VirtAddr, to: &Map, there: VirtAddr) -> Result<(), MapError> {
        // A device that writes the page has written all of it.
        let held = self.while_unpinned(|| {
            let mut held = [None];
            self.hold_each(at, &mut held);
            held
        });
        let [Some(page)] = held else {
            let why = self.resolve(at, Access::Read, |_| Some(()));
            return Err(why.map_or_else(error_of, |()| MapError::NoMemory));
        };
        to.write_from(there, &page, 0, PAGE_SIZE).map_err(error_of)
    }
}

/// Why a page cannot be read or written.
fn error_of(fault: Fault) -> MapError {
    match fault {
        Fault::OutOfMemory => MapError::NoMemory,
        Fault::Io | Fault::BeyondEnd => MapError::Io,
        Fault::NotMapped | Fault::Protection => MapError::NotMapped,
    }
}
