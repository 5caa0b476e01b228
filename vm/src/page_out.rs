//! Paging out what a program says it will not need for long (`MADV_PAGEOUT`).

use alloc::boxed::Box;
use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange};

use crate::chunks::SLOTS;
use crate::entry::MapEntry;
use crate::map::{Map, page_range};
use crate::request::MapError;
use crate::swap::{Cluster, Taken};

/// Pages that go out by one write at most: 256 KiB.
const CLUSTER: usize = 64;

impl Map {
    /// Begins to write the pages of `range` to swap that have no other home, those of private mappings and of memory that is shared, and
    /// takes those out of memory that are there already. Does not wait for that. Returns how many pages are on their way or gone; none if
    /// the swap space is full.
    ///
    /// # Errors
    /// [`MapError::NotMapped`] if a part of the range is not mapped (the rest goes); [`MapError::Invalid`].
    pub fn page_out(&self, range: VirtRange) -> Result<usize, MapError> {
        let range = page_range(range)?;
        let complete = self.space.read().is_mapped(range);
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
                // What is left of a chunk when the cluster is full goes with the next one.
                at = if cluster.is_full() { part.start } else { end };
            }
            drop(space);
            cluster.write(Box::new(|_| {}));
        }
        match complete {
            true => Ok(count),
            false => Err(MapError::NotMapped),
        }
    }
}

impl MapEntry {
    /// Takes the pages of one chunk at the start of `range` into the cluster, if there is one. Also returns where the chunk ends.
    fn page_out(&self, range: VirtRange, cluster: &mut Cluster) -> (Taken, VirtAddr) {
        let object = self.object.as_ref().filter(|_| self.shared);
        let slot = match object {
            Some(object) => self.index(object, range.start) as usize % SLOTS,
            None => self.key(range.start) as usize % SLOTS,
        };
        let end = range.end.min(range.start + ((SLOTS - slot) << PAGE_SHIFT));
        let taken = match (object, &self.amap) {
            (Some(object), _) => {
                let (first, its) = (self.index(object, range.start), object.pager.object());
                let pages = (end - range.start) >> PAGE_SHIFT;
                let which = (u32::MAX >> (SLOTS - pages)) << slot;
                let chunk = its.chunk_of(first).filter(|_| its.goes_to_swap());
                chunk.map(|chunk| cluster.take(&chunk, which))
            }
            (None, Some(amap)) => {
                let part = amap.part_of(self.keys(VirtRange::new(range.start, end)));
                part.map(|(chunk, which)| cluster.take(&chunk, which))
            }
            (None, None) => None,
        };
        (taken.unwrap_or_default(), end)
    }
}
