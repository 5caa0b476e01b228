//! The cache of mappings (`ephemeral-mappings.txt` 4.2): which address maps which frame, found by
//! the frame; the addresses that are not in use, in the order of their last use, most of which
//! still map what they mapped; and of each the CPUs that hold no other translation of it.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{MAX_AHEAD, translations};
use crate::counters::Counter;
use crate::frame::record::{NONE, address};
use crate::hw::machine;
use crate::mem::mistake::Mistake;
use crate::{OutOfMemory, pmap};

/// The paper's `sf_buf`, but for what is looked at without the cache's lock ([`Translations`]). It
/// is a valid mapping while it names a frame, and inactive while it has no users.
struct Buf {
    /// The frame mapped, or [`NONE`].
    frame: u32,
    /// How many use it.
    users: u32,
    /// The next one of the same hash.
    chain: u32,
    /// Its neighbours among the inactive ones: that used before it, and that used after it.
    older: u32,
    newer: u32,
}

/// What TLBs may hold of one address.
pub(super) struct Translations {
    /// The paper's CPU mask: a bit for each CPU whose TLB holds no other translation than that of
    /// the frame now mapped. Without a user it is emptied, under the cache's lock; a CPU adds its
    /// own bit without it.
    ///
    /// The paper fills the mask where the accessed bit was clear. That is not right where the
    /// mapping before was private: other CPUs may hold the one before that. Here it stays then.
    clean: AtomicU64,
    /// Which [change](super::next_change) of the window emptied it last.
    change: AtomicU64,
}

/// Whose mapping a CPU uses, for the counters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    Private,
    Shared,
}

impl Translations {
    /// No CPU holds any.
    pub(super) const fn new() -> Translations {
        Translations {
            clean: AtomicU64::new(u64::MAX),
            change: AtomicU64::new(0),
        }
    }

    fn become_unclean(&self, change: u64) {
        self.clean.store(0, Ordering::Relaxed);
        self.change.store(change, Ordering::Relaxed);
    }

    /// The mapping is used by this CPU alone: counts the CPUs that need not hear of it.
    pub(super) fn note_private(&self) {
        let missing = pmap::all_cpus() & !self.clean.load(Ordering::Relaxed);
        let others = missing & !(1 << machine::cpu());
        if others != 0 {
            Counter::ephemeral_saved_private.add(u64::from(others.count_ones()));
        }
    }

    /// Makes this CPU's TLB hold no older translation of the address. The caller is pinned.
    #[inline]
    pub(super) fn clean_here(&self, slot: u32, by: Use) {
        let here = 1 << machine::cpu();
        // This CPU has set its bit itself, or has invalidated the address for the one that did.
        let clean = self.clean.load(Ordering::Acquire);
        if clean & here == 0 && !Mistake::MaskForgotten.is_made() {
            self.forget_here(slot, by, clean != 0);
        }
    }

    /// `elsewhere`: another CPU has used the mapping.
    #[cold]
    fn forget_here(&self, slot: u32, by: Use, elsewhere: bool) {
        match super::flushed_since(self.change.load(Ordering::Relaxed)) {
            true => Counter::ephemeral_saved_flushed.add(1),
            false => {
                machine::window_invalidate(slot as usize);
                let cause = match (by, elsewhere) {
                    (Use::Shared, _) => Counter::ephemeral_local_late,
                    (Use::Private, true) => Counter::ephemeral_local_moved,
                    (Use::Private, false) => Counter::ephemeral_local_reuse,
                };
                cause.add(1);
                Counter::tlb_local_page.add(1);
            }
        }
        let here = 1 << machine::cpu();
        self.clean.fetch_or(here, Ordering::Release);
    }

    /// Makes all other CPUs hold none either, and waits until they do. The address is in use, so
    /// that it stays what it is; interrupts are on, and no spin lock is held.
    pub(super) fn clean_everywhere(&self, slot: u32) {
        let missing = pmap::all_cpus() & !self.clean.load(Ordering::Acquire);
        let clean = pmap::all_cpus().count_ones() - missing.count_ones();
        Counter::ephemeral_saved_mask.add(u64::from(clean));
        if missing != 0 {
            let here = missing & 1 << machine::cpu();
            Counter::ephemeral_local_shared.add(u64::from(here != 0));
            Counter::ephemeral_remote_shared.add(u64::from((missing & !here).count_ones()));
            pmap::forget_window(&[slot], missing);
            self.clean.fetch_or(missing, Ordering::Release);
        }
    }
}

/// The lists of one cache, behind its lock. Addresses are counted from the cache's first one.
pub(super) struct Lists {
    bufs: Vec<Buf>,
    /// The first one of each hash.
    hashes: Vec<u32>,
    /// The ends of the list of inactive ones.
    oldest: u32,
    newest: u32,
    inactive: usize,
    /// How many map a frame.
    valid: usize,
    /// How many uses may last: of shared mappings. The users of others are pinned, and end soon.
    lasting: usize,
    /// The first address.
    first: u32,
    /// No mapping is made: the caches are about to change.
    is_closed: bool,
}

impl Lists {
    pub(super) const fn new() -> Lists {
        Lists {
            first: 0,
            is_closed: false,
            bufs: Vec::new(),
            hashes: Vec::new(),
            oldest: NONE,
            newest: NONE,
            inactive: 0,
            valid: 0,
            lasting: 0,
        }
    }

    /// Those for `count` addresses from `first` on, which map nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub(super) fn with_entries(first: u32, count: usize) -> Result<Lists, OutOfMemory> {
        let mut lists = Lists {
            first,
            bufs: crate::try_vec(count)?,
            hashes: crate::try_filled(count.next_power_of_two(), NONE)?,
            ..Lists::new()
        };
        for number in 0..count {
            lists.bufs.push(Buf {
                frame: NONE,
                users: 0,
                chain: NONE,
                older: NONE,
                newer: NONE,
            });
            lists.retire(number as u32);
        }
        Ok(lists)
    }

    /// How many are in use.
    pub(super) fn in_use(&self) -> usize {
        self.bufs.len() - self.inactive
    }

    /// How many use an address; none if it is not one of these.
    pub(super) fn users(&self, slot: u32) -> usize {
        let number = slot.checked_sub(self.first);
        let buf = number.and_then(|number| self.bufs.get(number as usize));
        buf.map_or(0, |buf| buf.users as usize)
    }

    /// How many map a frame, in use or not.
    pub(super) fn valid(&self) -> usize {
        self.valid
    }

    fn hash(&self, frame: u32) -> usize {
        // Neighbouring frames go to neighbouring places.
        frame as usize & (self.hashes.len() - 1)
    }

    /// One more user of the mapping of a frame, which is made if there is none; returns its
    /// address. `None` if all are in use, or the cache is closed.
    pub(super) fn enter(&mut self, frame: u32) -> Option<u32> {
        if self.is_closed || self.hashes.is_empty() {
            return None;
        }
        if let Some(number) = self.find(frame) {
            Counter::ephemeral_hits.add(1);
            return Some(self.slot(number));
        }
        let number = self.replace(frame)?;
        Counter::ephemeral_misses.add(1);
        Some(self.slot(number))
    }

    /// As [`enter`](Lists::enter), for a use that [may last](Lists::end_lasting).
    pub(super) fn enter_lasting(&mut self, frame: u32) -> Option<u32> {
        let slot = self.enter(frame)?;
        self.lasting += 1;
        Some(slot)
    }

    /// A use that may last is over; it is [released](Lists::release) next.
    pub(super) fn end_lasting(&mut self) {
        self.lasting -= 1;
    }

    /// Makes no more mappings, unless a use may last; returns whether that is so.
    pub(super) fn close(&mut self) -> bool {
        self.is_closed = self.lasting == 0;
        self.is_closed
    }

    /// Ends all mappings, if none is in use; returns whether that is so. The cache is closed.
    pub(super) fn end_all(&mut self) -> bool {
        if self.in_use() > 0 {
            return false;
        }
        for number in 0..self.bufs.len() as u32 {
            if self.bufs[number as usize].frame != NONE && self.unmap(number) {
                self.note_held(core::iter::once(number));
            }
        }
        true
    }

    /// Ends the mappings of these frames, none of which has a user: their addresses are used first.
    pub(super) fn end_unused(&mut self, frames: Range<u32>) {
        if self.valid == 0 {
            return;
        }
        for frame in frames {
            let Some(number) = self.number_of(frame) else {
                continue;
            };
            debug_assert_eq!(self.bufs[number as usize].users, 0);
            self.unlink(number);
            if self.unmap(number) {
                self.note_held(core::iter::once(number));
            }
            self.retire_first(number);
        }
    }

    /// Makes mappings again.
    pub(super) fn open(&mut self) {
        self.is_closed = false;
    }

    /// Finds the mapping of a frame, in use or not.
    fn number_of(&self, frame: u32) -> Option<u32> {
        let mut number = self.hashes[self.hash(frame)];
        while number != NONE {
            let buf = &self.bufs[number as usize];
            if buf.frame == frame {
                return Some(number);
            }
            number = buf.chain;
        }
        None
    }

    /// One more user of the mapping of a frame, if there is one.
    fn find(&mut self, frame: u32) -> Option<u32> {
        let number = self.number_of(frame)?;
        if self.bufs[number as usize].users == 0 {
            self.unlink(number);
        }
        self.bufs[number as usize].users += 1;
        Some(number)
    }

    /// Makes the inactive one that was used least lately map a frame, with one user.
    fn replace(&mut self, frame: u32) -> Option<u32> {
        let number = self.oldest;
        if number == NONE {
            return None;
        }
        if self.bufs[number as usize].frame != NONE {
            self.unmap_oldest();
        }
        self.unlink(number);
        let hash = self.hash(frame);
        let buf = &mut self.bufs[number as usize];
        buf.frame = frame;
        buf.users = 1;
        buf.chain = core::mem::replace(&mut self.hashes[hash], number);
        self.valid += 1;
        machine::window_map(self.slot(number) as usize, address(frame));
        Some(number)
    }

    /// Ends the mappings of the oldest inactive ones, ahead of their use for other frames: by then
    /// the CPUs may have dropped what they hold of them.
    fn unmap_oldest(&mut self) {
        // A small cache keeps most of what it has.
        let ahead = super::ahead().min(self.bufs.len() / 4).max(1);
        let (mut number, mut held) = (self.oldest, [NONE; MAX_AHEAD]);
        for held in &mut held[..ahead] {
            if number == NONE || self.bufs[number as usize].frame == NONE {
                break;
            }
            if self.unmap(number) {
                *held = number;
            }
            number = self.bufs[number as usize].newer;
        }
        self.note_held(held.into_iter().filter(|&number| number != NONE));
    }

    /// Takes the mapping out of the page table and the hash; returns whether a TLB may hold it.
    fn unmap(&mut self, number: u32) -> bool {
        let buf = &mut self.bufs[number as usize];
        let frame = core::mem::replace(&mut buf.frame, NONE);
        let chain = core::mem::replace(&mut buf.chain, NONE);
        self.valid -= 1;
        let hash = self.hash(frame);
        if self.hashes[hash] == number {
            self.hashes[hash] = chain;
        } else {
            let mut at = self.hashes[hash];
            while self.bufs[at as usize].chain != number {
                at = self.bufs[at as usize].chain;
            }
            self.bufs[at as usize].chain = chain;
        }
        let may_be_held = machine::window_take(self.slot(number) as usize);
        if !may_be_held {
            // What the mask says of older translations stays true.
            Counter::ephemeral_saved_accessed.add(1);
            if Mistake::AccessedBitOfAll.is_made() {
                let clean = &translations(self.slot(number)).clean;
                clean.store(u64::MAX, Ordering::Relaxed);
            }
        }
        may_be_held && !Mistake::AccessedBitIgnored.is_made()
    }

    /// TLBs may hold translations of these, whose entries are cleared.
    fn note_held(&self, numbers: impl Iterator<Item = u32>) {
        let mut change = None;
        for number in numbers {
            let change = *change.get_or_insert_with(super::next_change);
            translations(self.slot(number)).become_unclean(change);
        }
    }

    /// One user less. The last one leaves the mapping to the next user of the frame, if mappings
    /// are `kept`. Returns whether sleepers may go on.
    pub(super) fn release(&mut self, slot: u32, kept: bool) -> bool {
        let number = slot - self.first;
        let buf = &mut self.bufs[number as usize];
        assert!(buf.users > 0, "an ephemeral mapping is freed twice");
        buf.users -= 1;
        if buf.users > 0 {
            return false;
        }
        if !kept && self.unmap(number) {
            self.note_held(core::iter::once(number));
        }
        self.retire(number);
        self.inactive <= super::WANTED
    }

    fn slot(&self, number: u32) -> u32 {
        self.first + number
    }

    /// Puts one that has no user behind the other inactive ones.
    fn retire(&mut self, number: u32) {
        let before = core::mem::replace(&mut self.newest, number);
        let buf = &mut self.bufs[number as usize];
        (buf.older, buf.newer) = (before, NONE);
        match before {
            NONE => self.oldest = number,
            before => self.bufs[before as usize].newer = number,
        }
        self.inactive += 1;
    }

    /// Puts one that maps nothing before the other inactive ones.
    fn retire_first(&mut self, number: u32) {
        let behind = core::mem::replace(&mut self.oldest, number);
        let buf = &mut self.bufs[number as usize];
        (buf.older, buf.newer) = (NONE, behind);
        match behind {
            NONE => self.newest = number,
            behind => self.bufs[behind as usize].older = number,
        }
        self.inactive += 1;
    }

    /// Takes one out of the inactive ones.
    fn unlink(&mut self, number: u32) {
        let buf = &mut self.bufs[number as usize];
        let (older, newer) = (buf.older, buf.newer);
        (buf.older, buf.newer) = (NONE, NONE);
        match older {
            NONE => self.oldest = newer,
            older => self.bufs[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.bufs[newer as usize].older = older,
        }
        self.inactive -= 1;
    }
}
