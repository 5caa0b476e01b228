//! The backend that kernels had before: a kernel address is allocated for each mapping, its
//! page-table entry is set, and at the end the entry is cleared and every CPU told to forget it
//! (`ephemeral-mappings.txt` 2 and 6.2's original kernel). For comparison.
//!
//! A CPU that frees a mapping where it can't wait for other CPUs leaves the address *stale*; it is
//! invalidated with the next one that is freed where that is possible, or when no other is left.

use super::{Flags, LONGEST_RUN, Mapping, Unavailable};
use crate::counters::Counter;
use crate::cpu::percpu::Restart;
use crate::frame::RING_SLOTS;
use crate::frame::record::{NONE, address};
use crate::hw::machine::{self, WINDOW_SINGLE};
use crate::lock::{Rank, SpinLock};
use crate::mem::mistake::Mistake;
use crate::task::WaitQueue;
use crate::{Frame, OutOfMemory, pmap};

/// Addresses that are invalidated at once: those of a run.
const BATCH: usize = if LONGEST_RUN > 16 { LONGEST_RUN } else { 16 };

/// Those that some TLB may hold, by number, last in first out.
struct Stack {
    slots: [u32; WINDOW_SINGLE],
    len: usize,
}

/// Those that can be used, and those that some TLB may hold.
struct Slots {
    /// By address.
    is_free: [bool; WINDOW_SINGLE],
    /// None before it is free.
    first_free: usize,
    stale: Stack,
}

impl Stack {
    fn push(&mut self, slot: u32) {
        self.slots[self.len] = slot;
        self.len += 1;
    }

    fn pop(&mut self) -> Option<u32> {
        self.len = self.len.checked_sub(1)?;
        Some(self.slots[self.len])
    }
}

impl Slots {
    const fn new() -> Slots {
        Slots {
            is_free: [true; WINDOW_SINGLE],
            first_free: 0,
            stale: Stack {
                slots: [0; WINDOW_SINGLE],
                len: 0,
            },
        }
    }

    /// Takes the first `count` neighbours that are free; returns the first one's number.
    fn take(&mut self, count: usize) -> Option<u32> {
        let mut found = 0;
        let end = (self.first_free..WINDOW_SINGLE).find(|&at| {
            found = if self.is_free[at] { found + 1 } else { 0 };
            found == count
        })? + 1;
        let taken = end - count..end;
        if taken.start == self.first_free {
            self.first_free = end;
        }
        self.is_free[taken.clone()].fill(false);
        Some((RING_SLOTS + taken.start) as u32)
    }

    fn give(&mut self, slot: u32) {
        let at = slot as usize - RING_SLOTS;
        self.is_free[at] = true;
        self.first_free = self.first_free.min(at);
    }
}

static SLOTS: Restart<SpinLock<Slots>> =
    Restart::new(SpinLock::new(Rank::KernelSpace, Slots::new()));

/// Tasks that wait for an address.
static SLEEPERS: WaitQueue = WaitQueue::new();

/// Whether an address of the window is one of these.
#[inline]
pub(super) fn owns(slot: u32) -> bool {
    (slot as usize) < RING_SLOTS + WINDOW_SINGLE
}

/// Makes the page tables.
///
/// # Errors
/// [`OutOfMemory`].
pub(super) fn start() -> Result<(), OutOfMemory> {
    machine::window_start(RING_SLOTS..RING_SLOTS + WINDOW_SINGLE)
}

/// Starts with all addresses free.
///
/// # Safety
/// The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(super) unsafe fn reset() {
    // SAFETY: the caller promises to be alone.
    unsafe { SLOTS.set(SpinLock::new(Rank::KernelSpace, Slots::new())) };
}

/// Has all that wait for an address look again.
pub(super) fn wake_sleepers() {
    SLEEPERS.wake_all();
}

/// Maps frames, all or none. The caller may sleep.
pub(super) fn alloc<const N: usize>(
    frames: [&Frame; N],
    flags: Flags,
) -> Result<[Mapping<'_>; N], Unavailable> {
    let taken = super::wait(&SLEEPERS, flags, || {
        take::<N>().or_else(|| invalidate(&[]).then(take::<N>)?)
    })?;
    let mut taken = taken.into_iter();
    Ok(frames.map(|frame| {
        let slot = taken.next().expect("an address for each frame");
        machine::preempt_disable();
        enter(slot, frame);
        Mapping::at_slot(frame, slot)
    }))
}

/// Maps frames at neighbouring addresses and returns the first one's number; the caller is pinned
/// from then on. It may sleep.
pub(super) fn alloc_run<F: AsRef<Frame>>(frames: &[F], flags: Flags) -> Result<u32, Unavailable> {
    let take = || SLOTS.lock_irq().take(frames.len());
    let first = super::wait(&SLEEPERS, flags, || {
        take().or_else(|| invalidate(&[]).then(take)?)
    })?;
    machine::preempt_disable();
    for (slot, frame) in (first..).zip(frames) {
        enter(slot, frame.as_ref());
    }
    Ok(first)
}

fn enter(slot: u32, frame: &Frame) {
    machine::window_map(slot as usize, address(frame.index()));
    Counter::ephemeral_misses.add(1);
}

/// Takes as many free addresses, if there are so many.
fn take<const N: usize>() -> Option<[u32; N]> {
    let mut slots = SLOTS.lock_irq();
    let mut taken = [NONE; N];
    for at in 0..N {
        let Some(slot) = slots.take(1) else {
            taken[..at].iter().for_each(|&slot| slots.give(slot));
            return None;
        };
        taken[at] = slot;
    }
    Some(taken)
}

/// Ends a mapping at an address, to whose CPU the caller is pinned; unpins it.
pub(super) fn free(slot: u32) {
    end(&[slot]);
}

/// As [`free`], for `count` mappings of [`alloc_run`].
pub(super) fn free_run(first: usize, count: usize) {
    let slots: [u32; LONGEST_RUN] = core::array::from_fn(|at| (first + at) as u32);
    end(&slots[..count]);
}

fn end(slots: &[u32]) {
    for &slot in slots {
        machine::window_unmap(slot as usize);
    }
    super::unpin();
    if machine::irqs_enabled() && machine::preempt_count() == 0 {
        invalidate(slots);
        return;
    }
    let mut all = SLOTS.lock_irq();
    slots.iter().for_each(|&slot| all.stale.push(slot));
}

/// Makes every CPU forget addresses that are not mapped any more, and stale ones with them; they
/// are free then. Returns whether there were any. The caller may wait for other CPUs.
fn invalidate(own: &[u32]) -> bool {
    let mut batch = [0; BATCH];
    let mut count = own.len();
    batch[..count].copy_from_slice(own);
    {
        let mut slots = SLOTS.lock_irq();
        while count < BATCH
            && let Some(slot) = slots.stale.pop()
        {
            batch[count] = slot;
            count += 1;
        }
    }
    let batch = &batch[..count];
    if batch.is_empty() {
        return false;
    }
    let others = pmap::all_cpus().count_ones() - 1;
    Counter::ephemeral_local_uncached.add(count as u64);
    Counter::ephemeral_remote_uncached.add(u64::from(others) * count as u64);
    let told = match Mistake::OthersNotTold.is_made() {
        true => 1 << machine::cpu(),
        false => pmap::all_cpus(),
    };
    pmap::forget_window(batch, told);
    {
        let mut slots = SLOTS.lock_irq();
        batch.iter().for_each(|&slot| slots.give(slot));
    }
    SLEEPERS.wake_all();
    true
}
