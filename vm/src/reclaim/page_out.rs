//! Page-out on request (`MADV_PAGEOUT`).

use alloc::{boxed::Box, sync::Arc};
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange};

use crate::amap::Slot;
use crate::chunks::{Chunk, SLOTS, bits_of};
use crate::map::{Map, MapEntry, MapError, page_range};
use crate::object::Page;
use crate::swap::{Cluster, Taken};

/// The most pages of one write: 256 KiB.
const CLUSTER: usize = 64;

impl Map {
    /// Starts writing swap-backed pages of `range` to swap, those of private mappings and of shared
    /// memory, and drops those whose bytes a slot has. Does not wait. Returns how many pages are
    /// leaving or dropped; none if the swap space is full.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if part of the range is not mapped (the rest goes);
    /// [`MapError::Invalid`].
    pub fn page_out(&self, range: VirtRange) -> Result<usize, MapError> {
        let range = page_range(range)?;
        let complete = self.space.read().check_mapped(range);
        let mut at = range.start;
        let mut count = 0;
        while at < range.end
            && let Some(mut cluster) = Cluster::new(CLUSTER)
        {
            let space = self.space.read();
            while at < range.end && !cluster.is_full() {
                let entry = space.overlapping(VirtRange::new(at, range.end)).next();
                let Some(entry) = entry else {
                    at = range.end;
                    break;
                };
                let part = VirtRange::new(at, range.end).intersect(entry.range);
                let (taken, end) = entry.page_out(part, &mut cluster);
                count += taken.leaving + taken.dropped;
                // The rest of a chunk goes with the next cluster.
                at = if cluster.is_full() { part.start } else { end };
            }
            drop(space);
            cluster.write(Box::new(|_| {}));
        }
        complete.map(|()| count)
    }
}

/// An entry's pages in one chunk: the chunk, and a bit for each page.
pub(crate) enum Part {
    Anons(Arc<Chunk<Slot>>, u32),
    /// An object's, and whether they are swap-backed.
    Pages(Arc<Chunk<Page>>, u32, bool),
}

impl MapEntry {
    /// Returns the pages at the start of `range`, a part of the entry, up to the end of their
    /// chunk, if there is one: anons of a private mapping, or an object's pages. Also returns where
    /// the chunk ends.
    fn chunk_at(&self, range: VirtRange) -> (Option<Part>, VirtAddr) {
        let object = self.object.as_ref().filter(|_| self.amap.is_none());
        let slot = match object {
            Some(object) => self.index(object, range.start) as usize % SLOTS,
            None => self.key(range.start) as usize % SLOTS,
        };
        let end = range.end.min(range.start + ((SLOTS - slot) << PAGE_SHIFT));
        let part = match (object, &self.amap) {
            (Some(object), _) => {
                let (first, its) = (self.index(object, range.start), object.pager.object());
                let pages = (end - range.start) >> PAGE_SHIFT;
                let which = (u32::MAX >> (SLOTS - pages)) << slot;
                let chunk = its.chunk_of(first);
                chunk.map(|chunk| Part::Pages(chunk, which, its.is_swap_backed()))
            }
            (None, Some(amap)) => amap
                .part_of(self.keys(VirtRange::new(range.start, end)))
                .map(|(chunk, which)| Part::Anons(chunk, which)),
            (None, None) => None,
        };
        (part, end)
    }

    /// Calls `f` for the pages in `range`, a part of the entry, chunk by chunk; untouched parts
    /// cost nothing.
    pub fn for_each_chunk(&self, range: VirtRange, f: &mut dyn FnMut(Part)) {
        match (&self.amap, &self.object) {
            (Some(amap), _) => amap.for_each_chunk(self.keys(range), &mut |chunk, which| {
                f(Part::Anons(chunk, which));
            }),
            (None, Some(object)) => {
                let (first, its) = (self.index(object, range.start), object.pager.object());
                let pages = first..first + (range.len() >> PAGE_SHIFT) as u64;
                its.walk(&pages, &mut |first, _, slots| {
                    let which = bits_of(slots);
                    if let Some(chunk) = its.chunk_of(first) {
                        f(Part::Pages(chunk, which, its.is_swap_backed()));
                    }
                    true
                });
            }
            (None, None) => {}
        }
    }

    /// Adds the pages of the chunk at the start of `range` to the cluster. Also returns where the
    /// chunk ends.
    fn page_out(&self, range: VirtRange, cluster: &mut Cluster) -> (Taken, VirtAddr) {
        let (part, end) = self.chunk_at(range);
        let taken = match part {
            Some(Part::Anons(chunk, which)) => cluster.take(&chunk, which),
            Some(Part::Pages(chunk, which, true)) if self.shared => cluster.take(&chunk, which),
            _ => Taken::default(),
        };
        (taken, end)
    }
}
