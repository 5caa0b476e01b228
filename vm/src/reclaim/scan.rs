//! Second chance: which pages are in use, and which may be reclaimed.
//!
//! A page is *active* or *inactive*. A scan reads what its mappings tell:
//!
//! | state | used since the last scan | not used |
//! |---|---|---|
//! | active | stays active | becomes inactive |
//! | inactive | becomes active: the second chance | is a victim |
//!
//! A wired page always counts as used (`uvm.txt` 3.2). Pages with references other than mappings (a
//! pipe, a device, the kernel) are skipped: removing them from their owner would free nothing.

use crate::counters::Counter;
use core::sync::atomic::Ordering::Relaxed;
use nucleus::{
    Frame, Prot, frame,
    pmap::{self, Pending},
};

use crate::chunks::SLOTS;
use crate::object::{ACTIVE, Object, Page};
use crate::swap;

/// How urgently frames are needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Urgency {
    /// Small programs keep their pages, and all programs keep what they have used recently.
    #[default]
    Calm,
    /// Small programs are reclaimed from, too.
    Pressing,
    /// There is no second chance.
    Desperate,
}

impl Urgency {
    /// The next level, if there is one.
    pub(crate) fn more(self) -> Option<Urgency> {
        match self {
            Urgency::Calm => Some(Urgency::Pressing),
            Urgency::Pressing => Some(Urgency::Desperate),
            Urgency::Desperate => None,
        }
    }
}

/// The work of a scan, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Inspected.
    pub scanned: usize,
    /// Removed; their frames are free, or will be once they are written.
    pub freed: usize,
    /// Of those, being written.
    pub written: usize,
}

/// A scan for victims: how many are wanted, its budget, and its result.
#[derive(Debug)]
pub struct Scan {
    wanted: usize,
    budget: usize,
    urgency: Urgency,
    /// The work done so far.
    pub tally: Tally,
}

/// A page owner's decision about a page that may be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The page can be read again: it leaves the object, and its frame is freed.
    Drop,
    /// Not now, for example because it is dirty. It stays, unmapped and inactive, and comes up
    /// again.
    Keep,
}

/// Processes with at most so many pages keep them while others have more, for example a shell and
/// simple commands. 2 MiB, or a 32nd of a small machine.
const SMALL: usize = 512;

/// The decision about a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Active,
    Inactive,
    Victim,
}

impl Scan {
    /// Returns a scan for `wanted` victims among up to `budget` pages.
    pub fn new(wanted: usize, budget: usize, urgency: Urgency) -> Scan {
        Scan {
            wanted,
            budget,
            urgency,
            tally: Tally::default(),
        }
    }

    /// Whether it has found what it wants, or spent its budget.
    pub fn is_done(&self) -> bool {
        self.tally.freed >= self.wanted || self.tally.scanned >= self.budget
    }

    /// Continues until `wanted` victims are found in all, or `budget` further pages were inspected.
    pub(crate) fn extend(&mut self, wanted: usize, budget: usize) {
        self.wanted = wanted;
        self.budget = self.tally.scanned.saturating_add(budget);
    }

    /// Victims still wanted.
    pub fn wanted(&self) -> usize {
        self.wanted.saturating_sub(self.tally.freed)
    }

    /// How urgently they are wanted.
    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Judges a page to which the caller's locked data structure holds one reference.
    pub(crate) fn judge(&mut self, active: bool, frame: &Frame) -> Verdict {
        self.tally.scanned += 1;
        Counter::pageout_scanned.add(1);
        let found = pmap::take_use(frame);
        let small = SMALL.min(frame::total() / 32) as u32;
        let used = match self.urgency {
            _ if found.wired => true,
            Urgency::Calm if found.weight <= small => {
                Counter::pageout_spared.add(u64::from(!found.referenced));
                true
            }
            Urgency::Calm | Urgency::Pressing => found.referenced,
            Urgency::Desperate => false,
        };
        match (active, used) {
            (true, true) => Verdict::Active,
            (true, false) if self.urgency < Urgency::Desperate => {
                Counter::pageout_deactivated.add(1);
                Verdict::Inactive
            }
            (false, true) => {
                Counter::pageout_second_chances.add(1);
                Verdict::Active
            }
            (_, false) if !swap::may_go(frame, found.mappings.into()) => Verdict::Inactive,
            (_, false) => Verdict::Victim,
        }
    }

    /// Accounts for a cache that has inspected `scanned` pages by itself and evicted `freed` of
    /// them.
    pub fn count(&mut self, scanned: usize, freed: usize) {
        self.tally.scanned += scanned;
        self.tally.freed += freed;
        Counter::pageout_scanned.add(scanned as u64);
        Counter::pageout_freed.add(freed as u64);
    }

    /// Accounts for frames of victims that are free, or will be.
    pub(crate) fn freed(&mut self, pages: usize) {
        self.tally.freed += pages;
        Counter::pageout_freed.add(pages as u64);
    }
}

/// Returns the number of active pages of objects with a backing store; some may have been freed
/// since.
pub fn active_in_objects() -> usize {
    ACTIVE.load(Relaxed)
}

impl Object {
    /// Ages the resident pages from `first` on, as `scan` wants. Before `fate` is asked about a
    /// victim, by index, frame and whether mappings have modified it, all its mappings are removed;
    /// its chunk is locked, so `fate` takes no sleeping lock. Pages start as inactive ones: a page
    /// that is read once goes first. Returns where to continue, `None` at the end.
    pub fn age(
        &self,
        first: u64,
        scan: &mut Scan,
        fate: &mut dyn FnMut(u64, &Frame, bool) -> Fate,
    ) -> Option<u64> {
        let mut stopped = None;
        let mut count = 0;
        self.walk(&(first..u64::MAX), &mut |start, chunk, slots| {
            if scan.is_done() {
                stopped = Some(start + slots.start as u64);
                return false;
            }
            // The holder of the lock is using it.
            let Some(mut pages) = chunk.try_lock() else {
                return true;
            };
            let mut gone: [Page; SLOTS] = Default::default();
            let mut aged = chunk.aged();
            let mut victims = 0u32;
            let mut pending = Pending::new();
            for i in slots {
                let bit = 1 << i;
                let Some(frame) = pages[i].frame() else {
                    aged &= !bit;
                    continue;
                };
                match scan.judge(aged & bit != 0, frame) {
                    Verdict::Active => aged |= bit,
                    Verdict::Inactive => aged &= !bit,
                    Verdict::Victim => {
                        aged &= !bit;
                        victims |= bit;
                        // With the chunk locked no new mapping can appear.
                        pmap::page_protect(frame, Prot::empty(), &mut pending);
                    }
                }
            }
            let before = chunk.aged().count_ones() as usize;
            ACTIVE.fetch_add(aged.count_ones() as usize, Relaxed);
            ACTIVE.fetch_sub(before, Relaxed);
            chunk.set_aged(aged);
            // From here on the victims are invisible, and their modified bits are final.
            pending.flush();
            while victims != 0 {
                let i = victims.trailing_zeros() as usize;
                victims &= victims - 1;
                let Some(frame) = pages[i].frame() else {
                    continue;
                };
                let index = start + i as u64;
                let modified = pmap::is_modified(frame);
                // A borrower's frame goes on.
                let is_freed = !frame.is_lent();
                if swap::may_go(frame, 0) && fate(index, frame, modified) == Fate::Drop {
                    core::mem::swap(&mut gone[i], &mut pages[i]);
                    scan.freed(usize::from(is_freed));
                    Counter::loans_broken_by_pageout.add(u64::from(!is_freed));
                    count += 1;
                }
            }
            true
        });
        self.count_less(count);
        stopped
    }
}
