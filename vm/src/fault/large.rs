//! Large pages: 2 MiB of memory made by one fault and mapped by one entry of a page table.
//!
//! Who gets one:
//!
//! ```text
//!   the span of 2 MiB around the fault lies in one private, writable, zero-fill entry whose amap is its own (or shares
//!   memory that has no file on a disk: see `large_shared.rs`)
//!   nothing of it was ever touched: there is no anon, and no page table
//!   memory is plentiful, and there are so many frames in a row
//!   the program asked for it (`MADV_HUGEPAGE`), or is about to use it up: it goes on with the span's first page, and has written
//!   the last 256 KiB before it in a row, or wants the whole span now (`MAP_POPULATE`, `mlock`)
//! ```
//! The last rule is what keeps memory from being wasted: one page of a span is no promise of the other 511, while who fills
//! memory in order goes on, as zero-fill ahead assumes as well (`ahead.rs`). Reads make none: who only looks at memory that was never
//! written would pay for 2 MiB of zeros; but shared memory that is there is mapped so for reads, too. Code is never in large pages: some processors take a machine
//! check when its page size changes.
//!
//! *After that nothing is large but the mapping.* The 512 anons lie in the amap as always, each with its frame, so that
//! copy-on-write, pageout, `mremap` and all others treat pages singly; who changes the mapping of one has
//! it split by the pmap.
//!
//! *Races.* The span is filled with the map write-locked: no fault and no change of entries comes in between. The mapping comes before
//! the anons, so that the pagedaemon, which finds pages by their slots and needs no map, finds none that is not mapped yet.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use nucleus::{
    Access, OutOfMemory, PAGE_SIZE, Pmap, Prot, VirtAddr, VirtRange,
    counters::Counter,
    frame::{self, Contents, RUN_FRAMES, Run},
    pmap::LargeKind,
};

use super::ahead;
use crate::amap::Amap;
use crate::map::{Fault, Map, MapEntry};

/// Bytes of a large page.
pub(crate) const SPAN: usize = RUN_FRAMES * PAGE_SIZE;

/// Who gets large pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LargePages {
    /// Nobody.
    Off,
    /// Who asks for them (`MADV_HUGEPAGE`).
    Advised,
    /// These, and who writes memory in order.
    On,
}

static MODE: AtomicU8 = AtomicU8::new(LargePages::Off as u8);

/// Sets who gets large pages from now on.
pub fn set_large_pages(mode: LargePages) {
    MODE.store(mode as u8, Relaxed);
}

/// Who gets large pages.
pub fn large_pages() -> LargePages {
    match MODE.load(Relaxed) {
        1 => LargePages::Advised,
        2 => LargePages::On,
        _ => LargePages::Off,
    }
}

/// What a program said about large pages for an entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum LargeAdvice {
    #[default]
    None,
    /// `MADV_HUGEPAGE`.
    Wanted,
    /// `MADV_NOHUGEPAGE`.
    Refused,
}

/// The 2 MiB around an address.
pub(super) fn span_around(va: VirtAddr) -> VirtRange {
    let start = VirtAddr(va.0 & !(SPAN - 1));
    VirtRange::new(start, start + SPAN)
}

impl MapEntry {
    /// Whether its memory is of a kind that may be in large pages.
    fn may_be_large(&self) -> bool {
        self.object.is_none()
            && !self.shared
            && !self.needs_copy
            && !self.shares_amap()
            && !self.grows_down
            && self.large != LargeAdvice::Refused
            && self.prot & (Prot::WRITE | Prot::EXEC) == Prot::WRITE
    }

    /// Whether the first access to the page at `va`, with which the program wants `wanted` pages behind it, is worth a large page. The
    /// map is locked.
    #[inline]
    pub(crate) fn wants_large(
        &self,
        pmap: &Pmap,
        va: VirtAddr,
        access: Access,
        wanted: usize,
    ) -> bool {
        // Nearly all are refused by these.
        let mode = MODE.load(Relaxed);
        mode != LargePages::Off as u8
            && match self.large {
                LargeAdvice::None => mode == LargePages::On as u8 && va.0.is_multiple_of(SPAN),
                LargeAdvice::Wanted => true,
                LargeAdvice::Refused => false,
            }
            && (access == Access::Write || self.shared)
            && self.is_worth_large(pmap, va, access, wanted)
    }

    /// As [`wants_large`](MapEntry::wants_large), but for what that has looked at.
    #[cold]
    fn is_worth_large(&self, pmap: &Pmap, va: VirtAddr, access: Access, wanted: usize) -> bool {
        let span = span_around(va);
        let is_to_come = || {
            access == Access::Write
                && (self.large == LargeAdvice::Wanted
                    || wanted >= RUN_FRAMES - 1
                    || ahead::writes_on(pmap, self, va))
        };
        (self.may_be_large() || self.may_share_large())
            && self.range.start <= span.start
            && span.end <= self.range.end
            && self.fits_large(span)
            && (is_to_come() || self.may_have_run(span))
            && !pmap.has_table(va)
            && frame::available() >= frame::targets().high + RUN_FRAMES
    }

    /// Whether large pages may be in it, for `/proc`.
    pub(crate) fn is_eligible(&self) -> bool {
        let wanted = self.large == LargeAdvice::Wanted;
        let first = VirtAddr(self.range.start.0.next_multiple_of(SPAN));
        (self.may_be_large() || self.may_share_large())
            && first <= self.range.end
            && self.range.end - first >= SPAN
            && self.fits_large(VirtRange::new(first, first + SPAN))
            && match large_pages() {
                LargePages::Off => false,
                LargePages::Advised => wanted,
                LargePages::On => true,
            }
    }

    /// Fills `span`, of which nothing was ever touched, with the frames of `run`. Returns whether it did. The map is write-locked.
    fn fill(&mut self, pmap: &Pmap, span: VirtRange, run: Run) -> Result<bool, OutOfMemory> {
        let keys = self.keys(span);
        let pages = self.pages();
        let rights = self.rights();
        let amap = self
            .amap
            .get_or_insert_with(|| Arc::new(Amap::new(keys.start, pages)));
        let Some(amap) = Arc::get_mut(amap) else {
            return Ok(false);
        };
        let mut any = false;
        amap.for_each(keys.clone(), &mut |_, _, _| any = true);
        if any {
            return Ok(false);
        }
        amap.make_all(keys.clone())?;
        if !pmap.enter_large(span.start, &run, rights, LargeKind::Private)? {
            return Ok(false);
        }
        amap.fill(keys, run.into_frames());
        Ok(true)
    }
}

impl Map {
    /// Makes a large page around `va`, for an access that [wants](MapEntry::wants_large) one, or sees to it that the
    /// amap has a place for a small one, so that it is not wanted again.
    pub(crate) fn make_large(&self, va: VirtAddr, access: Access) -> Result<(), Fault> {
        // Zeroed while nobody waits for the map.
        let run = Run::alloc(Contents::Zeroed);
        if run.is_err() {
            Counter::large_refused.add(1);
        }
        let mut space = self.space.write();
        let allowed = space.may_be_large;
        let Some(entry) = space.lookup_mut(va) else {
            return Ok(());
        };
        if entry.shared || !entry.allows(access) {
            // It changed meanwhile: the next attempt sees what it is now.
            return Ok(());
        }
        if let Ok(run) = run
            && allowed
            && entry.wants_large(&self.pmap, va, access, RUN_FRAMES)
            && entry.fill(&self.pmap, span_around(va), run) == Ok(true)
        {
            return Ok(());
        }
        entry.own_amap(va)?;
        self.take_table_back(&mut space, va);
        Ok(())
    }

    /// Whether large pages may come from now on (`PR_SET_THP_DISABLE`).
    pub fn allow_large_pages(&self, allowed: bool) {
        self.space.write().may_be_large = allowed;
    }
}
