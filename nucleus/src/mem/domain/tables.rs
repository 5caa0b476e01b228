//! Pages of second-level tables. They are frames of a type of their own, in no domain.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::frame::record::{Type, address, bytes, record};
use crate::frame::{give_run, take_own};
use crate::hw::iommu::Entry;
use crate::hw::machine;
use crate::{OutOfMemory, PAGE_SIZE, PhysAddr};

/// Entries of a table.
pub(super) const ENTRIES: u64 = 512;

/// A table's frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Table(u32);

impl Table {
    /// Takes an empty one.
    pub(super) fn new() -> Result<Table, OutOfMemory> {
        let table = Table(take_own(Type::DomainTable)?);
        // SAFETY: the frame has just been taken and is in the direct map, as all of the kernel's.
        unsafe { core::ptr::write_bytes(bytes(table.0), 0, PAGE_SIZE) };
        machine::iommu_written(table.at(), PAGE_SIZE);
        Ok(table)
    }

    /// Gives it back: no unit reaches it.
    pub(super) fn free(self) {
        give_run(self.0..self.0 + 1, Type::DomainTable);
    }

    pub(super) fn at(self) -> PhysAddr {
        address(self.0)
    }

    /// The table that an entry leads to.
    fn of(entry: Entry) -> Table {
        let table = Table(entry.address().frame_number() as u32);
        debug_assert_eq!(record(table.0).kind(), Type::DomainTable);
        table
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        // SAFETY: inside the table's frame and aligned. Entries are atomic words to all.
        unsafe {
            &*bytes(self.0)
                .cast::<AtomicU64>()
                .add((index % ENTRIES) as usize)
        }
    }

    #[inline]
    pub(super) fn get(self, index: u64) -> Entry {
        Entry(self.word(index).load(Ordering::Relaxed))
    }

    /// Changes an entry; units see it when it is [told](Table::tell).
    #[inline]
    pub(super) fn set(self, index: u64, entry: Entry) {
        self.word(index).store(entry.0, Ordering::Release);
    }

    /// Lets units see a range of entries, which does not wrap.
    #[inline]
    pub(super) fn tell(self, entries: Range<u64>) {
        let bytes = (entries.end - entries.start) as usize * size_of::<Entry>();
        machine::iommu_written(self.at() + entries.start * size_of::<Entry>() as u64, bytes);
    }

    /// Changes an entry that units see from now on.
    pub(super) fn put(self, index: u64, entry: Entry) {
        self.set(index, entry);
        self.tell(index % ENTRIES..index % ENTRIES + 1);
    }
}

/// The index at a level, 1 to 5, of a page.
pub(super) fn index(page: u64, level: usize) -> u64 {
    page >> (9 * (level - 1)) & (ENTRIES - 1)
}

/// Walks from the table `root` of level `levels` to the one of level `last` for a page, and makes
/// the tables that are missing.
pub(super) fn walk(
    root: Table,
    levels: usize,
    page: u64,
    last: usize,
) -> Result<Table, OutOfMemory> {
    let mut table = root;
    for level in (last + 1..=levels).rev() {
        let at = index(page, level);
        let entry = table.get(at);
        table = match entry.is_present() {
            true => Table::of(entry),
            false => {
                let new = Table::new()?;
                table.put(at, Entry::table(new.at()));
                new
            }
        };
    }
    Ok(table)
}

/// The table of level 1 for a page, if there is one.
pub(super) fn find(root: Table, levels: usize, page: u64) -> Option<Table> {
    let mut table = root;
    for level in (2..=levels).rev() {
        let entry = table.get(index(page, level));
        table = entry.is_present().then(|| Table::of(entry))?;
    }
    Some(table)
}

/// Frees a tree, which no unit reaches, and calls `leaf` with its tables of level 1 before.
pub(super) fn free(table: Table, level: usize, leaf: &mut impl FnMut(Table)) {
    match level {
        1 => leaf(table),
        _ => {
            let entries = (0..ENTRIES).map(|at| table.get(at));
            for entry in entries.filter(|it| it.is_present() && !it.is_large()) {
                free(Table::of(entry), level - 1, leaf);
            }
        }
    }
    table.free();
}
