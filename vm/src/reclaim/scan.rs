//! Looking at pages: which are in use, and which may go.
//!
//! A page is *active* or *inactive*. Who comes round finds what its mappings tell:
//!
//! | state | used since the last look | not used |
//! |---|---|---|
//! | active | stays so | becomes inactive |
//! | inactive | becomes active: the second chance | is a victim |
//!
//! A wired page counts as used at every look (`uvm.txt` 3.2). Pages that somebody holds without mapping them (a pipe, a device, the kernel) are left alone: taking them out of
//! where they are would free nothing.

use core::sync::atomic::Ordering::Relaxed;
use nucleus::{
    Frame, Prot,
    counters::Counter,
    frame,
    pmap::{self, Pending},
};

use crate::chunks::SLOTS;
use crate::object::{ACTIVE, Object, Page};

/// How badly frames are needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Urgency {
    /// Programs that are small keep what they have used recently, and what they have.
    #[default]
    Calm,
    /// Everybody gives.
    Pressing,
    /// Second chances are over: what can go goes.
    Desperate,
}

impl Urgency {
    /// The next one, if there is one.
    pub(crate) fn more(self) -> Option<Urgency> {
        match self {
            Urgency::Calm => Some(Urgency::Pressing),
            Urgency::Pressing => Some(Urgency::Desperate),
            Urgency::Desperate => None,
        }
    }
}

/// What a scan has done, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Looked at.
    pub scanned: usize,
    /// Taken out; their frames are free, or will be when a write is done.
    pub freed: usize,
    /// Of those, on their way to where they can be read again.
    pub written: usize,
}

/// One look round for victims: how many are wanted, how far it may go, and what came of it.
#[derive(Debug)]
pub struct Scan {
    wanted: usize,
    budget: usize,
    urgency: Urgency,
    /// What was done so far.
    pub tally: Tally,
}

/// What the owner of a page says about it when it could go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It can be had again as it is: it leaves the object, and its frame is free.
    Drop,
    /// Not now: it is dirty, for example. It stays, unmapped and inactive, and comes up again.
    Keep,
}

/// A process that has no more pages than this keeps them while others have more: a shell and the commands that one
/// types. 2 MiB, or a 32nd of a small machine.
const SMALL: usize = 512;

/// What is to become of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Active,
    Inactive,
    Victim,
}

impl Scan {
    /// Looks for `wanted` victims among up to `budget` pages.
    pub fn new(wanted: usize, budget: usize, urgency: Urgency) -> Scan {
        Scan {
            wanted,
            budget,
            urgency,
            tally: Tally::default(),
        }
    }

    /// Whether it has found what it wants, or looked at as much as it may.
    pub fn is_done(&self) -> bool {
        self.tally.freed >= self.wanted || self.tally.scanned >= self.budget
    }

    /// Goes on until `wanted` victims are found in all, or `budget` pages more were looked at.
    pub(crate) fn extend(&mut self, wanted: usize, budget: usize) {
        self.wanted = wanted;
        self.budget = self.tally.scanned.saturating_add(budget);
    }

    /// Victims that are still wanted.
    pub fn wanted(&self) -> usize {
        self.wanted.saturating_sub(self.tally.freed)
    }

    /// How badly they are.
    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Looks at a page of which the caller's data structure holds one handle, with that locked.
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
            (_, false) if frame.handles() > found.mappings + 1 => Verdict::Inactive,
            (_, false) => Verdict::Victim,
        }
    }

    /// A cache that chooses by itself has looked at `scanned` pages, and given `freed` of them up.
    pub fn count(&mut self, scanned: usize, freed: usize) {
        self.tally.scanned += scanned;
        self.tally.freed += freed;
        Counter::pageout_scanned.add(scanned as u64);
        Counter::pageout_freed.add(freed as u64);
    }

    /// Frames of victims are free, or will be.
    pub(crate) fn freed(&mut self, pages: usize) {
        self.tally.freed += pages;
        Counter::pageout_freed.add(pages as u64);
    }
}

/// Active pages of objects that have a backing store; some may have gone.
pub fn active_in_objects() -> usize {
    ACTIVE.load(Relaxed)
}

impl Object {
    /// Looks at the resident pages from `first` on, as `scan` wants. A page that could go has no mappings any more when
    /// `fate` is asked about it, with its index and frame and whether mappings have modified it; its chunk is locked then, so
    /// `fate` takes no sleeping lock. Pages begin as inactive ones: a page that is read once and never again goes first. Returns
    /// where to go on, `None` at the end.
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
            // Who holds it is using it.
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
            // From here on nobody sees the victims, and what was written to them is known.
            pending.flush();
            while victims != 0 {
                let i = victims.trailing_zeros() as usize;
                victims &= victims - 1;
                let Some(frame) = pages[i].frame() else {
                    continue;
                };
                let index = start + i as u64;
                let modified = pmap::is_modified(frame);
                if frame.handles() == 1 && fate(index, frame, modified) == Fate::Drop {
                    core::mem::swap(&mut gone[i], &mut pages[i]);
                    scan.freed(1);
                    count += 1;
                }
            }
            true
        });
        self.count_less(count);
        stopped
    }
}
