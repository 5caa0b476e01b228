//! Moving mappings to other addresses of the same pmap, or of another one.
//!
//! In batches of three steps: entries are taken out of their tables, and with them their reverse
//! links; what they were is flushed; then they are put in at the new place. So at no time do two
//! addresses lead to a page for one mapping, and a search for all mappings of a frame never misses
//! one that a TLB still uses: until the flush, what holds the frame is the batch.

use core::mem::MaybeUninit;

use super::device;
use super::format::{LEAF_SPAN, Pte, index};
use super::large::Why;
use super::leaf::Leaf;
use super::mapping::{Unmapped, install, part_of, unmap};
use super::pending::Pending;
use super::space::Pmap;
use super::table::Found;
use crate::frame::record::record;
use crate::{Frame, PAGE_SIZE, VirtAddr, VirtRange};

/// Mappings on their way at a time: 1 MiB of a program's memory for 4 KiB of the stack.
const BATCH: usize = 256;

/// A mapping that was taken out. Its handle of the frame goes with it.
#[derive(Clone, Copy)]
struct Moving {
    entry: Pte,
    /// Pages from the start of the range that is moved.
    page: usize,
}

/// Mappings on their way; the first `count` are in use.
struct Batch {
    count: usize,
    moving: [MaybeUninit<Moving>; BATCH],
}

impl Batch {
    fn is_full(&self) -> bool {
        self.count == BATCH
    }

    /// Not into a full one.
    fn push(&mut self, entry: Pte, page: usize) {
        self.moving[self.count].write(Moving { entry, page });
        self.count += 1;
    }

    /// Empties it.
    fn take(&mut self) -> impl Iterator<Item = Moving> {
        let count = core::mem::take(&mut self.count);
        self.moving[..count].iter().map(|moving| {
            // SAFETY: the first `count` were written by `push`.
            unsafe { moving.assume_init() }
        })
    }
}

impl Pmap {
    /// As [`move_range_to`](Pmap::move_range_to), inside this pmap.
    pub fn move_range(&self, range: VirtRange, to: VirtAddr) -> usize {
        self.move_range_to(range, self, to)
    }

    /// Moves every mapping in `range` to the same distance from `to` in `target`, with its rights
    /// and what is known of its use. Nothing is mapped at the new place, which does not overlap the
    /// old one. For lack of a frame for a page table, or where something has been mapped at the new
    /// place meanwhile, a mapping is removed. When this returns, no CPU uses a translation of the
    /// old addresses. Sleeps never; interrupts are on and no spin lock is held.
    ///
    /// While it is on its way a page is mapped in neither pmap, and
    /// [`page_protect`](super::page_protect) passes it by: the caller prevents that rights are
    /// taken away to these frames meanwhile. Returns how many mappings were moved.
    pub fn move_range_to(&self, range: VirtRange, target: &Pmap, to: VirtAddr) -> usize {
        debug_assert!(range.start.is_page_aligned() && to.is_page_aligned());
        debug_assert!(
            !core::ptr::eq(self, target)
                || VirtRange::new(to, to + range.len())
                    .intersect(range)
                    .is_empty(),
            "mappings are moved onto themselves"
        );
        let mut pending = Pending::new();
        let mut batch = Batch {
            count: 0,
            moving: [const { MaybeUninit::uninit() }; BATCH],
        };
        let mut left = range;
        let mut moved = 0;
        while let Some(Found { leaf, .. }) = self.next_leaf(left, None) {
            if !leaf.is_own() {
                self.part_from(leaf, Why::Other, &mut pending);
                continue;
            }
            let (mut i, stop) = part_of(left, leaf.base);
            let owner = record(leaf.table).owner();
            while !batch.is_full()
                && let Some(next) = leaf.next_entry(i, stop)
            {
                i = next + 1;
                let Some(Unmapped { old, .. }) = unmap(leaf.table, next, Pte::ZERO) else {
                    continue;
                };
                let va = VirtAddr(leaf.base.0 + next * PAGE_SIZE);
                self.forget(owner, old, va, &mut pending);
                batch.push(old, (va - range.start) / PAGE_SIZE);
                leaf.remove_entry();
            }
            let is_full = batch.is_full();
            left.start = VirtAddr(leaf.base.0 + if is_full { i * PAGE_SIZE } else { LEAF_SPAN });
            match leaf.entries() {
                0 => self.prune(leaf, &mut pending),
                _ => drop(leaf),
            }
            if is_full {
                pending.flush();
                moved += target.put_in(&mut batch, to);
            }
        }
        pending.flush();
        moved + target.put_in(&mut batch, to)
    }

    /// Maps what is in the batch, which was flushed, from `to` on. Returns how many pages were
    /// mapped.
    fn put_in(&self, batch: &mut Batch, to: VirtAddr) -> usize {
        let mut moved = 0;
        let mut leaf: Option<Leaf> = None;
        for Moving { entry, page } in batch.take() {
            let va = to + page * PAGE_SIZE;
            if leaf.as_ref().is_none_or(|leaf| va - leaf.base >= LEAF_SPAN) {
                // The one before is given back before a spin lock is taken for the next.
                drop(leaf.take());
                leaf = self.make_leaf(va).ok();
            }
            // Without a table the page, which has no other user by this handle, is given up.
            let i = index(va, 1);
            moved += usize::from(match (&leaf, entry.is_device()) {
                (Some(leaf), false) => {
                    install(leaf, i, Frame::from_index(entry.frame()), entry.elsewhere())
                }
                (Some(leaf), true) => device::install(leaf, i, entry.elsewhere()),
                (None, false) => {
                    drop(Frame::from_index(entry.frame()));
                    false
                }
                (None, true) => false,
            });
        }
        moved
    }
}
