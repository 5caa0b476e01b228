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
use nucleus::{
    Access, OutOfMemory, Pmap, VirtAddr, VirtRange,
    counters::Counter,
    frame::{self, Contents, RUN_FRAMES, Run},
    pmap::LargeKind,
};

use super::fault_ahead;
use crate::amap::Amap;
use crate::map::{Fault, LargeAdvice, LargePages, Map, MapEntry, SPAN, large_pages, span_around};

impl MapEntry {
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
        let mode = large_pages();
        mode != LargePages::Off
            && match self.large {
                LargeAdvice::None => mode == LargePages::On && va.0.is_multiple_of(SPAN),
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
                    || fault_ahead::writes_on(pmap, self, va))
        };
        (self.may_be_large() || self.may_share_large())
            && self.range.start <= span.start
            && span.end <= self.range.end
            && self.fits_large(span)
            && (is_to_come() || self.may_have_run(span))
            && !pmap.has_table(va)
            && frame::available() >= frame::targets().high + RUN_FRAMES
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
