//! The kernel's window for short-lived mappings: addresses, each with a page-table entry of its
//! own.
//!
//! Without address-space tags the entries are not global: whatever loads a root drops what the CPU
//! holds of the whole window, and [`flushes`] tells how often that was. With tags they are, since
//! each tag would have to be told.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::cpu;
use super::layout;
use super::percpu::{self, MAX_CPUS};
use super::space::{ACCESSED, DATA, GLOBAL, invalidate_all, invalidate_page, make_entry};
use super::tags::tags;
use crate::{OutOfMemory, PAGE_SIZE, PhysAddr, VirtAddr};

/// Addresses that each CPU has for itself: half a page table. With `directmap=kernel` a CPU that
/// copies all the time flushes once in so many mappings (`disk-dump`), 0.2 times a transaction of
/// PostMark, and never in `web-server`, as with 32. By `--icount`, which does not see what a flush
/// costs afterwards, nothing from 32 to 1024 differs by a thousandth.
pub(crate) const WINDOW_RING: usize = 256;
/// The most neighbours of these that are handed out together: 64 KiB.
pub(crate) const WINDOW_RUN: usize = 16;
/// Addresses that are allocated one by one.
pub(crate) const WINDOW_SINGLE: usize = 512;
/// Addresses in the window: those of the CPUs, the single ones, and 512 MiB of others.
pub(crate) const WINDOW_PAGES: usize = MAX_CPUS * WINDOW_RING + WINDOW_SINGLE + (128 << 10);
/// Bytes of the window in the order of their addresses: all.
pub(crate) const WINDOW_ORDERED: usize = WINDOW_PAGES * PAGE_SIZE;
/// Entries in a page table.
const ENTRIES: usize = 512;

/// The page tables of level 1, null where none was [made](window_start) yet.
static TABLES: [AtomicPtr<AtomicU64>; WINDOW_PAGES / ENTRIES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; WINDOW_PAGES / ENTRIES];

fn address_of(slot: usize) -> usize {
    layout::window() + slot * PAGE_SIZE
}

/// The number of an address of the window, if it is one.
pub(crate) fn window_slot(address: usize) -> Option<usize> {
    let slot = address.wrapping_sub(layout::window()) / PAGE_SIZE;
    (slot < WINDOW_PAGES).then_some(slot)
}

/// The entry of an address whose table was made.
#[inline]
fn entry(slot: usize) -> &'static AtomicU64 {
    let table = TABLES[slot / ENTRIES].load(Ordering::Relaxed);
    debug_assert!(!table.is_null(), "address {slot} has no table");
    // SAFETY: an address is given out only after `window_start` has made its table; tables are
    // never freed, and an entry is an aligned word, changed by atomic operations only.
    unsafe { &*table.add(slot % ENTRIES) }
}

/// Makes the page tables for these addresses, if they are not there.
///
/// # Errors
/// [`OutOfMemory`].
pub(crate) fn window_start(slots: core::ops::Range<usize>) -> Result<(), OutOfMemory> {
    let numbers = slots.start / ENTRIES..slots.end.div_ceil(ENTRIES);
    for (number, place) in numbers.clone().zip(&TABLES[numbers]) {
        let table = make_entry(address_of(number * ENTRIES))?;
        place.store(table.cast(), Ordering::Relaxed);
    }
    Ok(())
}

/// Maps a frame at a free address of the window that no TLB which matters holds.
#[inline]
pub(crate) fn window_map(slot: usize, frame: PhysAddr) {
    let bits = match tags() {
        0 => DATA & !GLOBAL,
        _ => DATA,
    };
    entry(slot).store(frame.0 | bits, Ordering::Relaxed);
}

/// Takes the mapping away; TLBs may hold it until each CPU has called [`window_invalidate`] or
/// loaded a root.
#[inline]
pub(crate) fn window_unmap(slot: usize) {
    entry(slot).store(0, Ordering::Relaxed);
}

/// As [`window_unmap`]; returns whether a TLB can hold the mapping: a processor sets the accessed
/// bit before it does, also where it looks ahead.
pub(crate) fn window_take(slot: usize) -> bool {
    entry(slot).swap(0, Ordering::Relaxed) & ACCESSED != 0
}

/// Makes this CPU forget an address of the window.
pub(crate) fn window_invalidate(slot: usize) {
    invalidate_page(VirtAddr(address_of(slot)));
}

/// Makes this CPU forget all addresses of the window.
pub(crate) fn window_flush() {
    if tags() == 0 {
        return invalidate_all();
    }
    let irqs = cpu::irqs_disable();
    cpu::flush_global();
    percpu::note_flush();
    cpu::irqs_restore(irqs);
}

/// How often this CPU has forgotten all addresses of the window: at least so often.
#[inline]
pub(crate) fn flushes() -> u64 {
    percpu::flushes()
}

/// Where the kernel reaches a mapping's bytes.
#[inline]
pub(crate) fn window_address(slot: usize, _frame: PhysAddr) -> *mut u8 {
    address_of(slot) as *mut u8
}

/// The simulated machine looks whether a use of the mapping reaches its frame; nothing here.
#[inline(always)]
pub(crate) fn window_used(_slot: usize, _frame: PhysAddr) {}
