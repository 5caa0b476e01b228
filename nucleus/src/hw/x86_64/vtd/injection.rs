//! Faults of remapping units on purpose, for `selftest::fault_injection`. The driver has no part in
//! them: it finds a descriptor that it would not submit, or registers that do not answer.

use super::super::layout::ptr;
use super::unit::units;
use crate::PAGE_SIZE;
use crate::hw::handlers;

/// Submits a descriptor of no known type to each unit: with the next invalidation, the queue stops
/// there.
pub(crate) fn stop_queues() {
    const UNKNOWN: [u64; 2] = [0xf, 0];
    for unit in units().filter(|unit| unit.has_queue()) {
        unit.command(|queue| {
            unit.submit(queue, UNKNOWN);
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
