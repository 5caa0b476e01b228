//! Interrupts from devices, from the timer and from other CPUs: the vectors and what they call.

use super::{apic, space};
use crate::sync::InterruptScope;
use crate::{console, pmap, task, time};

/// First serial port.
pub const CONSOLE: u8 = 0x30;
/// This CPU's timer.
pub const TIMER: u8 = 0xf0;
/// Another CPU wants this one to schedule.
pub const RESCHEDULE: u8 = 0xf1;
/// Another CPU changed mappings.
pub const SHOOTDOWN: u8 = 0xf2;
/// Another CPU changed mappings of the kernel's half.
pub const FLUSH: u8 = 0xf3;
/// What the local APIC gives when there was nothing after all; it wants no answer.
pub const SPURIOUS: u8 = 0xff;

/// Handles one interrupt, with interrupts off. `in_program`: it interrupted a program.
pub fn handle(vector: u64, in_program: bool) {
    let vector = vector as u8;
    if vector == SPURIOUS {
        return;
    }
    // Each handler may switch to no other task before the answer to the APIC; none does.
    apic::end_of_interrupt();
    let _scope = InterruptScope::enter();
    match vector {
        TIMER => time::on_timer(in_program),
        RESCHEDULE => task::on_reschedule(),
        SHOOTDOWN => pmap::on_shootdown(),
        FLUSH => space::answer_flush(),
        CONSOLE => console::on_input(),
        // The two legacy interrupt controllers are masked, but may raise a spurious one.
        _ => {}
    }
}
