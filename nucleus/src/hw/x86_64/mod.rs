//! A virtual machine with x86-64 CPUs.
//!
//! In the order of a boot, which [`boot`](crate::boot) leads: `start` (first instructions),
//! `loader` and `memory` (what the loader left), `placement` (where the kernel goes), `acpi` (what
//! the firmware tells), `layout` and `space` (the kernel's address space), `percpu`, `gdt`, `idt`
//! and `entry` (each CPU's data, tables and ways in), `patch` (what the CPU needs), `apic`, `clock`
//! and `cmos` (interrupts, time). While it runs: `fault` and `irq` (traps and interrupts), `user`,
//! `user_state`, `fpu`, `selectors`, `copy` and `vdso` (programs and their memory), `window`
//! (short-lived mappings), `direct` (changes of the direct map), `serial`. At the end: `panic`,
//! `backtrace`, `power`.

pub(crate) mod acpi;
pub(crate) mod apic;
pub(crate) mod backtrace;
mod bytes;
pub(crate) mod clock;
pub(crate) mod cmos;
pub(crate) mod config;
pub(crate) mod copy;
pub(crate) mod cpu;
pub(crate) mod direct;
pub(crate) mod dmar;
pub(crate) mod entry;
pub(crate) mod fault;
pub(crate) mod fpu;
mod gate;
pub(crate) mod gdt;
pub(crate) mod guard;
pub(crate) mod identify;
pub(crate) mod idt;
pub(crate) mod irq;
pub(crate) mod kernel_flush;
pub(crate) mod layout;
pub(crate) mod loader;
pub(crate) mod memory;
pub(crate) mod mitigations;
pub(crate) mod panic;
pub(crate) mod patch;
pub(crate) mod percpu;
pub(crate) mod placement;
pub(crate) mod port;
pub(crate) mod power;
mod selectors;
pub(crate) mod serial;
pub(crate) mod space;
pub(crate) mod start;
pub(crate) mod tags;
pub(crate) mod user;
pub(crate) mod user_state;
pub(crate) mod vdso;
pub(crate) mod vectors;
pub(crate) mod vtd;
pub(crate) mod window;

pub(crate) use clock::{epoch_at_boot, look_again, nanoseconds, set_timer};
pub(crate) use cmos::{date, set_date};
pub(crate) use copy::{
    copy_from_user, copy_mapped_from_user, copy_mapped_to_user, copy_to_user, user_cmpxchg_u32,
    user_load_u32,
};
pub(crate) use cpu::{
    irqs_disable, irqs_enabled, irqs_restore, processor_random, spin_hint, wait_for_interrupt,
    write_back_caches,
};
pub(crate) use direct::{direct_hide, direct_show, each_kernel_page};
pub(crate) use guard::{guard, is_constant, is_unsealed, lets_write, reach_tables};
pub use identify::{caches, processor};
pub(crate) use irq::message;
pub(crate) use kernel_flush::everywhere as flush_kernel;
pub(crate) use layout::{is_guarded, ptr, table_ptr};
pub(crate) use loader::take_seed as take_loader_seed;
pub(crate) use mitigations::restrictions;
pub use mitigations::{bugs, choice_of, vulnerabilities};
pub(crate) use mitigations::{choice, forget_predictions};
pub(crate) use percpu::{
    MAX_COUNTERS, MAX_CPUS, counter_add, counter_read, cpu, cpu_count, linear_end, preempt,
    preempt_count, preempt_disable, preempt_enable, reschedule_wanted, set_reschedule,
    set_task_pointer, set_window, task_pointer, window,
};
pub(crate) use power::stop;
pub(crate) use space::{
    device_pages_left, entry_root, invalidate_all, invalidate_page, is_physical, kernel_root,
    load_program_space, load_space, map_device, stay_in_space,
};
pub(crate) use tags::{MOST_TAGS, invalidate_tagged, tags};
pub(crate) use user::run as run_program;
pub(crate) use user_state::{UserState, save_live as leave_thread};
pub(crate) use vdso::{Numbers as VdsoNumbers, image as vdso_image};
pub(crate) use vectors::{DEVICES, Message};
pub(crate) use vtd::{
    iommu_attach, iommu_block, iommu_detach, iommu_features, iommu_has_no_queue, iommu_invalidate,
    iommu_lost_faults, iommu_mask_faults, iommu_reserved, iommu_sync, iommu_take_fault,
    iommu_take_later, iommu_units,
};
pub(crate) use window::{
    WINDOW_ORDERED, WINDOW_PAGES, WINDOW_RING, WINDOW_RUN, WINDOW_SINGLE, flushes, window_address,
    window_flush, window_invalidate, window_map, window_slot, window_start, window_take,
    window_unmap, window_used,
};

use crate::PhysAddr;

/// A schedule point of the simulated machine; nothing here.
#[inline(always)]
pub(crate) fn point() {}

/// Whether there is a machine: always.
#[inline(always)]
pub(crate) const fn is_running() -> bool {
    true
}

/// The simulated machine checks that no TLB can still reach the frame; nothing here.
#[inline(always)]
pub(crate) fn frame_freed(_frame: PhysAddr) {}

/// Whether the machine checks which frames devices reach.
pub(crate) const CHECKS_REACH: bool = false;

/// Devices may reach the frame from now on: for the simulated machine; nothing here.
#[inline(always)]
pub(crate) fn frame_opened(_frame: PhysAddr) {}

/// The simulated machine checks that no unit can still reach the frame; nothing here.
#[inline(always)]
pub(crate) fn frame_closed(_frame: PhysAddr) {}

/// What the simulated machine checks when a flush is done; nothing here.
#[inline(always)]
pub(crate) fn coherence_stamp() -> u64 {
    0
}

/// See [`coherence_stamp`].
#[inline(always)]
pub(crate) fn promise_all(_cpus: u64, _since: u64) {}

/// Interrupts the CPUs whose bits are set, none of them this one: mappings changed.
pub(crate) fn send_shootdown(cpus: u64) {
    let mut rest = cpus;
    while rest != 0 {
        apic::send(rest.trailing_zeros() as usize, vectors::SHOOTDOWN);
        rest &= rest - 1;
    }
}

/// Interrupts another CPU: it should schedule, or leave its program.
pub(crate) fn send_reschedule(cpu: usize) {
    apic::send(cpu, vectors::RESCHEDULE);
}

/// Writes to the console, waiting for the port.
pub(crate) fn console_put(bytes: &[u8]) {
    serial::CONSOLE.put(bytes);
}

/// Takes a byte that arrived at the console.
pub(crate) fn console_get() -> Option<u8> {
    serial::CONSOLE.get()
}

/// Writes to the log port, waiting for it.
pub(crate) fn log_put(bytes: &[u8]) {
    serial::LOG.put(bytes);
}
