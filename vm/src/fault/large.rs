//! Large pages: 2 MiB of memory made by one fault and mapped by one page-table entry.
//!
//! A fault makes a large page if all of these hold:
//!
//! ```text
//!   its 2 MiB span lies in one private, writable, zero-fill entry with an amap of its own
//!       (or in swap-backed shared memory: see `large_shared.rs`)
//!   the span is untouched: it has neither an anon nor a page table
//!   memory is plentiful, with so many consecutive frames
//!   the program asked for large pages (`MADV_HUGEPAGE`), or wants the whole span now
//!       (`MAP_POPULATE`, `mlock`), or fills memory sequentially: it touches the first page of the
//!       span and has just written the 256 KiB before it
//! ```
//! The last rule limits wasted memory: one used page does not promise the other 511, but a program
//! that fills memory sequentially continues, as zero-fill ahead also assumes (`fault_ahead.rs`).
//! Reads make no large pages, since reading untouched memory would cost 2 MiB of zeros; resident
//! shared memory is mapped large for reads, too. Code is never in large pages: some processors
//! raise a machine check when the page size of code changes.
//!
//! *Only the mapping is large.* The amap holds 512 ordinary anons, so that copy-on-write, page-out
//! and `mremap` treat pages singly; the pmap splits the mapping when one page's mapping changes.
//!
//! *Races.* The span is filled with the map write-locked, which excludes faults and changes of
//! entries. It is mapped before the anons are stored: the pagedaemon, which finds pages through
//! slots without a map lock, finds mapped ones only.

use crate::counters::Counter;
use alloc::sync::Arc;
use nucleus::{
    Access, OutOfMemory, Pmap, VirtAddr, VirtRange,
    frame::{self, Contents, RUN_FRAMES, Run},
    pmap::LargeKind,
};

use super::fault_ahead;
use crate::amap::Amap;
use crate::map::{Fault, LargeAdvice, LargePages, Map, MapEntry, SPAN, large_pages, span_around};

impl MapEntry {
    /// Returns whether the first access to the page at `va` is worth a large page. The program
    /// wants `wanted` pages after it as well. The map is locked.
    #[inline]
    pub(crate) fn wants_large(
        &self,
        pmap: &Pmap,
        va: VirtAddr,
        access: Access,
        wanted: usize,
    ) -> bool {
        // Fast path: these refuse nearly all accesses.
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

    /// The rest of [`wants_large`](MapEntry::wants_large).
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

    /// Fills the untouched `span` with the frames of `run`. Returns whether it did. The map is
    /// write-locked.
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
    /// Makes a large page around `va` for an access that [wants](MapEntry::wants_large) one;
    /// otherwise gives the amap a slot for a small page, so that the retry does not want a large
    /// one again.
    pub(crate) fn make_large(&self, va: VirtAddr, access: Access) -> Result<(), Fault> {
        // Zeroed before the map is locked.
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
            // The entry has changed; the retry handles it.
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

    /// Sets whether large pages are made in this address space (`PR_SET_THP_DISABLE`).
    pub fn allow_large_pages(&self, allowed: bool) {
        self.space.write().may_be_large = allowed;
    }
}
