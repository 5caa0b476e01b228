//! The kernel's window for short-lived mappings: entries, and what each CPU's TLB holds of them.
//!
//! The kernel reaches simulated memory without translation, so a use of a mapping is looked at
//! beside it: the frame that the CPU would reach, by what it holds or by what the entry says, must
//! be the mapping's.

use super::interface::point;
use super::machine::{Machine, machine, required};
use crate::hw::KernelPage;
use crate::mem::mistake::Mistake;
use crate::{OutOfMemory, PAGE_SHIFT, PAGE_SIZE, PhysAddr};

/// Addresses that each CPU has for itself: few, so that they are used again soon.
pub(crate) const WINDOW_RING: usize = 8;
/// The most neighbours of these that are handed out together.
pub(crate) const WINDOW_RUN: usize = 4;
/// Addresses that are allocated one by one.
pub(crate) const WINDOW_SINGLE: usize = 8;
/// Addresses in the window.
pub(crate) const WINDOW_PAGES: usize = super::MAX_CPUS * WINDOW_RING + WINDOW_SINGLE + 128;

/// Bytes of the window in the order of their addresses: of a page.
pub(crate) const WINDOW_ORDERED: usize = PAGE_SIZE;

/// A page-table entry of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    frame: Option<u64>,
    accessed: bool,
}

/// There is nothing to make.
pub(crate) fn window_start(_slots: core::ops::Range<usize>) -> Result<(), OutOfMemory> {
    Ok(())
}

/// Maps a frame at a free address.
pub(crate) fn window_map(slot: usize, frame: PhysAddr) {
    let entry = Entry {
        frame: Some(frame.frame_number()),
        accessed: false,
    };
    let before = required().window[slot].replace(entry);
    assert_eq!(
        before.frame, None,
        "address {slot} of the window is mapped twice"
    );
    point();
}

/// Takes the mapping away; TLBs may hold it until each CPU has called [`window_invalidate`] or
/// loaded a root.
pub(crate) fn window_unmap(slot: usize) {
    window_take(slot);
}

/// As [`window_unmap`]; returns whether a TLB can hold the mapping.
pub(crate) fn window_take(slot: usize) -> bool {
    let before = required().window[slot].take();
    point();
    before.accessed
}

/// Makes this CPU forget an address.
pub(crate) fn window_invalidate(slot: usize) {
    required().cpu().window.borrow_mut().remove(&slot);
}

/// Makes this CPU forget all addresses.
pub(crate) fn window_flush() {
    let Some(m) = machine() else { return };
    super::tlb::invalidate_spaces(m);
    flushed(m);
}

/// What a CPU does when it drops all translations: where it has tags, only the global ones are the
/// window's, which stay when a root is loaded.
pub(super) fn flushed(m: &Machine) {
    let cpu = m.cpu();
    if !Mistake::GlobalKept.is_made() {
        cpu.window.borrow_mut().clear();
    }
    cpu.flushes.set(cpu.flushes.get() + 1);
}

/// What all CPUs have done when a flush of the kernel's half is over.
pub(super) fn flush_everywhere(m: &Machine) {
    for cpu in &m.cpus {
        cpu.window.borrow_mut().clear();
        cpu.flushes.set(cpu.flushes.get() + 1);
    }
}

/// How often this CPU has forgotten all addresses of the window.
pub(crate) fn flushes() -> u64 {
    machine().map_or(0, |m| m.cpu().flushes.get())
}

/// Where the kernel reaches a mapping's bytes.
pub(crate) fn window_address(_slot: usize, frame: PhysAddr) -> *mut u8 {
    required().memory(frame)
}

/// The kernel uses a mapping on this CPU.
pub(crate) fn window_used(slot: usize, frame: PhysAddr) {
    let Some(m) = machine() else { return };
    point();
    let wanted = frame.frame_number();
    let found = translate(m, slot);
    if found != Some(wanted) {
        m.fail(format!(
            "CPU {} reaches {found:x?} at address {slot} of the kernel's window, \
             frame {wanted:#x} is mapped there",
            m.current()
        ));
    }
}

/// What this CPU reaches at an address: what it holds, or else what the entry says, which it holds
/// from now on.
fn translate(m: &Machine, slot: usize) -> Option<u64> {
    let mut held = m.cpu().window.borrow_mut();
    if let Some(frame) = held.get(&slot) {
        return Some(*frame);
    }
    let entry = m.window[slot].get();
    let frame = entry.frame?;
    m.window[slot].set(Entry {
        accessed: true,
        ..entry
    });
    held.insert(slot, frame);
    Some(frame)
}

/// The number of an address of the window, as [`each_kernel_page`] gives it.
pub(crate) fn window_slot(address: usize) -> Option<usize> {
    Some(address / PAGE_SIZE)
}

/// Calls `each` for each page that the kernel maps; the direct map is left out unless `whole`.
pub(crate) fn each_kernel_page(whole: bool, each: &mut impl FnMut(KernelPage)) {
    let m = required();
    let direct = m.outside.iter().enumerate().filter(|(_, it)| !it.get());
    for (frame, _) in direct.filter(|_| whole) {
        each(KernelPage {
            address: m.memory(PhysAddr((frame as u64) << PAGE_SHIFT)) as usize,
            frame: frame as u64,
            is_direct: true,
            is_table: false,
            is_writable: true,
        });
    }
    for (slot, entry) in m.window.iter().enumerate() {
        if let Some(frame) = entry.get().frame {
            each(KernelPage {
                address: slot * PAGE_SIZE,
                frame,
                is_direct: false,
                is_table: false,
                is_writable: true,
            });
        }
    }
}

/// No frame has the kernel's text, which is the host's.
pub(crate) fn is_constant(_frame: u64) -> bool {
    false
}

/// Page tables are not guarded.
pub(crate) fn is_guarded() -> bool {
    false
}

/// See [`is_guarded`].
pub(crate) fn guard(_frames: core::ops::Range<u32>, _guarded: bool) {}

/// See [`is_guarded`].
pub(crate) fn lets_write(_at: crate::VirtAddr, _frame: u64) -> bool {
    true
}

/// See [`is_guarded`].
#[inline]
pub(crate) fn is_unsealed() -> bool {
    false
}

/// See [`is_guarded`].
pub(crate) fn reach_tables(_frames: core::ops::Range<u32>) {}

/// A byte of a page table.
#[inline]
pub(crate) fn table_ptr(at: PhysAddr) -> *mut u8 {
    super::ptr(at)
}

/// Holds an address that no one asked for: one that is mapped, if there is any.
pub(super) fn speculate(m: &Machine) {
    if m.cpu().window.try_borrow_mut().is_err() {
        return;
    }
    let first = m.random.below(WINDOW_PAGES as u64) as usize;
    let slots = (first..WINDOW_PAGES).chain(0..first);
    if let Some(slot) = { slots }.find(|&slot| m.window[slot].get().frame.is_some()) {
        translate(m, slot);
    }
}
