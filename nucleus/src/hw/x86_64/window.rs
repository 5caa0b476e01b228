//! The kernel's window for short-lived mappings: addresses, each with a page-table entry of its
//! own.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use super::layout;
use super::space::{DATA, invalidate_page, make_entry};
use crate::{OutOfMemory, PAGE_SIZE, PhysAddr, VirtAddr};

/// Addresses in the window: 4 MiB. More are rarely in use at once; FreeBSD's kernel had as many on
/// machines of the time.
pub(crate) const WINDOW_PAGES: usize = 1024;
/// Entries in a page table.
const ENTRIES: usize = 512;

/// The page tables of level 1, null before [`window_start`].
static TABLES: [AtomicPtr<u64>; WINDOW_PAGES / ENTRIES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; WINDOW_PAGES / ENTRIES];

fn address_of(slot: usize) -> usize {
    layout::window() + slot * PAGE_SIZE
}

/// The entry of an address. The window was started.
fn entry(slot: usize) -> *mut u64 {
    let table = TABLES[slot / ENTRIES].load(Ordering::Relaxed);
    debug_assert!(!table.is_null());
    table.wrapping_add(slot % ENTRIES)
}

/// Makes the window's page tables, if they are not there.
///
/// # Errors
/// [`OutOfMemory`].
pub(crate) fn window_start() -> Result<(), OutOfMemory> {
    for (number, table) in TABLES.iter().enumerate() {
        table.store(make_entry(address_of(number * ENTRIES))?, Ordering::Relaxed);
    }
    Ok(())
}

/// Maps a frame at a free address of the window that no TLB holds.
pub(crate) fn window_map(slot: usize, frame: PhysAddr) {
    // SAFETY: the address's own entry, which is the caller's now.
    unsafe { entry(slot).write_volatile(frame.0 | DATA) };
}

/// Takes the mapping away; TLBs may hold it until each CPU has called [`window_invalidate`].
pub(crate) fn window_unmap(slot: usize) {
    // SAFETY: as in `window_map`.
    unsafe { entry(slot).write_volatile(0) };
}

/// Makes this CPU forget an address of the window.
pub(crate) fn window_invalidate(slot: usize) {
    invalidate_page(VirtAddr(address_of(slot)));
}

/// Where the kernel reaches a mapping's bytes.
pub(crate) fn window_address(slot: usize, _frame: PhysAddr) -> *mut u8 {
    address_of(slot) as *mut u8
}

/// The simulated machine looks whether a use of the mapping reaches its frame; nothing here.
#[inline(always)]
pub(crate) fn window_used(_slot: usize, _frame: PhysAddr) {}
