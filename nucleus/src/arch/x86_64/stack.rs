//! Kernel stacks.
//!
//! Each has a slot of the kernel's address space: the lower part is never mapped, so that an overflow
//! faults (and, for want of a stack to push the fault on, double-faults on a stack of its own).
//! A stack that is given back stays mapped and is the next one to be handed out: making a thread
//! changes no mapping and flushes nothing.

use super::layout::STACKS;
use super::space;
use crate::sync::{Rank, SpinLock};
use crate::{OutOfMemory, PAGE_SIZE};

/// Bytes of a stack. The deepest chains, from a system call through a fault and a page's arrival to
/// an interrupt, take about a third of it in builds with assertions.
pub const SIZE: usize = 32 << 10;
/// Bytes of a slot; what the stack does not use guards it.
const SLOT: usize = 64 << 10;
/// Stacks at most, and so threads at most.
const MAX: usize = 32 << 10;

struct Stacks {
    /// The bottom address of a stack that is free, 0 if there is none. Each holds the next one's
    /// in its lowest word.
    free: usize,
    /// Slots that were ever mapped.
    used: usize,
}

static CACHE: SpinLock<Stacks> = SpinLock::new(Rank::KernelSpace, Stacks { free: 0, used: 0 });

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
        let bottom = {
            let mut stacks = CACHE.lock();
            if stacks.free != 0 {
                let bottom = stacks.free;
                // SAFETY: a free stack is mapped, belongs to the cache, and starts with this word.
                stacks.free = unsafe { *(bottom as *const usize) };
                return Ok(KernelStack { bottom });
            }
            if stacks.used == MAX {
                return Err(OutOfMemory);
            }
            stacks.used += 1;
            STACKS + stacks.used * SLOT - SIZE
        };
        if space::map_stack(bottom, SIZE / PAGE_SIZE).is_err() {
            // The slot is lost only if others were taken meanwhile.
            let mut stacks = CACHE.lock();
            if STACKS + stacks.used * SLOT - SIZE == bottom {
                stacks.used -= 1;
            }
            return Err(OutOfMemory);
        }
        Ok(KernelStack { bottom })
    }

    /// The address just above the stack, a multiple of the page size.
    pub fn top(&self) -> usize {
        self.bottom + SIZE
    }

    /// Never gives the stack back.
    pub fn leak(self) -> usize {
        let top = self.top();
        core::mem::forget(self);
        top
    }
}

impl Drop for KernelStack {
    fn drop(&mut self) {
        let mut stacks = CACHE.lock();
        // SAFETY: the stack is mapped and nobody runs on it any more.
        unsafe { *(self.bottom as *mut usize) = stacks.free };
        stacks.free = self.bottom;
    }
}

/// Whether an address lies in the guard below a stack, or so near above it that a push goes there.
pub fn is_guard(address: usize) -> bool {
    let within = address.wrapping_sub(STACKS);
    within < MAX * SLOT && within % SLOT < SLOT - SIZE + 256
}
