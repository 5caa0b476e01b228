//! Growing ranges: the heap by `brk`, stacks by faults.

use nucleus::{PAGE_SHIFT, Prot, VirtAddr, VirtRange, addr::USER_START};

use super::Map;
use super::change::Change;
use super::entry::MapEntry;
use super::layout::GUARD_GAP;
use super::policy::check_overcommit;
use super::request::{Fault, Lock, MapError, MapRequest};
use super::space::Space;

impl Map {
    /// Sets the start of the heap (`execve`), moved up at random unless the layout is fixed.
    pub fn set_heap_start(&self, start: VirtAddr) {
        let mut space = self.space.write();
        let start = start.checked_add(space.layout.heap_gap).unwrap_or(start);
        space.heap = VirtRange::new(start, start);
    }

    /// Returns the heap: its start and current end.
    pub fn heap(&self) -> VirtRange {
        self.space.read().heap
    }

    /// Moves the end of the heap if it can. Returns where the end is, and which pages are to be
    /// brought in at once.
    pub(crate) fn resize_heap(&self, to: VirtAddr) -> (VirtAddr, Option<VirtRange>) {
        let mut space = self.change();
        let before = space.heap.end;
        if to >= space.heap.start && self.move_break(&mut space, to).is_ok() {
            space.heap.end = to;
        }
        let (end, lock) = (space.heap.end, space.lock_future);
        drop(space);
        let grown = match (before.page_ceil(), end.page_ceil()) {
            (Some(old), Some(new)) if lock == Lock::Full && old < new => {
                Some(VirtRange::new(old, new))
            }
            _ => None,
        };
        (end, grown)
    }

    fn move_break(&self, space: &mut Change<'_>, to: VirtAddr) -> Result<(), MapError> {
        let old = space.heap.end.page_ceil().ok_or(MapError::NoMemory)?;
        let new = to.page_ceil().ok_or(MapError::NoMemory)?;
        if (to - space.heap.start) as u64 > space.limits.data {
            return Err(MapError::NoMemory);
        }
        if new <= old {
            return self.take_range(space, VirtRange::new(new, old));
        }
        let range = VirtRange::new(old, new);
        let pages = range.len() >> PAGE_SHIFT;
        check_overcommit(range.len())?;
        space.check_limits(pages, pages)?;
        if space.lock_future != Lock::None {
            space.check_locked(pages)?;
        }
        space.allow_more()?;
        if !space.is_free(range) {
            return Err(MapError::NoMemory);
        }
        let request = MapRequest {
            label: "[heap]",
            ..MapRequest::zero(range.len(), Prot::READ | Prot::WRITE)
        };
        let entry = MapEntry::new(range, &request, space.lock_future, None);
        space.insert(entry);
        Ok(())
    }

    /// Extends a stack down to `va`, which is not mapped.
    ///
    /// # Errors
    /// [`Fault::NotMapped`] if no stack may grow there.
    pub(crate) fn grow_stack(&self, va: VirtAddr) -> Result<(), Fault> {
        let may_grow = |space: &Space| {
            let entry = space.at_or_above(va)?;
            (entry.grows_down && va >= USER_START).then_some((entry.range, entry.lock))
        };
        // Most faults without an entry are errors and need no write lock.
        if may_grow(&self.space.read()).is_none() {
            return match self.space.read().lookup(va) {
                Some(_) => Ok(()),
                None => Err(Fault::NotMapped),
            };
        }
        let mut space = self.change();
        if space.lookup(va).is_some() {
            return Ok(());
        }
        let (stack, stack_lock) = may_grow(&space).ok_or(Fault::NotMapped)?;
        let crowded = |below: &MapEntry| {
            !below.grows_down
                && !below.prot.is_empty()
                && va.0.saturating_sub(below.range.end.0) < GUARD_GAP
        };
        let pages = (stack.start - va) >> PAGE_SHIFT;
        if (stack.end - va) as u64 > space.limits.stack
            || space.below(va).is_some_and(crowded)
            || space.check_limits(pages, 0).is_err()
            || stack_lock != Lock::None && space.check_locked(pages).is_err()
        {
            return Err(Fault::NotMapped);
        }
        space.replace(stack.start, |entry| {
            if let Some(object) = &mut entry.object {
                object.first = object.first.saturating_sub(pages as u64);
            }
            entry.range.start = va;
        });
        Ok(())
    }
}
