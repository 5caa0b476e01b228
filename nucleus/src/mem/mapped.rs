//! Heap blocks of several frames that are not neighbours: mapped at neighbouring addresses.
//!
//! A block of 2^n pages at most, a guard page included, has a *slot* of 2^n pages of addresses; the
//! slots of one size share an area and are handed out again, the last one first. Free slots are
//! linked through the page-table entries of their first pages, so the bookkeeping needs no memory
//! but page tables, which stay.
//!
//! A block that is freed becomes *stale*: mapped, and linked through its first frame. Stale blocks
//! are unmapped together after one flush of all CPUs, by a free or an allocation that may wait for
//! other CPUs, or by the pagedaemon. Allocation works in any context and flushes nothing: a slot
//! that is handed out is in no TLB.
//!
//! What is in an entry that is not present does not name a frame (a slot's link and a hidden frame
//! are stored inverted), so that no speculative access follows it.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::frame::record::{self, Type};
use super::frame::{give_run, has_block, take_of_block};
use crate::hw::counters::Counter;
use crate::hw::mitigations::ADDRESS;
use crate::hw::x86_64::layout::blocks;
use crate::hw::x86_64::space::{self, DATA, PRESENT};
use crate::hw::x86_64::{cpu, kernel_flush, percpu};
use crate::lock::{Rank, SpinLock};
use crate::{PAGE_SHIFT, PAGE_SIZE};

/// The smallest slot, as log2 of its pages: two pages and a guard.
const SMALLEST: usize = 2;
/// The largest one: 8 GiB.
const LARGEST: usize = 21;
const SIZES: usize = LARGEST - SMALLEST + 1;
/// Bytes of the area of one size.
const AREA: usize = 16 << 30;
/// Stale pages with which the next free that may wait unmaps them: 1 MiB a flush.
const TOO_STALE: usize = 256;

/// The slots of one size.
#[derive(Clone, Copy)]
struct Slots {
    /// Those that were ever used.
    used: u32,
    /// The first free one plus one, 0 if there is none.
    free: u32,
}

static SLOTS: SpinLock<[Slots; SIZES]> =
    SpinLock::new(Rank::KernelSpace, [Slots { used: 0, free: 0 }; SIZES]);

/// What the first frame of a stale block begins with.
struct Stale {
    bottom: usize,
    pages: usize,
    /// The first frame of the next one, [`record::NONE`] at the end.
    next: u32,
}

/// The first frame of the first stale block.
static STALE: SpinLock<u32> = SpinLock::new(Rank::KernelSpace, record::NONE);
/// Pages of stale blocks.
static STALE_PAGES: AtomicUsize = AtomicUsize::new(0);

/// Whether an address is in such a block.
#[inline]
pub(crate) fn contains(address: *mut u8) -> bool {
    (address as usize).wrapping_sub(blocks()) < SIZES * AREA
}

fn bottom_of(order: usize, slot: u32) -> usize {
    blocks() + (order - SMALLEST) * AREA + ((slot as usize) << (order + PAGE_SHIFT))
}

/// The inverse of [`bottom_of`].
fn slot_of(bottom: usize) -> (usize, u32) {
    let order = (bottom - blocks()) / AREA + SMALLEST;
    let slot = ((bottom - blocks()) % AREA) >> (order + PAGE_SHIFT);
    (order, slot as u32)
}

/// The page-table entry of an address whose table exists.
fn entry(address: usize) -> *mut u64 {
    space::find(address).expect("a slot that was handed out has its page tables")
}

fn take_slot(order: usize) -> Option<usize> {
    let mut slots = SLOTS.lock_irq();
    let slots = &mut slots[order - SMALLEST];
    if let Some(slot) = slots.free.checked_sub(1) {
        let bottom = bottom_of(order, slot);
        // SAFETY: the first entry of a free slot, which belongs to the list and holds its link.
        let link = unsafe { entry(bottom).replace(0) };
        slots.free = ((!link & ADDRESS) >> PAGE_SHIFT) as u32;
        return Some(bottom);
    }
    if (slots.used as usize + 1) << (order + PAGE_SHIFT) > AREA {
        return None;
    }
    let bottom = bottom_of(order, slots.used);
    // Its first entry must exist, to hold the link when the slot is free.
    space::make_entry(bottom).ok()?;
    slots.used += 1;
    Some(bottom)
}

/// Makes a slot free, none of whose addresses is mapped or in a TLB.
fn give_slot(bottom: usize) {
    let (order, slot) = slot_of(bottom);
    let mut slots = SLOTS.lock_irq();
    let slots = &mut slots[order - SMALLEST];
    let link = !(u64::from(slots.free) << PAGE_SHIFT) & ADDRESS;
    // SAFETY: the first entry of a slot that is free now.
    unsafe { entry(bottom).write_volatile(link) };
    slots.free = slot + 1;
}

/// Maps a new frame at an address of a slot.
fn map_page(address: usize) -> Option<()> {
    let entry = space::make_entry(address).ok()?;
    let frame = take_of_block().ok()?;
    // SAFETY: the entry belongs to the slot, which is the caller's.
    unsafe { entry.write_volatile(record::address(frame).0 | DATA) };
    Some(())
}

/// Allocates a block of this many pages, aligned to `align` pages, a power of two. Any context.
/// `None` when there are no frames but those of the reserve, or no addresses.
pub fn alloc(pages: usize, align: usize) -> Option<*mut u8> {
    let order = (pages + 1).max(align).next_power_of_two().ilog2() as usize;
    if order > LARGEST {
        return None;
    }
    let order = order.max(SMALLEST);
    if !has_block(pages) {
        return None;
    }
    let found = attempt(order, pages);
    let found = found.or_else(|| (may_wait() && trim()).then(|| attempt(order, pages))?)?;
    Counter::heap_blocks_mapped.add(1);
    Some(found as *mut u8)
}

fn attempt(order: usize, pages: usize) -> Option<usize> {
    let bottom = take_slot(order)?;
    let mapped = (0..pages).take_while(|page| map_page(bottom + page * PAGE_SIZE).is_some());
    match mapped.count() {
        count if count == pages => return Some(bottom),
        0 => give_slot(bottom),
        // A CPU may have translated them ahead of any access.
        count => make_stale(bottom, count),
    }
    None
}

/// Frees a block of this many pages. Any context.
pub fn free(block: *mut u8, pages: usize) {
    make_stale(block as usize, pages);
    if STALE_PAGES.load(Ordering::Relaxed) >= TOO_STALE && may_wait() {
        trim();
    }
}

fn make_stale(bottom: usize, pages: usize) {
    // SAFETY: the entry of a block that is mapped, which is the caller's.
    let first = unsafe { entry(bottom).read_volatile() } & ADDRESS;
    let first = (first >> PAGE_SHIFT) as u32;
    let mut stale = STALE.lock_irq();
    let next = *stale;
    let note = Stale {
        bottom,
        pages,
        next,
    };
    // SAFETY: the frame is the block's, which nothing uses any more; a frame is aligned.
    unsafe { record::bytes(first).cast::<Stale>().write(note) };
    *stale = first;
    STALE_PAGES.fetch_add(pages, Ordering::Relaxed);
}

/// Whether the caller may wait for other CPUs.
fn may_wait() -> bool {
    cpu::irqs_enabled() && percpu::preempt_count() == 0
}

/// Unmaps the stale blocks and frees their frames; returns whether there were any. Interrupts are
/// on, and the caller holds no spin lock.
pub(crate) fn trim() -> bool {
    let first = core::mem::replace(&mut *STALE.lock_irq(), record::NONE);
    if first == record::NONE {
        return false;
    }
    // SAFETY: the list was taken whole: its blocks are this caller's, and their first frames begin
    // with this until they are given back below.
    let note = |first: u32| unsafe { record::bytes(first).cast::<Stale>().read() };
    let entries = |it: &Stale| {
        let bottom = it.bottom;
        (0..it.pages).map(move |page| entry(bottom + page * PAGE_SIZE))
    };
    let mut at = first;
    while at != record::NONE {
        let stale = note(at);
        for entry in entries(&stale) {
            // SAFETY: the entries of a block that is this caller's.
            unsafe { entry.write_volatile((entry.read_volatile() ^ ADDRESS) & !PRESENT) };
        }
        at = stale.next;
    }
    kernel_flush::everywhere();
    let mut at = first;
    while at != record::NONE {
        let stale = note(at);
        for entry in entries(&stale) {
            // SAFETY: as above; no TLB holds the address.
            let frame = (!unsafe { entry.replace(0) } & ADDRESS) >> PAGE_SHIFT;
            give_run(frame as u32..frame as u32 + 1, Type::Heap);
        }
        STALE_PAGES.fetch_sub(stale.pages, Ordering::Relaxed);
        give_slot(stale.bottom);
        at = stale.next;
    }
    true
}
