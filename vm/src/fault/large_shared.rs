//! Large pages of swap-backed shared memory: System V segments, anonymous shared memory and files
//! in tmpfs.
//!
//! The object holds 512 ordinary pages in consecutive frames. They are added together where it has
//! none of them, or were added so by a fault of another process and have stayed together. Each
//! process then has its own large mapping, which is split when one of the pages is truncated,
//! replaced or goes to swap. A mapping that may be written is made writable at once, even by a
//! read: the right could not be added later without a split.
//!
//! *Races.* All chunks of the span are locked while they are checked, filled and mapped, which
//! excludes faults of other address spaces and truncation. Each is only try-locked: the holder of
//! one may be waiting for another.

use crate::counters::Counter;
use alloc::sync::Arc;
use core::array;
use nucleus::{
    Access, Pmap, Prot, VirtAddr, VirtRange,
    frame::{Contents, RUN_FRAMES, Run},
    pmap::LargeKind,
};

use crate::chunks::SLOTS;
use crate::map::{Map, MapEntry, span_around};
use crate::object::{Pager, Pages};

/// The number of the object's chunks in a large page.
const CHUNKS: usize = RUN_FRAMES / SLOTS;

impl MapEntry {
    /// Returns whether the object appears to have consecutive frames for `span` that were added
    /// together.
    pub(super) fn may_have_run(&self, span: VirtRange) -> bool {
        self.object.as_ref().is_some_and(|it| {
            let page = |i: usize| {
                let index = self.index(it, span.start) + i as u64;
                it.pager.object().resident(index)
            };
            let ends = page(0).zip(page(RUN_FRAMES - 1));
            ends.is_some_and(|(first, last)| Run::may_have_ends(&first, &last))
        })
    }
}

impl Map {
    /// As [`make_large`](Map::make_large) for shared memory of `pager`, whose page `first` lies at
    /// the start of the span, mapped `writable` or not. May do nothing.
    pub(crate) fn make_shared_large(
        &self,
        va: VirtAddr,
        access: Access,
        pager: &Arc<dyn Pager>,
        first: u64,
        writable: bool,
    ) {
        let object = pager.object();
        let pages = first..first + RUN_FRAMES as u64;
        let is_new = object
            .next_resident(first)
            .is_none_or(|index| index >= pages.end);
        let run = match is_new {
            true if access != Access::Write => return,
            // Zeroed before the map is locked.
            true => match Run::alloc(Contents::Zeroed) {
                Ok(run) => Some(run),
                Err(_) => return Counter::large_refused.add(1),
            },
            false => None,
        };
        let has_place = |index: u64| object.make_place(index).is_ok();
        if !pages.step_by(SLOTS).all(has_place) {
            return;
        }
        let space = self.space.write();
        let span = span_around(va);
        let is_same = |entry: &&MapEntry| {
            entry.object.as_ref().is_some_and(|it| {
                core::ptr::eq(it.pager.object(), object) && entry.index(it, span.start) == first
            })
        };
        if let Some(entry) = space.lookup(va)
            && space.may_be_large
            && entry.allows(access)
            && entry.wants_large(&self.pmap, va, access, RUN_FRAMES)
            && entry.shared
            && entry.prot.contains(Prot::WRITE) == writable
            && Some(entry).as_ref().is_some_and(is_same)
        {
            enter_run(&self.pmap, span.start, &**pager, first, run, entry.rights());
        }
    }
}

/// Maps the object's pages from `first` on at `base` if they have consecutive frames, or makes the
/// frames of `run` its pages. The map is write-locked.
fn enter_run(
    pmap: &Pmap,
    base: VirtAddr,
    pager: &dyn Pager,
    first: u64,
    run: Option<Run>,
    rights: Prot,
) {
    let object = pager.object();
    let chunk = |i: usize| object.try_lock(first + (i * SLOTS) as u64);
    let mut chunks: [Option<Pages<'_>>; CHUNKS] = array::from_fn(chunk);
    if chunks.iter().any(Option::is_none) {
        return;
    }
    let pages = first..first + RUN_FRAMES as u64;
    let Some(run) = run else {
        let mut indexes = pages.clone();
        let chunk_of = |index: u64| ((index - first) as usize) / SLOTS;
        // For a writable mapping, swap slots are given up.
        let access = match rights.contains(Prot::WRITE) {
            true => Access::Write,
            false => Access::Read,
        };
        let is_there = indexes.all(|index| {
            let chunk = chunks[chunk_of(index)].as_mut();
            chunk
                .and_then(|chunk| chunk.get_for(index, access))
                .is_some_and(|frame| access == Access::Read || pager.mark_dirty(index, Some(frame)))
        });
        let frames = pages.filter_map(|index| chunks[chunk_of(index)].as_ref()?.get(index));
        if is_there && let Some(run) = Run::of(frames) {
            // Without memory for page tables the fault maps a small page, or waits.
            let _ = pmap.enter_large(base, &run, rights, LargeKind::Shared);
        }
        return;
    };
    let are_vacant = chunks.iter().flatten().all(Pages::are_vacant);
    let mut entered = false;
    if are_vacant {
        pager.admit(pages.clone(), &mut || {
            entered = pmap.enter_large(base, &run, rights, LargeKind::Shared) == Ok(true);
            entered
        });
    }
    if !entered {
        return;
    }
    let mut frames = run.into_frames();
    for chunk in chunks.iter_mut().flatten() {
        chunk.fill(frames.by_ref());
    }
    object.count_more(RUN_FRAMES);
}
