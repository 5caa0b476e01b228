//! The backend that kernels had before: a kernel address is allocated for each mapping, its
//! page-table entry is set, and at the end the entry is cleared and every CPU told to forget it
//! (`ephemeral-mappings.txt` 2 and 6.2's original kernel). For comparison.
//!
//! A CPU that frees a mapping where it can't wait for other CPUs leaves the address *stale*; it is
//! invalidated with the next one that is freed where that is possible, or when no other is left.

use super::{Flags, Mapping, Unavailable};
use crate::counters::Counter;
use crate::cpu::percpu::Restart;
use crate::frame::RING_SLOTS;
use crate::frame::record::address;
use crate::hw::machine::{self, WINDOW_SINGLE};
use crate::lock::{Rank, SpinLock};
use crate::task::WaitQueue;
use crate::{Frame, OutOfMemory, pmap};

/// Addresses that are invalidated at once.
const BATCH: usize = 16;

/// Addresses by number, last in first out.
struct Stack {
    slots: [u32; WINDOW_SINGLE],
    len: usize,
}

/// Those that can be used, and those that some TLB may hold.
struct Slots {
    free: Stack,
    stale: Stack,
}

impl Stack {
    const fn new() -> Stack {
        Stack {
            slots: [0; WINDOW_SINGLE],
            len: 0,
        }
    }

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
    /// All free; the lowest ones are used first.
    const fn new() -> Slots {
        let mut free = Stack::new();
        while free.len < WINDOW_SINGLE {
            free.slots[free.len] = (RING_SLOTS + WINDOW_SINGLE - 1 - free.len) as u32;
            free.len += 1;
        }
        Slots {
            free,
            stale: Stack::new(),
        }
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
        machine::window_map(slot as usize, address(frame.index()));
        Counter::ephemeral_misses.add(1);
        Mapping::at_slot(frame, slot)
    }))
}

/// Takes as many free addresses, if there are so many.
fn take<const N: usize>() -> Option<[u32; N]> {
    let mut slots = SLOTS.lock_irq();
    if slots.free.len < N {
        return None;
    }
    Some(core::array::from_fn(|_| {
        slots.free.pop().expect("as many as were counted")
    }))
}

/// Ends a mapping at an address, to whose CPU the caller is pinned; unpins it.
pub(super) fn free(slot: u32) {
    machine::window_unmap(slot as usize);
    super::unpin();
    match machine::irqs_enabled() && machine::preempt_count() == 0 {
        true => {
            invalidate(&[slot]);
        }
        false => SLOTS.lock_irq().stale.push(slot),
    }
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
    Counter::ephemeral_local.add(count as u64);
    Counter::ephemeral_remote.add(u64::from(others) * count as u64);
    pmap::forget_window(batch, pmap::all_cpus());
    {
        let mut slots = SLOTS.lock_irq();
        batch.iter().for_each(|&slot| slots.free.push(slot));
    }
    SLEEPERS.wake_all();
    true
}
