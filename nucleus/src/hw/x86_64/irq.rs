//! Interrupts from devices, from the timer and from other CPUs.

use super::vectors::{
    CONSOLE, DEVICES, FIRST_DEVICE, FLUSH, Message, REMAPPING, RESCHEDULE, SHOOTDOWN, SPURIOUS,
    TIMER,
};
use super::{apic, kernel_flush, percpu, vtd};
use crate::hw::counters::Counter;
use crate::hw::handlers;

/// Handles one interrupt, with interrupts off. `in_program`: it interrupted a program.
pub fn handle(vector: u64, in_program: bool) {
    let vector = vector as u8;
    if vector == SPURIOUS {
        Counter::interrupts_spurious.add(1);
        return;
    }
    // Each handler may switch to no other task before the answer to the APIC; none does.
    apic::end_of_interrupt();
    match vector {
        TIMER => {
            Counter::interrupts_timer.add(1);
            handlers::on_timer(in_program);
        }
        RESCHEDULE => {
            Counter::interrupts_reschedule.add(1);
            percpu::set_reschedule(true);
        }
        SHOOTDOWN => {
            Counter::interrupts_shootdown.add(1);
            handlers::on_shootdown();
        }
        FLUSH => {
            Counter::interrupts_shootdown.add(1);
            kernel_flush::answer();
        }
        CONSOLE => {
            Counter::interrupts_console.add(1);
            handlers::on_console();
        }
        REMAPPING => {
            Counter::interrupts_device.add(1);
            vtd::collect_faults();
            handlers::on_iommu_fault();
        }
        _ if vector.wrapping_sub(FIRST_DEVICE) < DEVICES as u8 => {
            Counter::interrupts_device.add(1);
            handlers::on_device(vector.wrapping_sub(FIRST_DEVICE).into());
        }
        // The two legacy interrupt controllers are masked, but may raise a spurious one.
        _ => Counter::interrupts_spurious.add(1),
    }
}

/// Returns the message by which the function at the place `source` calls
/// [`on_device`](handlers::on_device) with `number`, below [`DEVICES`]. Messages go to the CPUs in
/// turn. Where interrupts are remapped, no other function can send it.
pub(crate) fn message(number: usize, source: u16) -> Message {
    let cpu = number % percpu::cpu_count();
    let vector = FIRST_DEVICE + number as u8;
    if let Some(message) = vtd::message(number as u16, vector, apic::id_of(cpu), source) {
        return message;
    }
    // A message can name CPUs with numbers below 256 only.
    let id = Some(apic::id_of(cpu))
        .filter(|&id| id < 256)
        .unwrap_or(apic::id_of(0));
    Message {
        address: 0xfee0_0000 | u64::from(id & 0xff) << 12,
        data: vector.into(),
    }
}
