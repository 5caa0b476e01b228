//! Kernel stacks.
//!
//! Each has a slot of the kernel's address space: the lower part is never mapped, so that an
//! overflow faults (and, for want of a stack to push the fault on, double-faults on a stack of its
//! own). A stack that is given back stays mapped and is the next one that the CPU that took it
//! last hands out: making a thread changes no mapping, flushes nothing, and takes no cache line
//! from another CPU. Only when many are free do some give their memory back, all with one flush.

use crate::hw::x86_64::layout::{MAX_STACKS, STACK_SIZE, STACK_SLOT, stacks};
use crate::hw::x86_64::percpu::{self, MAX_CPUS};
use crate::hw::x86_64::{cpu, kernel_flush, space};
use crate::lock::{Rank, SpinLock};
use crate::{OutOfMemory, PAGE_SIZE};

/// Free stacks that each CPU keeps for itself, also when memory is short: a pipeline's, 128 KiB.
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

/// The free stacks that a CPU took last: their bottom addresses, 0 where there is none.
#[repr(align(64))]
struct Own(SpinLock<[usize; OWN]>);

static OWN_STACKS: [Own; MAX_CPUS] =
    [const { Own(SpinLock::new(Rank::KernelSpace, [0; OWN])) }; MAX_CPUS];

impl Own {
    /// Takes the last one that came.
    fn pop(&self) -> Option<usize> {
        let mut places = self.0.lock();
        let last = places.iter_mut().rfind(|bottom| **bottom != 0)?;
        Some(core::mem::take(last))
    }

    /// Adds one, if there is room. Returns whether there was.
    fn push(&self, bottom: usize) -> bool {
        let mut places = self.0.lock();
        let free = places.iter_mut().find(|place| **place == 0);
        free.map(|place| *place = bottom).is_some()
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
    /// The CPU that took it, and which gets it back.
    home: usize,
}

impl KernelStack {
    /// A stack; what it holds is left over from its last user.
    ///
    /// # Errors
    /// [`OutOfMemory`] when there is no memory or no slot.
    pub fn alloc() -> Result<KernelStack, OutOfMemory> {
        // The task may move meanwhile: then it takes another CPU's.
        let home = percpu::cpu();
        if let Some(bottom) = OWN_STACKS[home].pop() {
            return Ok(KernelStack { bottom, home });
        }
        let slot = {
            let mut stacks = STACKS_STATE.lock();
            if let Some(bottom) = stacks.pop() {
                return Ok(KernelStack { bottom, home });
            }
            stacks.take_slot().ok_or(OutOfMemory)?
        };
        let bottom = bottom_of(slot);
        if space::map_stack(bottom, STACK_SIZE / PAGE_SIZE).is_err() {
            STACKS_STATE.lock().give_slot(slot);
            return Err(OutOfMemory);
        }
        Ok(KernelStack { bottom, home })
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
        if OWN_STACKS[self.home].push(self.bottom) {
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
