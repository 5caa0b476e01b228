//! `mremap`: moving or resizing an entry, or a part of one.
//!
//! A move keeps the amap and its keys; the entry stores the distance. If there is only an amap, its
//! mappings move along. Other pages are mapped at the new place by faults, many at a time.

use nucleus::{PAGE_SHIFT, VirtAddr, VirtRange, pmap::Pending};

use super::change::Change;
use super::entry::{MapEntry, Removed};
use super::policy::check_overcommit;
use super::request::{Backing, Lock, MapError, MapRequest, Place};
use super::space::Space;
use super::{Map, page_range, whole_pages};

impl Map {
    /// Moves and resizes the mapping at `old`, as [`remap`](Map::remap) says. Also returns which
    /// pages are to be brought in at once.
    pub(crate) fn move_or_resize(
        &self,
        old: VirtRange,
        new_len: usize,
        may_move: bool,
        to: Place,
        keep_old: bool,
    ) -> Result<(VirtAddr, Option<VirtRange>), MapError> {
        let new_len = whole_pages(new_len)?;
        let old = page_range(old)?;
        if old.is_empty() {
            return self.map_again(old.start, new_len, may_move, to);
        }
        if keep_old && (!may_move || new_len != old.len()) {
            return Err(MapError::Invalid);
        }
        if let Place::Hint(to) | Place::Fixed(to) | Place::FixedNoReplace(to) = to {
            let end = to.checked_add(new_len).ok_or(MapError::Invalid)?;
            if !may_move
                || !to.is_page_aligned()
                || !VirtRange::new(to, end).intersect(old).is_empty()
            {
                return Err(MapError::Invalid);
            }
        }
        let mut space = self.change();
        if space.overlapping(old).any(|entry| entry.stays) {
            return Err(MapError::Invalid);
        }
        let result = match to {
            Place::Any if !keep_old && new_len <= old.len() => {
                self.shrink(&mut space, old, new_len)
            }
            Place::Any if !keep_old => match self.grow(&mut space, old, new_len) {
                Err(MapError::Exists) if may_move => {
                    self.move_entry(&mut space, old, new_len, Place::Any, false)
                }
                Err(MapError::Exists) => Err(MapError::NoMemory),
                result => result,
            },
            place => self.move_entry(&mut space, old, new_len, place, keep_old),
        };
        let grown = result
            .ok()
            .map(|start| VirtRange::new(start + old.len().min(new_len), start + new_len))
            .filter(|grown| {
                let entry = space.lookup(grown.start);
                entry.is_some_and(|entry| entry.lock == Lock::Full)
            });
        Ok((result?, grown))
    }

    /// Makes a second mapping of what is mapped shared at `at`.
    fn map_again(
        &self,
        at: VirtAddr,
        len: usize,
        may_move: bool,
        place: Place,
    ) -> Result<(VirtAddr, Option<VirtRange>), MapError> {
        let request = {
            let space = self.space.read();
            let entry = space.lookup(at).ok_or(MapError::NotMapped)?;
            let may_share = entry.shared && may_move && !entry.stays;
            let Some(object) = entry.object.as_ref().filter(|_| may_share) else {
                return Err(MapError::Invalid);
            };
            MapRequest {
                place,
                max_prot: entry.max_prot,
                backing: Backing::Object {
                    pager: object.pager.clone(),
                    offset: entry.index(object, at) << PAGE_SHIFT,
                },
                shared: true,
                label: entry.label,
                ..MapRequest::zero(len, entry.prot)
            }
        };
        let (range, populate) = self.establish(&request)?;
        Ok((range.start, populate.then_some(range)))
    }

    fn shrink(
        &self,
        space: &mut Change<'_>,
        old: VirtRange,
        new_len: usize,
    ) -> Result<VirtAddr, MapError> {
        whole(space, old)?;
        let tail = VirtRange::new(old.start + new_len, old.end);
        if !tail.is_empty() {
            self.take_range(space, tail)?;
        }
        Ok(old.start)
    }

    /// Grows the mapping in place.
    ///
    /// # Errors
    /// [`MapError::Exists`] if the addresses above are in use.
    fn grow(
        &self,
        space: &mut Change<'_>,
        old: VirtRange,
        new_len: usize,
    ) -> Result<VirtAddr, MapError> {
        let entry = whole(space, old)?;
        let (start, at_end, data, locked) = (
            entry.range.start,
            entry.range.end == old.end,
            entry.is_data(),
            entry.is_locked(),
        );
        if !fits_object(entry, old, new_len) || entry.shares_amap() {
            return Err(MapError::Invalid);
        }
        let end = old.start.checked_add(new_len).ok_or(MapError::Exists)?;
        let more = VirtRange::new(old.end, end);
        let pages = more.len() >> PAGE_SHIFT;
        if !at_end || !space.is_free(more) {
            return Err(MapError::Exists);
        }
        if data {
            check_overcommit(more.len())?;
        }
        space.check_limits(pages, if data { pages } else { 0 })?;
        if locked {
            space.check_locked(pages)?;
        }
        space.replace(start, |entry| entry.range.end = end);
        space.join_around(more);
        Ok(old.start)
    }

    /// Moves `old` to `place`, with `new_len` bytes there.
    fn move_entry(
        &self,
        space: &mut Change<'_>,
        old: VirtRange,
        new_len: usize,
        place: Place,
        keep_old: bool,
    ) -> Result<VirtAddr, MapError> {
        let entry = whole(space, old)?;
        let (data, locked) = (entry.is_data(), entry.is_locked());
        // In a shared amap, the keys after this part may belong to another sharer.
        let grows = new_len > old.len();
        if !fits_object(entry, old, new_len)
            || (keep_old && entry.shared)
            || (grows && entry.shares_amap())
        {
            return Err(MapError::Invalid);
        }
        if data {
            check_overcommit(new_len)?;
        }
        let more = match keep_old {
            true => new_len,
            false => new_len.saturating_sub(old.len()),
        } >> PAGE_SHIFT;
        space.check_limits(more, if data { more } else { 0 })?;
        if locked {
            space.check_locked(new_len.saturating_sub(old.len()) >> PAGE_SHIFT)?;
        }
        // Clipping comes first: after that only the place can be refused, and nothing is lost then.
        let moved = VirtRange::new(old.start, old.start + new_len.min(old.len()));
        space.clip_range(old)?;
        space.clip(moved.end)?;
        let to = self.make_room(space, place, new_len, None)?;
        let mut taken = Removed::default();
        space.take_to(moved, &mut taken);
        let Some(mut entry) = taken.take_only() else {
            return Err(MapError::NotMapped);
        };
        // Before any reference to these pages is dropped.
        self.move_pages(&entry, old, moved, to);
        if keep_old {
            let left = MapEntry {
                amap: None,
                share: None,
                needs_copy: false,
                lock: Lock::None,
                object: entry.object.clone(),
                ..entry
            };
            space.insert(left);
        } else {
            // The rest of the old place, if the mapping shrinks as well.
            space.take(old);
        }
        entry.shift += (old.start.0 >> PAGE_SHIFT) as i64 - (to.0 >> PAGE_SHIFT) as i64;
        entry.range = VirtRange::new(to, to + new_len);
        space.insert(entry);
        Ok(to)
    }

    /// Removes the mappings of `old`. Those of `moved`, its first part and all of `entry`, move to
    /// `to` where possible.
    fn move_pages(&self, entry: &MapEntry, old: VirtRange, moved: VirtRange, to: VirtAddr) {
        let mut gone = old;
        if entry.has_movable_mappings() {
            self.pmap.move_range(moved, to);
            gone.start = moved.end;
        }
        let mut pending = Pending::new();
        self.pmap.remove(gone, &mut pending);
        pending.flush();
    }
}

/// Returns the entry that holds all of `range`.
fn whole(space: &Space, range: VirtRange) -> Result<&MapEntry, MapError> {
    space
        .lookup(range.start)
        .filter(|entry| range.end <= entry.range.end)
        .ok_or(MapError::NotMapped)
}

/// Returns whether the object's page numbers suffice for `len` bytes from the start of `range`.
fn fits_object(entry: &MapEntry, range: VirtRange, len: usize) -> bool {
    entry.object.as_ref().is_none_or(|object| {
        let first = entry.index(object, range.start);
        first
            .checked_add((len >> PAGE_SHIFT) as u64)
            .is_some_and(|end| end < 1 << 52)
    })
}
