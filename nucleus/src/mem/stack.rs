//! Kernel stacks.
//!
//! Each has a slot of the kernel's address space: the lower part is never mapped, so that an
//! overflow faults (and, for want of a stack to push the fault on, double-faults on a stack of its
//! own). A stack that is given back stays mapped and is the next one that its CPU hands out: making
//! a thread changes no mapping, flushes nothing, and takes no cache line from another CPU. Only when
//! many are free do some give their memory back, all with one flush.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::percpu::PerCpu;
use crate::hw::machine;

use crate::hw::x86_64::layout::{MAX_STACKS, STACK_SIZE, STACK_SLOT, stacks};
use crate::hw::x86_64::{cpu, kernel_flush, percpu, space};
use crate::lock::{Rank, SpinLock};
use crate::{OutOfMemory, PAGE_SIZE};

/// Free stacks that each CPU keeps for itself.
const OWN: usize = 4;
/// Other free stacks that are kept for good: 1 MiB.
const KEPT: usize = 32;
/// Free stacks with which the memory of those beyond [`KEPT`] is given back.
const TOO_MANY: usize = 2 * KEPT;

struct Stacks {
    /// The bottom address of a stack that is free and mapped, 0 if there is none. Each holds the
    /// next one's in its lowest word.
    free: usize,
    /// How many those are.
    free_count: usize,
    /// Slots that were ever used.
    used: usize,
    /// Bit per used slot: free and not mapped.
    unmapped: [u64; MAX_STACKS / 64],
    unmapped_count: usize,
}

static STACKS_STATE: SpinLock<Stacks> = SpinLock::new(
    Rank::KernelSpace,
    Stacks {
        free: 0,
        free_count: 0,
        used: 0,
        unmapped: [0; MAX_STACKS / 64],
        unmapped_count: 0,
    },
);

/// The free stacks of a CPU: their bottom addresses, 0 where there is none.
struct Own([AtomicUsize; OWN]);

static OWN_STACKS: PerCpu<Own> =
    PerCpu::new([const { Own([const { AtomicUsize::new(0) }; OWN]) }; machine::MAX_CPUS]);

impl Own {
    /// Takes the last one that came.
    fn pop(&self) -> Option<usize> {
        let taken = |place: &AtomicUsize| match place.load(Ordering::Relaxed) {
            0 => None,
            bottom => {
                place.store(0, Ordering::Relaxed);
                Some(bottom)
            }
        };
        self.0.iter().rev().find_map(taken)
    }

    /// Adds one, if there is room. Returns whether there was.
    fn push(&self, bottom: usize) -> bool {
        let is_free = |place: &&AtomicUsize| place.load(Ordering::Relaxed) == 0;
        let place = self.0.iter().find(is_free);
        place
            .inspect(|place| place.store(bottom, Ordering::Relaxed))
            .is_some()
    }
}

fn bottom_of(slot: usize) -> usize {
    stacks() + (slot + 1) * STACK_SLOT - STACK_SIZE
}

fn slot_of(bottom: usize) -> usize {
    (bottom - stacks()) / STACK_SLOT
}

impl Stacks {
    fn pop(&mut self) -> Option<usize> {
        let bottom = self.free;
        if bottom == 0 {
            return None;
        }
        // SAFETY: a free stack is mapped, belongs to the list, and starts with this word.
        self.free = unsafe { *(bottom as *const usize) };
        self.free_count -= 1;
        Some(bottom)
    }

    fn push(&mut self, bottom: usize) {
        // SAFETY: the stack is mapped and nothing runs on it any more.
        unsafe { *(bottom as *mut usize) = self.free };
        self.free = bottom;
        self.free_count += 1;
    }

    /// A slot that is not mapped.
    fn take_slot(&mut self) -> Option<usize> {
        if self.unmapped_count > 0 {
            let word = self.unmapped.iter().position(|&word| word != 0)?;
            let bit = self.unmapped[word].trailing_zeros() as usize;
            self.unmapped[word] &= !(1 << bit);
            self.unmapped_count -= 1;
            return Some(word * 64 + bit);
        }
        if self.used == MAX_STACKS {
            return None;
        }
        self.used += 1;
        Some(self.used - 1)
    }

    fn give_slot(&mut self, slot: usize) {
        self.unmapped[slot / 64] |= 1 << (slot % 64);
        self.unmapped_count += 1;
    }
}

/// A kernel stack in use.
pub struct KernelStack {
    bottom: usize,
}

impl KernelStack {
    /// A stack; what it holds is left over from its last user.
    ///
    /// # Errors
    /// [`OutOfMemory`] when there is no memory or no slot.
    pub fn alloc() -> Result<KernelStack, OutOfMemory> {
        if let Some(bottom) = OWN_STACKS.with(|own| own?.pop()) {
            return Ok(KernelStack { bottom });
        }
        let slot = {
            let mut stacks = STACKS_STATE.lock();
            if let Some(bottom) = stacks.pop() {
                return Ok(KernelStack { bottom });
            }
            stacks.take_slot().ok_or(OutOfMemory)?
        };
        let bottom = bottom_of(slot);
        if space::map_stack(bottom, STACK_SIZE / PAGE_SIZE).is_err() {
            STACKS_STATE.lock().give_slot(slot);
            return Err(OutOfMemory);
        }
        Ok(KernelStack { bottom })
    }

    /// The address just above the stack, a multiple of the page size.
    pub(crate) fn top(&self) -> usize {
        self.bottom + STACK_SIZE
    }

    /// Never gives the stack back.
    pub(crate) fn leak(self) -> usize {
        let top = self.top();
        core::mem::forget(self);
        top
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        if OWN_STACKS.with(|own| own.is_some_and(|own| own.push(self.bottom))) {
            return;
        }
        // Waiting for other CPUs is for callers that keep none of them waiting.
        let may_wait = cpu::irqs_enabled() && percpu::preempt_count() == 0;
        let mut stacks = STACKS_STATE.lock();
        stacks.push(self.bottom);
        if stacks.free_count < TOO_MANY || !may_wait {
            return;
        }
        let mut surplus = [0; TOO_MANY - KEPT];
        for bottom in &mut surplus {
            *bottom = stacks.pop().unwrap_or(0);
        }
        drop(stacks);
        let surplus = || surplus.iter().copied().filter(|&bottom| bottom != 0);
        for bottom in surplus() {
            space::hide_stack(bottom, STACK_SIZE / PAGE_SIZE);
        }
        kernel_flush::everywhere();
        for bottom in surplus() {
            space::unmap_stack(bottom, STACK_SIZE / PAGE_SIZE);
            STACKS_STATE.lock().give_slot(slot_of(bottom));
        }
    }
}
