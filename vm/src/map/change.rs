//! Maps locked to be changed, and what a change takes out of them.

use alloc::boxed::Box;
use core::mem::take;
use core::ops::{Deref, DerefMut};
use nucleus::{VirtRange, sync::CpuWriteGuard};

use super::entries::FIRST;
use super::entry::{MapEntry, Removed};
use super::space::Space;

/// A map locked to be changed. What the change takes out of it is dropped after the lock is
/// released (`uvm.txt` 3.1).
pub(crate) struct Change<'a> {
    // Dropped in this order.
    pub space: CpuWriteGuard<'a, Space>,
    pub removed: Removed,
}

impl Change<'_> {
    /// Inserts an entry where there is none, and joins it with its neighbours where possible.
    pub fn insert(&mut self, entry: impl Into<Box<MapEntry>>) {
        self.space.insert(entry, &mut self.removed);
    }

    /// Joins entries that overlap or touch `range` where possible.
    pub fn join_around(&mut self, range: VirtRange) {
        let first = self.find_below(range.start).unwrap_or(FIRST);
        self.space.join_from(first, range.end, &mut self.removed);
    }

    /// Removes the entries of `range`, whose ends are boundaries.
    pub fn take(&mut self, range: VirtRange) {
        self.space.take_to(range, &mut self.removed);
    }

    /// Unlocks the map. Returns what the change took out of it.
    pub fn unlock(self) -> Removed {
        self.removed
    }
}

impl<'a> From<CpuWriteGuard<'a, Space>> for Change<'a> {
    fn from(space: CpuWriteGuard<'a, Space>) -> Change<'a> {
        Change {
            space,
            removed: Removed::default(),
        }
    }
}

impl Deref for Change<'_> {
    type Target = Space;

    fn deref(&self) -> &Space {
        &self.space
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Space {
        &mut self.space
    }
}

/// Two maps, or one, locked to be changed: what is passed leaves one and enters the other. What the
/// change takes out of them is dropped after both locks are released.
pub(crate) struct Pair<'a> {
    // Dropped in this order.
    source: Change<'a>,
    /// `None`: the source is the target, too.
    target: Option<Change<'a>>,
    removed: [Removed; 2],
}

impl<'a> Pair<'a> {
    pub fn new(source: Change<'a>, target: Option<Change<'a>>) -> Pair<'a> {
        Pair {
            source,
            target,
            removed: Default::default(),
        }
    }

    /// The map from which entries are passed.
    pub fn source(&mut self) -> &mut Change<'a> {
        &mut self.source
    }

    /// The map that gets them.
    pub fn target(&mut self) -> &mut Change<'a> {
        self.target.as_mut().unwrap_or(&mut self.source)
    }
}

impl Drop for Pair<'_> {
    fn drop(&mut self) {
        let removed = [Some(&mut self.source), self.target.as_mut()];
        let removed = removed.map(|it| it.map(|it| take(&mut it.removed)));
        self.removed = removed.map(Option::unwrap_or_default);
    }
}
