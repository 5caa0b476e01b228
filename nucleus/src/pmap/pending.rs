//! See [`Pending`].

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;

use super::leaf::{COUNT, DYING, give_up_entries};
use super::owner;
use super::shootdown::{self, MAX_PAGES, Page, What};
use super::space::Holders;
use crate::frame::give_table;
use crate::frame::record::{NONE, Type, record};
use crate::hw::machine;
use crate::{Frame, VirtAddr};

/// Frames that a set holds by itself. A table that goes as a whole brings its frames along inside,
/// so this is about small ranges and the ends of large ones; when it is full, the set is flushed.
const FRAMES: usize = 64;
/// Shares of page tables that a set holds: 64 MiB of a program's memory.
const SHARES: usize = 32;

/// Mappings removed or narrowed, whose old translation some TLB may still hold, and the frames
/// they held. Nothing but the completed flush turns what is in here into free frames: dropping a
/// set flushes it first. One set collects many changes and costs one interrupt per CPU concerned.
///
/// Neither making nor filling one allocates. Page tables that were taken out are in it too: a
/// processor may walk through them until the flush.
pub struct Pending {
    /// CPUs that may hold any of the old translations.
    cpus: u64,
    /// How many of `pages` are in use; more than it holds once they did not suffice.
    page_count: usize,
    frame_count: usize,
    share_count: usize,
    /// Chain of dead page tables, through their records. The removed entries of those of level
    /// 1 are still in them, as `Pte::pending`.
    tables: u32,
    /// The oracle's time of the first change.
    since: u64,
    pages: [MaybeUninit<Page>; MAX_PAGES],
    frames: [MaybeUninit<u32>; FRAMES],
    /// Tables of level 1 that a space shared with others, and has left.
    shares: [MaybeUninit<u32>; SHARES],
}

impl Pending {
    /// An empty set. No allocation.
    #[inline]
    pub fn new() -> Pending {
        Pending {
            cpus: 0,
            page_count: 0,
            frame_count: 0,
            share_count: 0,
            tables: NONE,
            since: 0,
            pages: [const { MaybeUninit::uninit() }; MAX_PAGES],
            frames: [const { MaybeUninit::uninit() }; FRAMES],
            shares: [const { MaybeUninit::uninit() }; SHARES],
        }
    }

    /// Invalidates what is in the set on every CPU that may hold it, waits for the answers, then
    /// gives up the frames. Interrupts must be on and no spin lock held. When this returns, no CPU
    /// uses an old translation.
    #[inline]
    pub fn flush(&mut self) {
        if !self.is_empty() {
            self.flush_all();
        }
    }

    #[cold]
    fn flush_all(&mut self) {
        if machine::is_unsealed() {
            machine::flush_kernel();
        }
        if self.cpus != 0 {
            let what = match self.pages.get(..self.page_count) {
                Some(pages) => {
                    // SAFETY: the first `page_count` pages were written by `invalidate`.
                    What::Pages(unsafe { &*(core::ptr::from_ref(pages) as *const [Page]) })
                }
                None => What::All,
            };
            shootdown::run(what, self.cpus, self.since);
        }
        self.cpus = 0;
        self.page_count = 0;
        for frame in &self.frames[..self.frame_count] {
            // SAFETY: the first `frame_count` were written by `add_frame`, and each is a handle.
            drop(Frame::from_index(unsafe { frame.assume_init() }));
        }
        self.frame_count = 0;
        for table in &self.shares[..self.share_count] {
            // SAFETY: the first `share_count` were written by `add_share`.
            owner::release(unsafe { table.assume_init() });
        }
        self.share_count = 0;
        while self.tables != NONE {
            let table = self.tables;
            self.tables = record(table).next_dead().swap(0, Ordering::Relaxed) as u32;
            let level = match record(table).kind() {
                Type::PageTable1 => 1,
                Type::PageTable2 => 2,
                _ => 3,
            };
            if level == 1 {
                give_up_entries(table);
            }
            give_table(level, table);
        }
    }

    /// Whether nothing waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.page_count == 0
            && self.frame_count == 0
            && self.share_count == 0
            && self.tables == NONE
    }

    /// Whether the set has page tables that others share and a space has left: as a whole, whatever
    /// part of them the change concerned.
    #[inline]
    pub fn has_shares(&self) -> bool {
        self.share_count > 0
    }

    /// Whether the flush waits for other CPUs. A hint: the task may migrate.
    #[inline]
    pub fn concerns_others(&self) -> bool {
        self.cpus & !(1 << machine::cpu()) != 0
    }

    /// A translation of `va` may be cached on the CPUs of `holders`. Called after the entry was
    /// changed by a locked instruction.
    #[inline]
    pub(super) fn invalidate(&mut self, holders: Holders<'_>, va: VirtAddr) {
        if self.tell(&holders, Some(va)) {
            if let Some(page) = self.pages.get_mut(self.page_count) {
                page.write(holders.page(va));
            }
            self.page_count = (self.page_count + 1).min(MAX_PAGES + 1);
        }
    }

    /// Returns the place for [`tell_from`](Pending::tell_from).
    #[inline]
    pub(super) fn place(&self) -> usize {
        self.page_count
    }

    /// As [`invalidate`](Pending::invalidate), but for the CPUs, which
    /// [`tell_from`](Pending::tell_from) adds after the last change.
    #[inline]
    pub(super) fn note(&mut self, holders: &Holders<'_>, va: VirtAddr) {
        if let Some(page) = self.pages.get_mut(self.page_count) {
            page.write(holders.page(va));
        }
        self.page_count = (self.page_count + 1).min(MAX_PAGES + 1);
    }

    /// Tells the CPUs of `holders` of all that was [noted](Pending::note) since `place`: something
    /// was. A set that is told of too many pages counts them no more.
    #[inline]
    pub(super) fn tell_from(&mut self, place: usize, holders: &Holders<'_>) {
        let count = core::mem::replace(&mut self.page_count, place);
        if self.tell(holders, None) {
            self.page_count = count;
        }
    }

    /// As [`tell_from`](Pending::tell_from), for CPUs that know the pages by another name.
    #[cold]
    pub(super) fn tell_all_from(&mut self, place: usize, holders: Holders<'_>) {
        self.page_count = place;
        self.invalidate_all(holders);
    }

    /// As [`invalidate`](Pending::invalidate) for more pages than can be told one by one.
    pub(super) fn invalidate_all(&mut self, holders: Holders<'_>) {
        if self.tell(&holders, None) {
            self.page_count = MAX_PAGES + 1;
        }
    }

    /// Adds the CPUs of `holders` to those that are told of a change of a page, or of any; false if
    /// there are none.
    #[inline]
    fn tell(&mut self, holders: &Holders<'_>, page: Option<VirtAddr>) -> bool {
        let cpus = holders.told(page);
        if cpus == 0 {
            return false;
        }
        if self.page_count == 0 {
            self.since = machine::coherence_stamp();
        }
        self.cpus |= cpus;
        true
    }

    /// Whether [`add_frame`](Pending::add_frame) or [`add_share`](Pending::add_share) needs a flush
    /// first.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.frame_count == FRAMES || self.share_count == SHARES
    }

    /// How many frames can be added before a flush is needed.
    #[inline]
    pub(super) fn room(&self) -> usize {
        match self.is_full() {
            true => 0,
            false => FRAMES - self.frame_count,
        }
    }

    /// Takes over the handle that a removed mapping had. The set is not full.
    #[inline]
    pub(super) fn add_frame(&mut self, frame: u32) {
        self.frames[self.frame_count].write(frame);
        self.frame_count += 1;
    }

    /// Takes over the share in a table of level 1 of a space that no longer leads to it. The set is
    /// not full.
    pub(super) fn add_share(&mut self, table: u32) {
        self.shares[self.share_count].write(table);
        self.share_count += 1;
    }

    /// Takes over a dead page table, whose use count is 0.
    pub(super) fn add_table(&mut self, table: u32) {
        record(table)
            .next_dead()
            .store(self.tables as u64, Ordering::Relaxed);
        self.tables = table;
    }
}

impl Default for Pending {
    fn default() -> Pending {
        Pending::new()
    }
}

impl Drop for Pending {
    #[inline]
    fn drop(&mut self) {
        machine::point();
        self.flush();
    }
}

/// Adds a dead table of level 1 to the pending ones. Its `Leaf` was dropped.
pub(super) fn bury(table: u32, pending: &mut Pending) {
    let r = record(table);
    debug_assert_eq!(
        r.use_count().load(Ordering::Relaxed) & (COUNT | DYING),
        DYING
    );
    // Acquire: all that others did with the table comes before this.
    r.use_count().swap(0, Ordering::Acquire);
    pending.add_table(table);
}
