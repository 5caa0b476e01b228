//! How the kernel reaches the bytes of a frame: at its place in the direct map, or, for a frame
//! that has none, at an address of this CPU's part of the window.
//!
//! Each CPU has a ring of addresses that no other CPU uses, and hands them out in turn, to what is
//! pinned to it: no lock, no list, no wait. A mapping that ends is taken out of the page table at
//! once. What the CPU's TLB still holds of it does no harm before the address is used again, which
//! takes a turn of the ring; mostly the CPU has dropped all its translations by then for a reason
//! of its own (a switch of the address space), and otherwise it does so then, once for all of them.
//!
//! # Why no other CPU has to hear of it
//!
//! Another CPU may translate an address of this ring, if it looks ahead, and hold that for ever. It
//! never uses it: only what is pinned to this CPU is given the address, and what it is given for
//! ends before it is pinned no more. The same holds for a translation that this CPU makes ahead of
//! time: it can only be of a mapping that was there, so before the address was given back; and the
//! number of flushes is read after that (see [`Ring::give`]).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use super::directmap::is_direct;
use super::record::{address, bytes};
use crate::OutOfMemory;
use crate::counters::Counter;
use crate::cpu::percpu::Pinned;
use crate::hw::machine::{self, MAX_CPUS, WINDOW_RING};
use crate::mem::mistake::Mistake;

/// What stands in a ring for an address in use.
const IN_USE: u64 = u64::MAX;

/// The addresses of one CPU, which alone changes it. An interrupt handler finds it between two
/// operations of what it interrupted, and leaves it with all addresses given back that it took.
#[repr(align(64))]
struct Ring {
    /// The next one to hand out.
    next: AtomicU32,
    /// By address: how often the CPU had dropped all translations when it was given back, or
    /// [`IN_USE`].
    given: [AtomicU64; WINDOW_RING],
}

static RINGS: [Ring; MAX_CPUS] = [const {
    Ring {
        next: AtomicU32::new(0),
        given: [const { AtomicU64::new(0) }; WINDOW_RING],
    }
}; MAX_CPUS];

/// Addresses of the window that belong to the rings: the first ones.
pub(crate) const RING_SLOTS: usize = MAX_CPUS * WINDOW_RING;

impl Ring {
    /// Takes an address that this CPU's TLB does not hold.
    #[inline]
    fn take(&self) -> usize {
        loop {
            let next = self.next.load(Ordering::Relaxed) as usize % WINDOW_RING;
            self.next.store(next as u32 + 1, Ordering::Relaxed);
            // An interrupt may take the same one in between, but has given it back by now.
            let given = self.given[next].swap(IN_USE, Ordering::Relaxed);
            if given == IN_USE {
                // What holds it has taken many others since, or was interrupted.
                continue;
            }
            if may_be_held(given) {
                flush();
            }
            return next;
        }
    }

    /// Takes `count` neighbouring addresses that this CPU's TLB does not hold.
    fn take_run(&self, count: usize) -> usize {
        let next = self.next.load(Ordering::Relaxed) as usize % WINDOW_RING;
        let is_free = |at: usize| self.given[at].load(Ordering::Relaxed) != IN_USE;
        // An interrupt leaves what is free as it finds it.
        let first = (next..WINDOW_RING)
            .chain(0..next)
            .find(|&first| first + count <= WINDOW_RING && (first..first + count).all(is_free))
            .expect("a CPU that holds few addresses of its ring");
        self.next.store((first + count) as u32, Ordering::Relaxed);
        let given = self.given[first..first + count]
            .iter()
            .map(|given| given.swap(IN_USE, Ordering::Relaxed));
        if may_be_held(given.fold(0, u64::max)) {
            flush();
        }
        first
    }

    /// Gives an address back that is not mapped any more.
    #[inline]
    fn give(&self, at: usize) {
        // The entry is cleared before the flushes are read. A flush that is counted later comes
        // after the store, for which a load of the root waits, so nothing of this mapping is left.
        compiler_fence(Ordering::SeqCst);
        self.given[at].store(machine::flushes(), Ordering::Relaxed);
    }
}

/// Whether this CPU's TLB may hold an address that was given back after so many flushes.
#[inline]
fn may_be_held(given: u64) -> bool {
    given >= machine::flushes() && !Mistake::RingNotFlushed.is_made()
}

/// All addresses of the ring were used since the CPU dropped its translations last.
#[cold]
#[inline(never)]
fn flush() {
    machine::window_flush();
    Counter::ephemeral_flush_ring.add(1);
}

/// Makes the page tables of the rings of so many CPUs.
///
/// # Errors
/// [`OutOfMemory`].
pub(crate) fn start_rings(cpus: usize) -> Result<(), OutOfMemory> {
    machine::window_start(0..cpus * WINDOW_RING)
}

/// Forgets what an earlier machine had mapped.
#[cfg(not(target_os = "none"))]
pub(super) fn reset() {
    for ring in &RINGS {
        ring.next.store(0, Ordering::Relaxed);
        ring.given
            .iter()
            .for_each(|given| given.store(0, Ordering::Relaxed));
    }
}

/// Maps a frame at an address of this CPU's ring; returns the address's number. The caller is
/// pinned until it has been [given back](unmap_pinned).
#[inline]
pub(crate) fn map_pinned(index: u32) -> usize {
    let cpu = machine::cpu();
    let slot = cpu * WINDOW_RING + RINGS[cpu].take();
    machine::window_map(slot, address(index));
    slot
}

/// Ends a mapping that [`map_pinned`] made on this CPU.
#[inline]
pub(crate) fn unmap_pinned(slot: usize) {
    machine::window_unmap(slot);
    RINGS[slot / WINDOW_RING].give(slot % WINDOW_RING);
}

/// As [`map_pinned`], for frames at neighbouring addresses; returns the first one's number.
pub(crate) fn map_pinned_run(frames: impl ExactSizeIterator<Item = u32>) -> usize {
    let cpu = machine::cpu();
    let first = cpu * WINDOW_RING + RINGS[cpu].take_run(frames.len());
    for (slot, index) in (first..).zip(frames) {
        machine::window_map(slot, address(index));
    }
    first
}

/// Ends `count` mappings that [`map_pinned_run`] made on this CPU.
pub(crate) fn unmap_pinned_run(first: usize, count: usize) {
    (first..first + count).for_each(unmap_pinned);
}

/// Calls `f` with the bytes of a frame, which are there until it returns: it must not sleep, unless
/// the frame is in the direct map.
#[inline]
pub(super) fn with_bytes<R>(index: u32, f: impl FnOnce(*mut u8) -> R) -> R {
    match is_direct(index) {
        true => f(bytes(index)),
        false => with_mapped(index, f),
    }
}

#[cold]
#[inline(never)]
fn with_mapped<R>(index: u32, f: impl FnOnce(*mut u8) -> R) -> R {
    let _pinned = Pinned::new();
    let slot = map_pinned(index);
    machine::window_used(slot, address(index));
    let result = f(machine::window_address(slot, address(index)));
    unmap_pinned(slot);
    result
}
