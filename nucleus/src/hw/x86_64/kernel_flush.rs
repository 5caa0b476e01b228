//! Flushes of the kernel's half of the address space on all CPUs.

use core::sync::atomic::{AtomicU64, Ordering};

use super::percpu::{self, MAX_CPUS};
use super::{apic, cpu, vectors};
use crate::hw::counters::Counter;

/// Flushes of the kernel's half that were asked for, and up to which each CPU has answered.
static FLUSHES_ASKED: AtomicU64 = AtomicU64::new(0);
static FLUSHES_DONE: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// Makes all CPUs forget all translations of the kernel's half, and waits until they have.
/// Interrupts are on, and the caller holds no spin lock.
pub fn everywhere() {
    percpu::preempt_disable();
    let wanted = FLUSHES_ASKED.fetch_add(1, Ordering::SeqCst) + 1;
    answer();
    Counter::tlb_local_full.add(1);
    let others = percpu::cpu_count() as u64 - 1;
    Counter::tlb_remote.add(others);
    Counter::ipi_shootdown.add(others);
    for cpu in (0..percpu::cpu_count()).filter(|&cpu| cpu != percpu::cpu()) {
        apic::send(cpu, vectors::FLUSH);
        while FLUSHES_DONE[cpu].load(Ordering::Acquire) < wanted {
            core::hint::spin_loop();
        }
    }
    if percpu::preempt_enable() {
        percpu::preempt();
    }
}

/// Makes this CPU forget all translations, those of the kernel's half too.
pub fn answer() {
    let irqs = cpu::irqs_disable();
    let asked = FLUSHES_ASKED.load(Ordering::SeqCst);
    cpu::flush_global();
    percpu::note_flush();
    cpu::irqs_restore(irqs);
    FLUSHES_DONE[percpu::cpu()].fetch_max(asked, Ordering::AcqRel);
}
