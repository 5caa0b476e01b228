//! The kernel's window for short-lived mappings: entries, and what each CPU's TLB holds of them.
//!
//! The kernel reaches simulated memory without translation, so a use of a mapping is looked at
//! beside it: the frame that the CPU would reach, by what it holds or by what the entry says, must
//! be the mapping's.

use super::interface::point;
use super::machine::{Machine, machine, required};
use super::tlb::{reach, unreach};
use crate::{OutOfMemory, PhysAddr};

/// Addresses in the window: few, so that they run out.
pub(crate) const WINDOW_PAGES: usize = 8;

/// There is nothing to make.
pub(crate) fn window_start() -> Result<(), OutOfMemory> {
    Ok(())
}

/// Maps a frame at a free address.
pub(crate) fn window_map(slot: usize, frame: PhysAddr) {
    let before = required().window[slot].replace(Some(frame.frame_number()));
    assert_eq!(before, None, "address {slot} of the window is mapped twice");
    point();
}

/// Takes the mapping away; TLBs may hold it until each CPU has called [`window_invalidate`].
pub(crate) fn window_unmap(slot: usize) {
    required().window[slot].set(None);
    point();
}

/// Makes this CPU forget an address.
pub(crate) fn window_invalidate(slot: usize) {
    let m = required();
    if let Some(frame) = m.cpu().window.borrow_mut().remove(&slot) {
        unreach(m, frame);
    }
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
    let frame = m.window[slot].get()?;
    reach(m, frame);
    held.insert(slot, frame);
    Some(frame)
}

/// Holds an address that no one asked for.
pub(super) fn speculate(m: &Machine) {
    if m.cpu().window.try_borrow_mut().is_ok() {
        translate(m, m.random.below(WINDOW_PAGES as u64) as usize);
    }
}
