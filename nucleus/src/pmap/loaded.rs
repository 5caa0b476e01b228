//! Which pmap each CPU has loaded.
//!
//! A CPU keeps a handle to the pmap that it has loaded. A task without a program leaves the pmap of
//! the task before it loaded (*borrowed*): if that one runs next again, nothing has to be loaded.
//! The first shootdown that reaches a CPU while it borrows makes it leave the pmap for good.
//!
//! Small pmaps of one group run under one root: see `group`. A CPU that goes from one to another
//! loads nothing. Its bit in the mask of the group is cleared before that in the pmap's: as long as
//! the latter is set, the group lives.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use super::group::Group;
use super::space::{Hardware, NO_TRUST, Pmap, PmapRef, number_of};
use super::tags;
use crate::counters::Counter;
use crate::hw::machine::{self, MAX_CPUS};

/// One CPU's view; changed by the CPU itself with interrupts off.
#[repr(align(64))]
struct Loaded {
    /// From `PmapRef::into_raw`, or null: the kernel's own root is loaded.
    pmap: AtomicPtr<Pmap>,
    /// The group whose root is loaded, or null.
    group: AtomicPtr<Group>,
    /// The pmap that was loaded last was ever small.
    was_small: AtomicBool,
    /// Without a pmap: the trust of the last one.
    trust: AtomicU32,
    borrowed: AtomicBool,
}

static LOADED: [Loaded; MAX_CPUS] = [const {
    Loaded {
        pmap: AtomicPtr::new(core::ptr::null_mut()),
        group: AtomicPtr::new(core::ptr::null_mut()),
        was_small: AtomicBool::new(false),
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
            load(cpu, next);
            let next = next.clone().into_raw();
            slot.pmap.store(next, Ordering::Relaxed);
            slot.borrowed.store(false, Ordering::Relaxed);
            give_up(loaded, cpu, stays);
        }
    }
    machine::irqs_restore(irqs);
}

/// Loads the root under which `next` runs, unless it is loaded. The CPU's bits in the masks of the
/// pmap and its family are set; that of the group it had loaded is cleared. Interrupts off.
#[inline(always)]
fn load(cpu: usize, next: &Pmap) {
    let slot = &LOADED[cpu];
    // Predictions that the program before has taught the CPU.
    let is_trusted = || {
        // SAFETY: the slot holds a handle, and only this CPU changes it.
        let left = unsafe { slot.pmap.load(Ordering::Relaxed).as_ref() };
        let last = left.map_or(&slot.trust, |left| &left.trust);
        let trust = next.trust.load(Ordering::Relaxed);
        trust != NO_TRUST && trust == last.load(Ordering::Relaxed)
    };
    match next.place.was_small() || slot.was_small.load(Ordering::Relaxed) {
        // Most programs, which pay nothing for the others.
        false => load_hardware(cpu, next.own_space(), is_trusted),
        true => load_near_group(cpu, next, is_trusted),
    }
}

/// As [`load`] of a pmap that was ever small, or after one.
#[inline(never)]
fn load_near_group(cpu: usize, next: &Pmap, is_trusted: impl FnOnce() -> bool) {
    let slot = &LOADED[cpu];
    slot.was_small
        .store(next.place.was_small(), Ordering::Relaxed);
    // After the pmap's bit: see `Pmap::promote`.
    let group = next.group();
    let last = slot.group.load(Ordering::Relaxed);
    match group {
        Some(group) if core::ptr::eq(group, last) => {
            Counter::small_switches.add(1);
            machine::stay_in_space(is_trusted);
        }
        Some(group) => {
            group.active().fetch_or(1 << cpu, Ordering::SeqCst);
            load_hardware(cpu, group.space(), is_trusted);
        }
        None => load_hardware(cpu, next.own_space(), is_trusted),
    }
    machine::set_window(next.place.window(group));
    let now = group.map_or(core::ptr::null(), core::ptr::from_ref);
    if now != last.cast_const() {
        slot.group.store(now.cast_mut(), Ordering::Relaxed);
        leave_group(cpu, last);
    }
}

/// Loads a hardware address space, in whose masks the CPU's bit is set.
#[inline(always)]
fn load_hardware(cpu: usize, space: Hardware<'_>, is_trusted: impl FnOnce() -> bool) {
    // The tag after the bits: see `tags`.
    let tag = tags::choose(cpu, &space);
    let tops = space.tops;
    machine::load_program_space(tops.kernel(), tag, || tops.user(), is_trusted);
    Counter::space_switches.add(1);
    tags::keep(cpu, tag, &space);
}

/// The group's root is no longer loaded. The CPU's bit is still set in the mask of the pmap that it
/// was loaded for.
#[inline(never)]
fn leave_group(cpu: usize, group: *mut Group) {
    // SAFETY: a group lives as long as one of its members does, or a CPU that has a member loaded
    // has not yet left the root.
    if let Some(group) = unsafe { group.as_ref() } {
        machine::point();
        group.active().fetch_and(!(1 << cpu), Ordering::SeqCst);
    }
}

/// The pmap that this CPU has loaded may have left its group: loads the root that it has now.
/// Interrupts off, or the caller is pinned.
#[cold]
pub(super) fn reload(cpu: usize) {
    let irqs = machine::irqs_disable();
    let slot = &LOADED[cpu];
    // SAFETY: the slot holds a handle, and only this CPU changes it.
    if let Some(pmap) = unsafe { slot.pmap.load(Ordering::Relaxed).as_ref() } {
        let group = pmap.group().map_or(core::ptr::null(), core::ptr::from_ref);
        match group == slot.group.load(Ordering::Relaxed).cast_const() {
            true => machine::set_window(pmap.place.window(pmap.group())),
            false => load(cpu, pmap),
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
        leave_group(
            cpu,
            slot.group.swap(core::ptr::null_mut(), Ordering::Relaxed),
        );
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

/// The hardware address space that this CPU has loaded and its pmap's family, by their numbers in
/// shootdowns.
pub(super) fn loaded(cpu: usize) -> Option<[u32; 2]> {
    let pmap = LOADED[cpu].pmap.load(Ordering::Relaxed);
    // SAFETY: the slot holds a handle, and only this CPU changes it.
    let pmap = unsafe { pmap.as_ref() }?;
    // SAFETY: as in `leave_group`.
    let number = match unsafe { LOADED[cpu].group.load(Ordering::Relaxed).as_ref() } {
        None => number_of(pmap.root),
        Some(group) => group.number(),
    };
    Some([number, pmap.family.number])
}

/// The roots of the members of a family that are loaded anywhere.
#[cfg(not(target_os = "none"))]
pub(super) fn roots(family: u32) -> impl Iterator<Item = crate::PhysAddr> {
    (0..machine::cpu_count()).filter_map(move |cpu| {
        let [_, of] = loaded(cpu)?;
        let pmap = LOADED[cpu].pmap.load(Ordering::Relaxed);
        // SAFETY: as in `loaded`; the simulated machine goes on at its points only, and none is on
        // the way here.
        (of == family).then(|| crate::frame::record::address(unsafe { (*pmap).root }))
    })
}

/// Forgets what an earlier machine had loaded. The machine has one CPU and no task yet.
#[cfg(not(target_os = "none"))]
pub(super) fn start() {
    for slot in &LOADED {
        slot.pmap.store(core::ptr::null_mut(), Ordering::Relaxed);
        slot.group.store(core::ptr::null_mut(), Ordering::Relaxed);
        slot.was_small.store(false, Ordering::Relaxed);
        slot.trust.store(NO_TRUST, Ordering::Relaxed);
        slot.borrowed.store(false, Ordering::Relaxed);
    }
}
