//! The record of a frame: what it is, and its users.
//!
//! | field | data frame | page table | level 1, and its links' | dead table | free | heap |
//! |---|---|---|---|---|---|---|
//! | `word` | type, flags | type, flags | type, flags | type, flags | type, order | type, flags |
//! | `in_use` | devices' entries | entries | groups | | | a slab's objects |
//! | `rmap` | lock, mapping count, first slot | | `partner` | | | |
//! | `a` | handles, owners | `groups` | `owner`, `sharers` | `next_dead` | block list | slab list |
//! | `b` | | | `use_count` | | | |
//!
//! Records live as long as the machine, so any record may be looked at without holding its frame. A
//! CPU that follows a stale hint validates after having locked (`rmap`) or pinned (`use_count`)
//! what it found; therefore these two have no other use in any type of frame, but for one: without
//! mappings the place of the first slot means nothing, and a table of level 1 and the frame with
//! its links have each other's numbers there. These are put there with the lock held, so that a
//! holder by a stale hint does not undo that.
//!
//! In the words of `iosup.txt` 2.2: the *type* is in `word`. The *existence count* of data is that
//! of its handles, which is checked (see [`counts`](super::counts)). A page table is *pinned* by
//! each `Leaf`, which the use count of a table of level 1 has in it. The *type count* says how
//! often a frame is used as what its type says: a data frame's mappings, a page table's attachment.
//! A type changes only when it is zero.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::directmap::Place;
use crate::cpu::percpu::Pinned;
use crate::hw::machine;
use crate::{PAGE_SHIFT, PhysAddr};

/// No frame, no slot.
pub(crate) const NONE: u32 = u32::MAX;

/// What a frame is used as. At any time exactly one (`iosup.txt` 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Type {
    /// No memory there, or not ours.
    Absent = 0,
    /// In the buddy allocator or a CPU's cache.
    Free = 1,
    /// Data, held by handles; programs, the kernel and devices may write it.
    Writable = 2,
    /// A page table of level 1, and the frame with its reverse links.
    PageTable1 = 3,
    PageTable2 = 4,
    PageTable3 = 5,
    PageTable4 = 6,
    /// Segment descriptors.
    Descriptor = 7,
    /// The kernel heap.
    Heap = 8,
    /// The kernel's image, its stacks, the frame records, what the loader left.
    Kernel = 9,
    /// A table by which a remapping unit translates a device's addresses.
    DomainTable = 10,
}

impl Type {
    /// The page table of a level, 1 to 4.
    pub(crate) const fn page_table(level: usize) -> Type {
        match level {
            1 => Type::PageTable1,
            2 => Type::PageTable2,
            3 => Type::PageTable3,
            _ => Type::PageTable4,
        }
    }

    const fn from_bits(bits: u32) -> Type {
        match bits & TYPE_MASK {
            1 => Type::Free,
            2 => Type::Writable,
            3 => Type::PageTable1,
            4 => Type::PageTable2,
            5 => Type::PageTable3,
            6 => Type::PageTable4,
            7 => Type::Descriptor,
            8 => Type::Heap,
            9 => Type::Kernel,
            10 => Type::DomainTable,
            _ => Type::Absent,
        }
    }

    /// Whether devices may reach such a frame unless it is flagged `cached`: see
    /// [`device_reach`](super::device_reach).
    pub(super) const fn is_open(self) -> bool {
        matches!(self, Type::Free | Type::Writable)
    }
}

const TYPE_MASK: u32 = 0xf;
/// A page table, or a frame that waits to become one: out of every device's domain whatever its
/// type (`iosup.txt` 6.1). Stays when the type changes, until the frame is released.
const CACHED: u32 = 1 << 4;
/// Written through a mapping that is gone or was cleaned. [reverse lock]
const MODIFIED: u32 = 1 << 5;
/// Read or written through a mapping that is gone. [reverse lock]
const REFERENCED: u32 = 1 << 6;
/// First frame of a block on a free list; its order stands above [`ORDER_SHIFT`], as that of a
/// [block](super::block) of data does.
const FREE_BLOCK: u32 = 1 << 7;
const ORDER_SHIFT: u32 = 8;
const ORDER: u32 = 0xf;
/// Some mapping may be a part of a large one: set with it, cleared when none is found. [reverse
/// lock]
const IN_LARGE: u32 = 1 << 12;
/// The frame is a page of a disk's medium. Set before it has a mapping.
const OF_MEDIUM: u32 = 1 << 13;
/// The frame has no place in the direct map. Stays when the type changes.
const OUTSIDE: u32 = 1 << 14;
/// What says in which lists a frame stands while it is free.
const PLACE: u32 = OUTSIDE | CACHED;

const LOCKED: u64 = 1 << 63;
const MAPPING: u64 = 1 << 32;
const UNMAPPED: u64 = NONE as u64;

/// See the head of the file. Two share a cache line: with a line for each, `bench --sharing` counts
/// no fewer shared accesses in `fork`, `exec` and `shared-fault`.
#[repr(C, align(32))]
pub(crate) struct Record {
    word: AtomicU32,
    pub(crate) in_use: AtomicU32,
    rmap: AtomicU64,
    a: AtomicU64,
    b: AtomicU64,
}

const _: () = assert!(size_of::<Record>() == 32);

/// Where the records are. Read all the time, hence on a line that nothing else writes.
#[repr(align(64))]
struct Records {
    /// The record of frame 0, if it had one: the first record minus the first frame's number.
    origin: AtomicPtr<Record>,
    first: AtomicU32,
    end: AtomicU32,
}

static RECORDS: Records = Records {
    origin: AtomicPtr::new(core::ptr::null_mut()),
    first: AtomicU32::new(0),
    end: AtomicU32::new(0),
};

/// Frames that can have a record: a slot number (`frame * 512 + index`) must fit in 32 bits and
/// differ from [`NONE`].
pub(crate) const MAX_FRAMES: usize = (1 << 23) - 1;

/// The first frame that has a record.
#[inline]
pub(crate) fn first_managed() -> u32 {
    RECORDS.first.load(Ordering::Relaxed)
}

/// The frames that have records.
pub(crate) fn managed() -> core::ops::Range<u32> {
    first_managed()..RECORDS.end.load(Ordering::Relaxed)
}

/// The record of a frame.
#[inline]
pub(crate) fn record(index: u32) -> &'static Record {
    debug_assert!(managed().contains(&index), "frame {index:#x} has no record");
    // SAFETY: callers pass the number of a managed frame (checked in debug builds; from page-table
    // entries and slots through `find`), so this is an initialised record, which lives forever and
    // consists of atomics.
    unsafe {
        &*RECORDS
            .origin
            .load(Ordering::Relaxed)
            .wrapping_add(index as usize)
    }
}

/// The record of a frame whose number comes from a stale hint, if there is one.
#[inline]
pub(crate) fn find(number: u64) -> Option<&'static Record> {
    let index = u32::try_from(number).ok()?;
    managed().contains(&index).then(|| record(index))
}

/// The physical address of a frame.
#[inline]
pub(crate) const fn address(index: u32) -> PhysAddr {
    PhysAddr((index as u64) << PAGE_SHIFT)
}

/// Where the kernel reaches a page table, to read and to write it.
#[inline]
pub(crate) fn table_bytes(index: u32) -> *mut u8 {
    machine::table_ptr(address(index))
}

/// Where the kernel reaches a frame's bytes.
#[inline]
pub(crate) fn bytes(index: u32) -> *mut u8 {
    machine::ptr(address(index))
}

/// Makes `frames.len()` fresh records at `at`.
///
/// # Safety
/// `at` is valid for that many records from now on, written by nothing else, and the machine has
/// one CPU and no task yet.
pub(super) unsafe fn start(frames: core::ops::Range<u32>, at: *mut Record) {
    for i in 0..frames.len() {
        let record = Record {
            word: AtomicU32::new(Type::Absent as u32),
            in_use: AtomicU32::new(0),
            rmap: AtomicU64::new(UNMAPPED),
            a: AtomicU64::new(0),
            b: AtomicU64::new(0),
        };
        // SAFETY: inside the memory that the caller gave.
        unsafe { at.add(i).write(record) };
    }
    let origin = at.wrapping_sub(frames.start as usize);
    RECORDS.origin.store(origin, Ordering::Relaxed);
    RECORDS.first.store(frames.start, Ordering::Relaxed);
    RECORDS.end.store(frames.end, Ordering::Release);
}

impl Record {
    /// What the frame is.
    #[inline]
    pub(crate) fn kind(&self) -> Type {
        Type::from_bits(self.word.load(Ordering::Relaxed))
    }

    /// Changes the type, and clears all flags but the frame's place. The caller owns the frame
    /// alone, and has seen to the devices' reach of it (see
    /// [`device_reach`](super::device_reach)).
    #[inline]
    pub(crate) fn set_kind(&self, from: Type, to: Type) {
        debug_assert_eq!(self.kind(), from, "a frame is not what its owner thinks");
        assert!(self.count_as(from) == 0, "type change of a frame in use");
        #[cfg(not(target_os = "none"))]
        if !to.is_open() && from != Type::Absent {
            machine::frame_closed(address(self.index()));
        }
        let place = self.word.load(Ordering::Relaxed) & PLACE;
        self.word.store(place | to as u32, Ordering::Relaxed);
    }

    /// The frame's number.
    #[cfg(not(target_os = "none"))]
    fn index(&self) -> u32 {
        let first = RECORDS.origin.load(Ordering::Relaxed) as usize;
        ((core::ptr::from_ref(self) as usize).wrapping_sub(first) / size_of::<Record>()) as u32
    }

    /// Whether the frame has its place in the direct map, where [`bytes`] is.
    #[inline]
    pub(crate) fn is_direct(&self) -> bool {
        self.word.load(Ordering::Relaxed) & OUTSIDE == 0
    }

    /// Says whether it has. The caller owns the frame alone, which is not in a free block.
    pub(super) fn set_direct(&self, direct: bool) {
        let word = self.word.load(Ordering::Relaxed) & !OUTSIDE;
        let place = if direct { 0 } else { OUTSIDE };
        self.word.store(word | place, Ordering::Relaxed);
    }

    /// How often the frame is used as what its type says.
    #[inline]
    pub(crate) fn type_count(&self) -> u32 {
        self.count_as(self.kind())
    }

    /// As [`type_count`](Record::type_count) of a frame that is known to be of this type.
    #[inline]
    fn count_as(&self, kind: Type) -> u32 {
        match kind {
            Type::PageTable1 => self.use_count().load(Ordering::Relaxed) as u32,
            Type::PageTable2 | Type::PageTable3 | Type::PageTable4 => {
                self.in_use.load(Ordering::Relaxed)
            }
            _ => self.mappings(),
        }
    }

    /// A data frame's handles and owners: see [`counts`](super::counts).
    #[inline]
    pub(super) fn counts(&self) -> &AtomicU64 {
        &self.a
    }

    /// A page table of level 1: its pmap or family.
    #[inline]
    pub(crate) fn owner(&self) -> &AtomicU64 {
        &self.a
    }

    /// A page table of level 1, until it is given back: the frame with its reverse links; and of
    /// that frame the table.
    #[inline]
    pub(crate) fn partner(&self) -> u32 {
        self.rmap.load(Ordering::Relaxed) as u32
    }

    /// Sets it. The caller owns the frame alone, and is interrupted by nothing that does the same.
    pub(super) fn set_partner(&self, frame: u32) {
        let _pinned = Pinned::new();
        let mut mappings = self.lock_mappings();
        debug_assert_eq!(mappings.count(), 0, "a page table is mapped");
        mappings.set_first(frame);
    }

    /// The frame with the links of a page table of level 1: the spaces that lead to the table.
    #[inline]
    pub(crate) fn sharers(&self) -> &AtomicU64 {
        &self.a
    }

    /// A page table above level 1: a bit for each group of entries that has one in use.
    #[inline]
    pub(crate) fn groups(&self) -> &AtomicU64 {
        &self.a
    }

    /// A dead page table: the next one of its list.
    #[inline]
    pub(crate) fn next_dead(&self) -> &AtomicU64 {
        &self.a
    }

    /// Forgets what the last user of the frame kept here. The caller owns the frame alone.
    #[inline]
    pub(super) fn clear_use(&self) {
        self.a.store(0, Ordering::Relaxed);
    }

    /// A page table of level 1: the address that it begins at, and its uses.
    #[inline]
    pub(crate) fn use_count(&self) -> &AtomicU64 {
        &self.b
    }

    /// The neighbours in a [`FrameList`]: the next one and the one before.
    fn links(&self) -> (u32, u32) {
        let both = self.a.load(Ordering::Relaxed);
        (both as u32, (both >> 32) as u32)
    }

    fn set_links(&self, next: u32, previous: u32) {
        self.a
            .store(next as u64 | (previous as u64) << 32, Ordering::Relaxed);
    }

    /// Sets or clears the flag of `iosup.txt` 6.1. The caller owns the frame alone, which is not in
    /// a free block.
    pub(super) fn set_cached(&self, cached: bool) {
        let word = self.word.load(Ordering::Relaxed) & !CACHED;
        self.word
            .store(word | if cached { CACHED } else { 0 }, Ordering::Relaxed);
    }

    /// The flag of `iosup.txt` 6.1.
    #[inline]
    pub(crate) fn is_cached(&self) -> bool {
        self.word.load(Ordering::Relaxed) & CACHED != 0
    }

    /// Whether devices may reach the frame.
    pub(crate) fn is_reachable(&self) -> bool {
        self.kind().is_open() && !self.is_cached()
    }

    /// Whether the frame is a page of a disk's medium.
    pub(super) fn is_of_medium(&self) -> bool {
        self.word.load(Ordering::Relaxed) & OF_MEDIUM != 0
    }

    /// Makes it one, until it is free. The caller owns the frame alone.
    pub(super) fn set_of_medium(&self) {
        self.word.fetch_or(OF_MEDIUM, Ordering::Relaxed);
    }

    /// Marks the first frame of a free block. [buddy lock]
    pub(super) fn set_free_block(&self, order: Option<usize>) {
        let word = match order {
            Some(order) => Type::Free as u32 | FREE_BLOCK | (order as u32) << ORDER_SHIFT,
            None => Type::Free as u32,
        };
        let place = self.word.load(Ordering::Relaxed) & PLACE;
        self.word.store(place | word, Ordering::Relaxed);
    }

    /// Whether a free block of this order begins here, all of it in this place. [buddy lock]
    pub(super) fn is_free_block(&self, order: usize, place: Place) -> bool {
        let place = match place {
            Place::Direct => 0,
            Place::Outside => OUTSIDE,
            Place::Tables => CACHED,
        };
        self.word.load(Ordering::Relaxed)
            == place | Type::Free as u32 | FREE_BLOCK | (order as u32) << ORDER_SHIFT
    }

    /// The order of the block of data whose handles are those of this frame; 0 for none.
    #[inline(always)]
    pub(super) fn order(&self) -> usize {
        (self.word.load(Ordering::Relaxed) >> ORDER_SHIFT & ORDER) as usize
    }

    /// Makes the frame the first one of a block of data, until it is free. The caller owns the
    /// frame alone.
    pub(super) fn set_block(&self, order: usize) {
        self.word
            .fetch_or((order as u32) << ORDER_SHIFT, Ordering::Relaxed);
    }

    /// Mappings of the frame in all pmaps.
    #[inline]
    pub(crate) fn mappings(&self) -> u32 {
        ((self.rmap.load(Ordering::Relaxed) & !LOCKED) >> 32) as u32
    }

    /// Takes the frame's reverse lock: a spin lock in the word that it guards, so that linking a
    /// mapping costs one atomic operation. The caller is pinned. Nothing else is locked inside.
    #[inline]
    pub(crate) fn lock_mappings(&self) -> Mappings<'_> {
        machine::point();
        let mut map = self.rmap.load(Ordering::Relaxed);
        loop {
            if map & LOCKED == 0 {
                match self.rmap.compare_exchange_weak(
                    map,
                    map | LOCKED,
                    Ordering::Acquire,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return Mappings { record: self, map },
                    Err(now) => map = now,
                }
            } else {
                machine::spin_hint();
                map = self.rmap.load(Ordering::Relaxed);
            }
        }
    }
}

/// The reverse lock of a frame is held while this lives.
pub(crate) struct Mappings<'a> {
    pub(crate) record: &'a Record,
    map: u64,
}

impl Mappings<'_> {
    /// The slot of the first mapping; it means nothing if there is none.
    #[inline]
    pub(crate) fn first(&self) -> u32 {
        self.map as u32
    }

    /// How many there are.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        (self.map >> 32) as u32
    }

    /// Replaces the first slot.
    #[inline]
    pub(crate) fn set_first(&mut self, slot: u32) {
        self.map = (self.map & !(NONE as u64)) | slot as u64;
    }

    /// One mapping more, which is the first now.
    #[inline]
    pub(crate) fn add(&mut self, slot: u32) {
        self.map += MAPPING;
        self.set_first(slot);
    }

    /// One mapping less.
    pub(crate) fn subtract(&mut self) {
        debug_assert!(self.map >= MAPPING, "a mapping was unlinked twice");
        self.map -= MAPPING;
    }

    /// The only mapping is gone.
    #[inline]
    pub(crate) fn clear(&mut self) {
        debug_assert!(self.count() == 1);
        self.map = UNMAPPED;
    }

    /// Remembers that the frame was referenced, or written, through a mapping that is gone.
    #[inline]
    pub(crate) fn note(&self, referenced: bool, modified: bool) {
        let old = self.record.word.load(Ordering::Relaxed);
        let new =
            old | if referenced { REFERENCED } else { 0 } | if modified { MODIFIED } else { 0 };
        if new != old {
            self.record.word.store(new, Ordering::Relaxed);
        }
    }

    /// Whether some mapping may be a part of a large one.
    #[inline]
    pub(crate) fn may_be_in_large(&self) -> bool {
        self.record.word.load(Ordering::Relaxed) & IN_LARGE != 0
    }

    /// Changes [`may_be_in_large`](Mappings::may_be_in_large).
    #[inline]
    pub(crate) fn set_in_large(&self, large: bool) {
        let word = self.record.word.load(Ordering::Relaxed) & !IN_LARGE;
        let new = word | if large { IN_LARGE } else { 0 };
        self.record.word.store(new, Ordering::Relaxed);
    }

    /// Whether a mapping that is gone wrote the frame.
    pub(crate) fn was_modified(&self) -> bool {
        self.record.word.load(Ordering::Relaxed) & MODIFIED != 0
    }

    /// Forgets it.
    pub(crate) fn clear_modified(&self) {
        let word = self.record.word.load(Ordering::Relaxed);
        self.record.word.store(word & !MODIFIED, Ordering::Relaxed);
    }

    /// Whether a mapping that is gone referenced the frame; forgets it.
    pub(crate) fn take_referenced(&self) -> bool {
        let word = self.record.word.load(Ordering::Relaxed);
        self.record
            .word
            .store(word & !REFERENCED, Ordering::Relaxed);
        word & REFERENCED != 0
    }
}

impl Drop for Mappings<'_> {
    #[inline]
    fn drop(&mut self) {
        machine::point();
        self.record.rmap.store(self.map, Ordering::Release);
    }
}

/// A list of frames, linked through their records. Its owner's lock guards it.
#[derive(Clone, Copy)]
pub(crate) struct FrameList {
    /// The first one, or [`NONE`].
    pub(crate) first: u32,
}

impl FrameList {
    pub(crate) const EMPTY: FrameList = FrameList { first: NONE };

    /// Puts a frame, which is in no list, before the others.
    pub(crate) fn link(&mut self, index: u32) {
        let next = self.first;
        record(index).set_links(next, NONE);
        if next != NONE {
            let (after, _) = record(next).links();
            record(next).set_links(after, index);
        }
        self.first = index;
    }

    /// Whether it is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Takes out the first frame.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        let first = (!self.is_empty()).then_some(self.first)?;
        self.unlink(first);
        Some(first)
    }

    /// The frame before one of this list, or [`NONE`].
    pub(crate) fn before(&self, index: u32) -> u32 {
        record(index).links().1
    }

    /// Takes out a frame of this list.
    pub(crate) fn unlink(&mut self, index: u32) {
        let (next, previous) = record(index).links();
        if previous == NONE {
            self.first = next;
        } else {
            let (_, before) = record(previous).links();
            record(previous).set_links(next, before);
        }
        if next != NONE {
            let (after, _) = record(next).links();
            record(next).set_links(after, previous);
        }
    }
}
