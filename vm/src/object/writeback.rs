//! Writing modified pages of an object back, and giving up those that can be read again.

use alloc::vec::Vec;
use core::ops::Range;
use nucleus::{
    Frame, Prot,
    pmap::{self, Pending},
};

use super::pager::PagerError;
use super::{Object, Page};
use crate::chunks::SLOTS;
use crate::swap;

impl Object {
    /// Calls `write` with each run of neighbouring pages in `range` that mappings have modified,
    /// `most` at a time: the first one's index, and their frames. A store during or after that
    /// makes the page modified again. No lock is held meanwhile.
    ///
    /// # Errors
    /// The first one of `write`, after all have been tried; pages whose write failed are not
    /// modified any more, but for [`PagerError::OutOfMemory`], after which they are.
    pub fn write_back(
        &self,
        range: Range<u64>,
        most: usize,
        write: &mut dyn FnMut(u64, &[Frame]) -> Result<(), PagerError>,
    ) -> Result<(), PagerError> {
        // More pages may come meanwhile: a run is no longer than its memory.
        let most = most.min(self.resident_count()).max(1);
        let mut run: Vec<Frame> = nucleus::try_vec(most)?;
        let mut first = 0;
        let mut result = Ok(());
        let mut flush = |first: u64, run: &mut Vec<Frame>| {
            if run.is_empty() {
                return;
            }
            // Cleared and flushed before the write, so that no store after it goes unnoticed.
            let mut pending = Pending::new();
            for frame in run.iter() {
                pmap::clear_modified(frame, &mut pending);
            }
            pending.flush();
            let written = write(first, run);
            if written == Err(PagerError::OutOfMemory) {
                run.iter().for_each(pmap::set_modified);
            }
            result = result.and(written);
            run.clear();
        };
        self.for_each_resident(range, &mut |index, frame| {
            let goes_on = index == first + run.len() as u64 && run.len() < most;
            if !goes_on {
                flush(first, &mut run);
            }
            if pmap::is_modified(frame) {
                if run.is_empty() {
                    first = index;
                }
                run.push(frame.clone());
            } else {
                flush(first, &mut run);
            }
        });
        flush(first, &mut run);
        result
    }

    /// Evicts up to `most` pages of `range` that are not mapped, not modified and have no other
    /// handle. Returns how many, and the page where it stopped, if it did before the range's end.
    pub fn evict(&self, range: Range<u64>, most: usize) -> (usize, Option<u64>) {
        self.evict_but(range, most, &|_| false)
    }

    /// As [`evict`](Object::evict), except for pages that are `kept`: a failed write may make them
    /// modified again. `kept` is called with their chunk locked; takes no sleeping lock.
    pub fn evict_but(
        &self,
        range: Range<u64>,
        most: usize,
        kept: &dyn Fn(u64) -> bool,
    ) -> (usize, Option<u64>) {
        let mut count = 0;
        let mut stopped = None;
        self.walk(&range, &mut |first, chunk, slots| {
            let mut removed: [Page; SLOTS] = Default::default();
            let mut pages = chunk.lock();
            for i in slots {
                if count == most {
                    stopped = Some(first + i as u64);
                    break;
                }
                // With the chunk locked no handle and no mapping can appear. A write that ended in
                // between, and kept the page until then, may have made it modified.
                let unused = |frame: &Frame| {
                    frame.mappings() == 0
                        && swap::may_go(frame, 0)
                        && !pmap::is_modified(frame)
                        && !kept(first + i as u64)
                        && !pmap::is_modified(frame)
                };
                if pages[i].frame().is_some_and(unused) {
                    core::mem::swap(&mut removed[i], &mut pages[i]);
                    count += 1;
                }
            }
            drop(pages);
            stopped.is_none()
        });
        self.count_less(count);
        (count, stopped)
    }

    /// Removes all pages of `range` that can be read again, mapped or not, and busy ones: their
    /// bytes may be older than the backing store's. Pages stay that are modified, that have other
    /// handles, or that are `kept`, as for [`evict_but`](Object::evict_but). Returns how many pages
    /// that were.
    pub fn invalidate(&self, range: Range<u64>, kept: &dyn Fn(u64) -> bool) -> usize {
        let mut count = 0;
        self.walk(&range, &mut |first, chunk, slots| {
            let mut removed: [Page; SLOTS] = Default::default();
            let mut pages = chunk.lock();
            let mut pending = Pending::new();
            for frame in pages[slots.clone()].iter().filter_map(Page::frame) {
                // With the chunk locked no new mapping can appear, and after the flush the modified
                // bits are complete.
                if frame.mappings() != 0 {
                    pmap::page_protect(frame, Prot::empty(), &mut pending);
                }
            }
            pending.flush();
            for i in slots {
                let stays = |frame: &Frame| {
                    !swap::may_go(frame, 0)
                        || pmap::is_modified(frame)
                        || kept(first + i as u64)
                        || pmap::is_modified(frame)
                };
                if !pages[i].frame().is_some_and(stays) {
                    core::mem::swap(&mut removed[i], &mut pages[i]);
                    count += usize::from(removed[i].frame().is_some());
                }
            }
            drop(pages);
            true
        });
        self.count_less(count);
        count
    }
}
