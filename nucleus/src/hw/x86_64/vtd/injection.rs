//! Faults of remapping units on purpose, for `selftest::fault_injection`. The driver has no part in
//! them: it finds a queue that another writer has used, or registers that do not answer.

use super::super::layout::ptr;
use super::registers;
use super::unit::units;
use crate::hw::handlers;
use crate::{PAGE_SIZE, PhysAddr};

/// Bytes of a descriptor of the invalidation queue.
const DESCRIPTOR: u64 = 16;

/// Submits a descriptor of no known type to each unit: its queue stops there.
pub(crate) fn stop_queues() {
    for unit in units().filter(|unit| unit.has_queue()) {
        unit.command(|_| {
            let registers = &unit.registers;
            let queue = PhysAddr(registers.read_wide(registers::QUEUE) & !0xfff);
            let tail = registers.read_wide(registers::QUEUE_TAIL);
            // SAFETY: inside the queue's frame, which is the unit's for good; the gate is held, so
            // no CPU writes it, and the unit does not read this slot before the tail has passed it.
            unsafe {
                let slot = ptr(queue).byte_add(tail as usize).cast::<[u64; 2]>();
                slot.write_volatile([0xf, 0]);
            }
            let next = (tail + DESCRIPTOR) % PAGE_SIZE as u64;
            registers.write_wide(registers::QUEUE_TAIL, next);
            Ok(())
        });
    }
}

/// Has all units answer nothing any more: a page of zeros takes the place of their registers.
///
/// # Panics
/// Without memory for the page, or where the registers take more.
pub(crate) fn silence() {
    let page = handlers::take_kernel_frame().expect("memory for the test");
    // SAFETY: the frame was just taken.
    unsafe { ptr(page).write_bytes(0, PAGE_SIZE) };
    for unit in units().filter(|unit| !unit.is_lost()) {
        assert!(unit.registers.len() <= PAGE_SIZE, "registers of a page");
        unit.command(|_| {
            // SAFETY: the frame is the units' for good, and as long as their registers.
            unsafe { unit.registers.move_to(ptr(page) as usize) };
            Ok(())
        });
    }
}
