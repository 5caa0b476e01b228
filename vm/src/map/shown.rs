//! Pages of another pager's object that come into a mapping and go from it one by one, without a
//! change of the map: [`ShownPages`].

use core::ops::Range;
use nucleus::{PAGE_SHIFT, Prot, VirtAddr, VirtRange, pmap::Pending};

use super::widen::{TABLE_SPAN, by_table};
use super::{Map, MapEntry};
use crate::object::ShownPages;

impl Map {
    /// Lets the mappings of the view from `start` on show `pages`, for which it was
    /// [prepared](ShownPages::prepare), and enters those that are resident: the others, and pages
    /// for whose mappings memory is missing, are left to faults. Nothing is invalidated, unless
    /// pages of the view were read that were not shown.
    pub fn show_pages(&self, view: &ShownPages, pages: Range<u64>, start: VirtAddr) {
        view.set(&pages, true);
        let space = self.space.read();
        space.each_part_of(view, pages, start, &mut |entry, part, va| {
            self.enter_shown(view, entry, part, va);
        });
    }

    /// Enters those of `pages`, mapped in `entry` from `start` on, that are resident. The map is
    /// locked.
    fn enter_shown(&self, view: &ShownPages, entry: &MapEntry, pages: Range<u64>, start: VirtAddr) {
        let prot = entry.rights() - Prot::WRITE;
        let mut pending = Pending::new();
        let mut table = None;
        let object = view.source().object();
        object.walk(&pages, &mut |first, chunk, slots| {
            let at = |slot: usize| {
                let index = first + slot as u64 - pages.start;
                start + ((index as usize) << PAGE_SHIFT)
            };
            let there = chunk.lock();
            // They lie in one word.
            let shown = view.shown().from(first as usize);
            for run in by_table(VirtRange::new(at(slots.start), at(slots.end))) {
                if run.is_empty() {
                    continue;
                }
                let here = VirtAddr(run.start.0 & !(TABLE_SPAN - 1));
                if table != Some(here) {
                    // Without one, nothing is entered.
                    let _ = self.pmap.make_table(here);
                    table = Some(here);
                }
                if view.has_zeros() {
                    self.pmap.remove_pages(run, &mut pending);
                    pending.flush();
                }
                let first = slots.start + ((run.start - at(slots.start)) >> PAGE_SHIFT);
                self.pmap.enter_run(run, prot, |n| {
                    let slot = first + n;
                    let is_shown = shown >> slot & 1 != 0;
                    there.get(slot)?.frame().filter(|_| is_shown)
                });
            }
            true
        });
    }

    /// The mappings of the view from `start` on do not show `pages` any more, once `pending` was
    /// flushed.
    pub fn hide_pages(
        &self,
        view: &ShownPages,
        pages: Range<u64>,
        start: VirtAddr,
        pending: &mut Pending,
    ) {
        view.set(&pages, false);
        // A fault that looked before has entered its mapping once its chunk can be locked.
        view.source().object().walk(&pages, &mut |_, chunk, _| {
            drop(chunk.lock());
            true
        });
        {
            let space = self.space.read();
            space.each_part_of(view, pages.clone(), start, &mut |_, part, va| {
                let len = ((part.end - part.start) as usize) << PAGE_SHIFT;
                self.pmap
                    .remove_pages(VirtRange::new(va, va + len), pending);
            });
        }
        // An eviction that removed one of these mappings before has flushed it once its chunk can
        // be locked.
        view.source().object().walk(&pages, &mut |_, chunk, _| {
            drop(chunk.lock());
            true
        });
    }
}
