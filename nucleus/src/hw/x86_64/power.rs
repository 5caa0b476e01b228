//! Ending the machine, in the ways that there are, from the emulator's to the crudest.

use core::cell::UnsafeCell;

use super::acpi::Power;
use super::port::{in8, in16, out8, out16};
use super::{apic, clock, cpu, panic, serial};
use crate::power::Stop;

/// The emulator's exit device, when it was given one.
const DEBUG_EXIT: u16 = 0xf4;
/// Where QEMU's machines have the control register, should the firmware's tables be missing.
const USUAL_CONTROL: u16 = 0x604;
const USUAL_OFF: u16 = 1 << 13;
/// In the control register: ACPI, not the firmware, has the power button.
const ENABLED: u16 = 1;

struct Settings(UnsafeCell<Power>);

// SAFETY: written once, before other CPUs and interrupts.
unsafe impl Sync for Settings {}

static SETTINGS: Settings = Settings(UnsafeCell::new(Power {
    control: [0; 2],
    off: [0; 2],
    take_over: (0, 0),
    reset: None,
}));

/// Remembers how this machine is turned off. Once, on the boot CPU, before any other runs.
pub fn set(power: Power) {
    // SAFETY: no other CPU runs yet.
    unsafe { *SETTINGS.0.get() = power };
}

fn settings() -> Power {
    // SAFETY: not written any more.
    unsafe { *SETTINGS.0.get() }
}

/// Stops all CPUs and ends the machine.
pub(crate) fn stop(cause: Stop) -> ! {
    cpu::irqs_disable();
    // The reader of the console may be slow, but a broken kernel does not wait for it.
    let patience = (cause == Stop::Panic).then_some(1_000_000_000);
    serial::CONSOLE.drain(patience);
    serial::LOG.drain(Some(1_000_000_000));
    // SAFETY: nothing else uses the port; where the device exists this ends the machine.
    unsafe { out8(DEBUG_EXIT, cause as u8) };
    panic::begin_stop();
    apic::stop_others();
    // A panic stays on the screen of a machine that has no exit device.
    match cause {
        Stop::Panic => {}
        Stop::Restart => restart(),
        Stop::Done | Stop::BadStart => turn_off(),
    }
    cpu::halt()
}

fn turn_off() {
    let power = settings();
    let [control, second] = power.control;
    // SAFETY: the firmware's tables say that these ports are the power control's.
    unsafe {
        if control != 0 {
            let (port, value) = power.take_over;
            if in16(control) & ENABLED == 0 && port != 0 {
                out8(port, value);
                clock::delay(100_000_000);
            }
            out16(control, power.off[0] | in16(control) & ENABLED);
            if second != 0 {
                out16(second, power.off[1] | in16(second) & ENABLED);
            }
            clock::delay(100_000_000);
        }
        out16(USUAL_CONTROL, USUAL_OFF);
    }
    clock::delay(100_000_000);
}

fn restart() {
    // SAFETY: each of these resets the machine or does nothing.
    unsafe {
        if let Some((port, value)) = settings().reset {
            out8(port, value);
            clock::delay(50_000_000);
        }
        // The chip set's reset register, then the keyboard controller's line.
        out8(0xcf9, 0x02);
        out8(0xcf9, 0x06);
        clock::delay(50_000_000);
        if in8(0x64) & 2 == 0 {
            out8(0x64, 0xfe);
        }
        clock::delay(50_000_000);
    }
}
