//! The backend that kernels had before: a kernel address is allocated for each mapping, its
//! page-table entry is set, and at the end the entry is cleared and every CPU told to forget it
//! (`ephemeral-mappings.txt` 2 and 6.2's original kernel). For comparison.
//!
//! A CPU that frees a mapping where it can't wait for other CPUs leaves the address *stale*, with a
//! handle to its frame; it is invalidated with the next one that is freed where that is possible,
//! or when no other is left. Where no address can be had, the mapping is a direct one, so that no
//! task waits for one while it holds another.

use core::sync::atomic::{AtomicU8, Ordering};

use super::Mapping;
use crate::cpu::percpu::Restart;
use crate::frame::record::{NONE, address};
use crate::hw::machine::{self, WINDOW_PAGES};
use crate::lock::{Rank, SpinLock};
use crate::{Frame, OutOfMemory, pmap};

/// Addresses that are invalidated at once.
const BATCH: usize = 16;

/// Addresses of the window, by number.
struct Slots {
    free: [u16; WINDOW_PAGES],
    free_count: usize,
    /// Not mapped any more, but some TLB may hold them.
    stale: [u16; WINDOW_PAGES],
    stale_count: usize,
    /// By address: the handle to its frame while it is stale, as [`Frame::into_index`] gives it.
    frames: [u32; WINDOW_PAGES],
}

impl Slots {
    /// All free; the lowest ones are used first.
    const fn new() -> Slots {
        let mut free = [0; WINDOW_PAGES];
        let mut i = 0;
        while i < WINDOW_PAGES {
            free[i] = (WINDOW_PAGES - 1 - i) as u16;
            i += 1;
        }
        Slots {
            free,
            free_count: WINDOW_PAGES,
            stale: [0; WINDOW_PAGES],
            stale_count: 0,
            frames: [NONE; WINDOW_PAGES],
        }
    }

    fn take(&mut self) -> Option<u16> {
        self.free_count = self.free_count.checked_sub(1)?;
        Some(self.free[self.free_count])
    }

    fn give(&mut self, slot: u16) {
        self.free[self.free_count] = slot;
        self.free_count += 1;
    }
}

static SLOTS: Restart<SpinLock<Slots>> =
    Restart::new(SpinLock::new(Rank::KernelSpace, Slots::new()));

/// What the backend is used for.
static USE: AtomicU8 = AtomicU8::new(NEVER);
/// Nothing, and never was.
const NEVER: u8 = 0;
/// New mappings.
const ON: u8 = 1;
/// Mappings that were made while it was on.
const OFF: u8 = 2;

/// Whether mappings are made by this backend.
#[inline]
pub(super) fn is_on() -> bool {
    USE.load(Ordering::Relaxed) == ON
}

/// Whether there may be mappings by this backend.
#[inline]
pub(super) fn was_on() -> bool {
    USE.load(Ordering::Relaxed) != NEVER
}

/// Makes mappings by this backend from now on, or no longer.
///
/// # Errors
/// [`OutOfMemory`] if there is none for the window's page tables.
pub(super) fn set(on: bool) -> Result<(), OutOfMemory> {
    if on {
        machine::window_start()?;
        USE.store(ON, Ordering::Relaxed);
    } else if is_on() {
        USE.store(OFF, Ordering::Relaxed);
    }
    Ok(())
}

/// Starts with the direct backend, and all addresses free.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(super) unsafe fn start() {
    // SAFETY: the caller promises to be alone.
    unsafe { SLOTS.set(SpinLock::new(Rank::KernelSpace, Slots::new())) };
    USE.store(NEVER, Ordering::Relaxed);
}

/// Whether the caller may wait for other CPUs.
fn may_wait() -> bool {
    machine::irqs_enabled() && machine::preempt_count() == 0
}

/// Maps a frame; `None` if no address can be had.
pub(super) fn alloc(frame: &Frame) -> Option<Mapping<'_>> {
    let slot = {
        let slot = SLOTS.lock_irq().take();
        match slot {
            Some(slot) => slot,
            None if may_wait() && invalidate(None) => SLOTS.lock_irq().take()?,
            None => return None,
        }
    };
    let at = address(frame.index());
    machine::window_map(slot.into(), at);
    Some(Mapping {
        frame,
        address: machine::window_address(slot.into(), at),
        slot: slot.into(),
    })
}

/// Ends the mapping of `frame` at a slot.
pub(super) fn free(slot: u32, frame: &Frame) {
    machine::window_unmap(slot as usize);
    if may_wait() {
        invalidate(Some(slot as u16));
        return;
    }
    let handle = frame.clone().into_index();
    let mut slots = SLOTS.lock_irq();
    let count = slots.stale_count;
    slots.stale[count] = slot as u16;
    slots.stale_count += 1;
    slots.frames[usize::from(slot as u16)] = handle;
}

/// Makes every CPU forget `slot`, which is not mapped any more, and stale ones with it; they are
/// free then. Returns whether there were any.
fn invalidate(slot: Option<u16>) -> bool {
    let mut batch = [0; BATCH];
    let mut count = 0;
    if let Some(slot) = slot {
        batch[0] = slot;
        count = 1;
    }
    {
        let mut slots = SLOTS.lock_irq();
        while count < BATCH && slots.stale_count > 0 {
            slots.stale_count -= 1;
            batch[count] = slots.stale[slots.stale_count];
            count += 1;
        }
    }
    let batch = &batch[..count];
    if batch.is_empty() {
        return false;
    }
    pmap::forget_window(batch);
    for &slot in batch {
        let handle = {
            let mut slots = SLOTS.lock_irq();
            slots.give(slot);
            core::mem::replace(&mut slots.frames[usize::from(slot)], NONE)
        };
        if handle != NONE {
            drop(Frame::from_index(handle));
        }
    }
    true
}
