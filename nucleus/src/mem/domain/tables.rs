//! Pages of second-level tables. They are frames of a type of their own, in no domain.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::frame::record::{Type, address, bytes, record};
use crate::frame::{give_run, take_own};
use crate::hw::iommu::{Device, Entry};
use crate::hw::machine;
use crate::mem::mistake::Mistake;
use crate::{OutOfMemory, PAGE_SHIFT, PAGE_SIZE, PhysAddr};

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
        machine::iommu_sync(table.at(), PAGE_SIZE);
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

    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        let at = index % ENTRIES;
        &self.words(at..at + 1)[0]
    }

    /// A range of entries, which does not wrap, each of them an [`Entry`] as a word.
    #[inline]
    pub(super) fn words(&self, entries: Range<u64>) -> &[AtomicU64] {
        assert!(entries.start <= entries.end && entries.end <= ENTRIES);
        let first: *const AtomicU64 = bytes(self.0).cast();
        let len = (entries.end - entries.start) as usize;
        // SAFETY: inside the table's frame, as asserted, and aligned. Entries are atomic words to
        // all.
        unsafe { core::slice::from_raw_parts(first.add(entries.start as usize), len) }
    }

    #[inline]
    pub(super) fn get(self, index: u64) -> Entry {
        Entry(self.word(index).load(Ordering::Relaxed))
    }

    /// Changes an entry; units see it after a [`sync`](Table::sync).
    #[inline]
    pub(super) fn set(self, index: u64, entry: Entry) {
        self.word(index).store(entry.0, Ordering::Release);
    }

    /// Lets units see a range of entries, which does not wrap.
    #[inline]
    pub(super) fn sync(self, entries: Range<u64>) {
        if Mistake::EntryNotSynced.is_made() {
            return;
        }
        let bytes = (entries.end - entries.start) as usize * size_of::<Entry>();
        machine::iommu_sync(self.at() + entries.start * size_of::<Entry>() as u64, bytes);
    }

    /// Changes an entry that units see from now on.
    pub(super) fn put(self, index: u64, entry: Entry) {
        self.set(index, entry);
        self.sync(index % ENTRIES..index % ENTRIES + 1);
    }
}

/// The index at a level, 1 to 5, of a page.
pub(super) fn index(page: u64, level: usize) -> u64 {
    page >> (9 * (level - 1)) & (ENTRIES - 1)
}

/// Whether a tree of so many levels has such a page: beyond it, the indices begin anew.
fn has(levels: usize, page: u64) -> bool {
    page < pages(levels) || Mistake::PagesWrap.is_made()
}

/// The pages that a tree of so many levels can map.
pub(super) fn pages(levels: usize) -> u64 {
    1 << (9 * levels)
}

/// Walks from the table `root` of level `levels` to the one of level `last` for a page, and makes
/// the tables that are missing.
///
/// # Errors
/// [`OutOfMemory`], also where there is no such page, or a large one.
pub(super) fn walk(
    root: Table,
    levels: usize,
    page: u64,
    last: usize,
) -> Result<Table, OutOfMemory> {
    walk_with(root, levels, page, last, Table::new)
}

/// As [`walk`], with tables that `make` makes.
fn walk_with(
    root: Table,
    levels: usize,
    page: u64,
    last: usize,
    mut make: impl FnMut() -> Result<Table, OutOfMemory>,
) -> Result<Table, OutOfMemory> {
    if !has(levels, page) {
        return Err(OutOfMemory);
    }
    let mut table = root;
    for level in (last + 1..=levels).rev() {
        let at = index(page, level);
        let entry = table.get(at);
        table = match entry.is_present() {
            true if entry.is_large() => return Err(OutOfMemory),
            true => Table::of(entry),
            false => {
                let new = make()?;
                table.put(at, Entry::table(new.at()));
                new
            }
        };
    }
    Ok(table)
}

/// The table of level 1 for a page, if there is one.
pub(super) fn find(root: Table, levels: usize, page: u64) -> Option<Table> {
    let mut table = has(levels, page).then_some(root)?;
    for level in (2..=levels).rev() {
        let entry = table.get(index(page, level));
        table = (entry.is_present() && !entry.is_large()).then(|| Table::of(entry))?;
    }
    Some(table)
}

/// Maps the memory that a device uses on the firmware's behalf at its own addresses, and notes each
/// range before. Holds what `lock` returns while the tree changes, for one table at a time, and not
/// while it takes memory: a frame leaves the devices' reach then.
pub(super) fn map_reserved<L>(
    device: Device,
    (root, levels): (Table, usize),
    lock: impl Fn() -> L,
    mut note: impl FnMut(Range<u64>) -> Result<(), OutOfMemory>,
) -> Result<(), OutOfMemory> {
    let mut spare = None;
    let mut map = |range: Range<u64>| {
        note(range.clone())?;
        let mut page = range.start;
        while page < range.end {
            let next = range.end.min((page / ENTRIES + 1) * ENTRIES);
            let is_mapped = {
                let _held = lock();
                let make = || spare.take().ok_or(OutOfMemory);
                let table = walk_with(root, levels, page, 1, make);
                table.map(|table| {
                    for page in page..next {
                        let at = PhysAddr(page << PAGE_SHIFT);
                        table.set(page, Entry::page(at, true, true));
                    }
                    table.sync(page % ENTRIES..page % ENTRIES + (next - page));
                })
            };
            match is_mapped {
                Ok(()) => page = next,
                // A large page: its frames are the kernel's, and not for the firmware.
                Err(_) if spare.is_some() => return Err(OutOfMemory),
                Err(_) => spare = Some(Table::new()?),
            }
        }
        Ok(())
    };
    let mut result = Ok(());
    machine::iommu_reserved(device, |start, end| {
        let range = start.frame_number()..end.frame_number().min(pages(levels));
        if result.is_ok() && !range.is_empty() && !Mistake::ReservedNotMapped.is_made() {
            result = map(range);
        }
    });
    spare.into_iter().for_each(Table::free);
    result
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
