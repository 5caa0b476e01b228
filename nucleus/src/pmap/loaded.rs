//! Which pmap each CPU has loaded.
//!
//! A CPU keeps a handle to the pmap that it has loaded. A task without a program leaves the pmap of
//! the task before it loaded (*borrowed*): if that one runs next again, nothing has to be loaded.
//! The first shootdown that reaches a CPU while it borrows makes it leave the pmap for good.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use super::space::{NO_TRUST, Pmap, PmapRef};
use super::tags;
use crate::counters::Counter;
use crate::frame::record::{NONE, address};
use crate::hw::machine::{self, MAX_CPUS};

/// One CPU's view; changed by the CPU itself with interrupts off.
#[repr(align(64))]
struct Loaded {
    /// From `PmapRef::into_raw`, or null: the kernel's own root is loaded.
    pmap: AtomicPtr<Pmap>,
    /// Without a pmap: the trust of the last one.
    trust: AtomicU32,
    borrowed: AtomicBool,
}

static LOADED: [Loaded; MAX_CPUS] = [const {
    Loaded {
        pmap: AtomicPtr::new(core::ptr::null_mut()),
        trust: AtomicU32::new(NO_TRUST),
        borrowed: AtomicBool::new(false),
    }
}; MAX_CPUS];

/// Loads the pmap of the task that this CPU runs from now on. `None`: a task without a program,
/// which borrows what is loaded. Called by the task switch with preemption disabled.
///
/// # Panics
/// If the pmap was torn down.
pub(crate) fn activate(next: Option<&PmapRef>) {
    let irqs = machine::irqs_disable();
    let cpu = machine::cpu();
    let slot = &LOADED[cpu];
    let loaded = slot.pmap.load(Ordering::Relaxed);
    match next {
        None => slot.borrowed.store(true, Ordering::Relaxed),
        Some(next) if core::ptr::eq(next.as_ptr(), loaded) => {
            // Still a member of its mask, so no shootdown was missed.
            slot.borrowed.store(false, Ordering::Relaxed);
        }
        Some(next) => {
            // The bit before the root: see `shootdown`.
            machine::point();
            next.cpus.active.fetch_or(1 << cpu, Ordering::SeqCst);
            // After the bit: a CPU that tears it down sets the mark before it looks at the bits.
            assert!(
                !next.is_dead.load(Ordering::SeqCst),
                "a task runs in an address space that was torn down"
            );
            // SAFETY: the slot holds a handle, and only this CPU changes it.
            let left = unsafe { loaded.as_ref() };
            let family = left.map(|left| Arc::as_ptr(&left.family));
            let stays = family == Some(Arc::as_ptr(&next.family));
            if !stays {
                next.family.cpus.active.fetch_or(1 << cpu, Ordering::SeqCst);
            }
            let user = || match next.user_root {
                NONE => address(next.root),
                user => address(user),
            };
            // Predictions that the program before has taught the CPU.
            let is_trusted = || {
                let last = left.map_or(&slot.trust, |left| &left.trust);
                let trust = next.trust.load(Ordering::Relaxed);
                trust != NO_TRUST && trust == last.load(Ordering::Relaxed)
            };
            // The tag after the bits: see `tags`.
            let tag = tags::choose(cpu, next);
            machine::load_program_space(address(next.root), tag, user, is_trusted);
            Counter::space_switches.add(1);
            tags::keep(cpu, tag, next);
            let next = next.clone().into_raw();
            slot.pmap.store(next, Ordering::Relaxed);
            slot.borrowed.store(false, Ordering::Relaxed);
            give_up(loaded, cpu, stays);
        }
    }
    machine::irqs_restore(irqs);
}

/// Loads the kernel's own root: this CPU has no program's pmap afterwards, not even borrowed.
pub(crate) fn leave() {
    let irqs = machine::irqs_disable();
    let cpu = machine::cpu();
    unload(cpu);
    machine::irqs_restore(irqs);
}

/// If this CPU only borrows, leaves the pmap and returns true. Interrupts off.
pub(super) fn leave_borrowed(cpu: usize) -> bool {
    let irqs = machine::irqs_disable();
    let slot = &LOADED[cpu];
    let borrows =
        slot.borrowed.load(Ordering::Relaxed) && !slot.pmap.load(Ordering::Relaxed).is_null();
    if borrows {
        unload(cpu);
    }
    machine::irqs_restore(irqs);
    borrows
}

/// Interrupts off.
fn unload(cpu: usize) {
    let slot = &LOADED[cpu];
    let loaded = slot.pmap.load(Ordering::Relaxed);
    if !loaded.is_null() {
        machine::load_space(machine::kernel_root());
        Counter::space_switches.add(1);
        // SAFETY: the slot holds a handle, and only this CPU changes it.
        let trust = unsafe { (*loaded).trust.load(Ordering::Relaxed) };
        slot.trust.store(trust, Ordering::Relaxed);
        slot.pmap.store(core::ptr::null_mut(), Ordering::Relaxed);
        give_up(loaded, cpu, false);
    }
}

/// Drops what a CPU held of a pmap that is no longer loaded; `stays`: another one of its family is.
fn give_up(pmap: *mut Pmap, cpu: usize, stays: bool) {
    if pmap.is_null() {
        return;
    }
    // SAFETY: the pointer is from `PmapRef::into_raw`, and the slot no longer has it.
    let pmap = unsafe { PmapRef::from_raw(pmap) };
    // The other root is loaded: what is cached of this one is not used.
    machine::point();
    pmap.cpus.active.fetch_and(!(1 << cpu), Ordering::SeqCst);
    if !stays {
        pmap.family
            .cpus
            .active
            .fetch_and(!(1 << cpu), Ordering::SeqCst);
    }
}

/// Whether this CPU has a pmap loaded that it does not only borrow. The caller is pinned.
pub(super) fn runs(cpu: usize) -> bool {
    let slot = &LOADED[cpu];
    !slot.borrowed.load(Ordering::Relaxed) && !slot.pmap.load(Ordering::Relaxed).is_null()
}

/// The pmap that this CPU has loaded and its family, by their numbers in shootdowns.
pub(super) fn loaded(cpu: usize) -> Option<[u32; 2]> {
    let pmap = LOADED[cpu].pmap.load(Ordering::Relaxed);
    // SAFETY: the slot holds a handle, and only this CPU changes it.
    let pmap = unsafe { pmap.as_ref() }?;
    Some([pmap.space(), pmap.family.number])
}

/// The roots of the members of a family that are loaded anywhere.
#[cfg(not(target_os = "none"))]
pub(super) fn roots(family: u32) -> impl Iterator<Item = crate::PhysAddr> {
    (0..machine::cpu_count()).filter_map(move |cpu| {
        let [_, of] = loaded(cpu)?;
        let pmap = LOADED[cpu].pmap.load(Ordering::Relaxed);
        // SAFETY: as in `loaded`; the simulated machine goes on at its points only, and none is on
        // the way here.
        (of == family).then(|| address(unsafe { (*pmap).root }))
    })
}

/// Forgets what an earlier machine had loaded. The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(super) fn start() {
    for slot in &LOADED {
        slot.pmap.store(core::ptr::null_mut(), Ordering::Relaxed);
        slot.trust.store(NO_TRUST, Ordering::Relaxed);
        slot.borrowed.store(false, Ordering::Relaxed);
    }
}
