//! Carries out the [measures](crate::hw::mitigations) against the faults of the CPUs.
//!
//! Separate roots, cleared buffers, fences, and IBRS that is set on each way into the kernel are
//! parts of the ways in and out (`entry`); what stands here is a matter of registers.

use alloc::{string::String, vec::Vec};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering};

use super::cpu::{msr, read_msr, write_msr};
use super::percpu;
use crate::hw::bugs::{Bugs, Facts};
use crate::hw::counters::Counter;
use crate::hw::mitigations::{self, Choice, Measures, Settings, Speculation};

/// What the boot CPU says of itself, and the settings.
struct Found(UnsafeCell<(Facts, Settings)>);

// SAFETY: written once, by `choose`, while only the boot CPU runs.
unsafe impl Sync for Found {}

static FOUND: Found = Found(UnsafeCell::new((Facts::NONE, Settings::NONE)));

/// The bits of [`Measures`] that were chosen.
static CHOSEN: AtomicU32 = AtomicU32::new(0);
/// Those that the guarded ways of `entry` are for.
const GUARDED: Measures = Measures::ISOLATE
    .union(Measures::CLEAR)
    .union(Measures::FENCE)
    .union(Measures::IBRS);

const EFER_AUTOMATIC_IBRS: u64 = 1 << 21;
const PRED_CMD_BARRIER: u64 = 1;

fn found() -> &'static (Facts, Settings) {
    // SAFETY: written once, before anything reads it but its writer.
    unsafe { &*FOUND.0.get() }
}

/// Chooses by what the boot CPU says of itself and by the options of the command line. Once, before
/// the kernel's page tables are built and before other CPUs start.
pub fn choose(facts: Facts, command_line: &str) {
    let settings = Settings::read(command_line);
    // SAFETY: only the boot CPU runs, and nothing has a reference.
    unsafe { *FOUND.0.get() = (facts, settings) };
    let chosen = Measures::choose(&settings, &facts);
    CHOSEN.store(chosen.bits(), Ordering::Relaxed);
}

fn chosen() -> Measures {
    Measures::from_bits_truncate(CHOSEN.load(Ordering::Relaxed))
}

/// Whether any of these was chosen.
#[inline]
pub fn has(any: Measures) -> bool {
    CHOSEN.load(Ordering::Relaxed) & any.bits() != 0
}

/// Whether programs run under roots of their own.
#[inline]
pub fn is_isolated() -> bool {
    has(Measures::ISOLATE)
}

/// Whether programs are entered and left by the guarded ways: see `entry`.
#[inline]
pub fn is_guarded() -> bool {
    has(GUARDED)
}

/// Whether [`forget_predictions`] or the guarded ways want to know of another address space.
#[inline]
pub fn is_told_of_spaces() -> bool {
    has(GUARDED.union(Measures::BARRIER))
}

/// Turns on, on this CPU, what is a matter of its registers. After
/// [`set_controls`](super::cpu::set_controls).
pub fn set_up_cpu() {
    let chosen = chosen();
    // SAFETY: chosen where the registers and bits exist; they only restrict predictions.
    unsafe {
        if chosen.controls() != 0 {
            let cpu = percpu::this();
            let controls = chosen.controls();
            cpu.kernel_controls
                .store(controls as u32, Ordering::Relaxed);
            write_msr(msr::SPEC_CTRL, controls);
        }
        if chosen.contains(Measures::AUTOMATIC_IBRS) {
            let now = read_msr(msr::EFER);
            write_msr(msr::EFER, now | EFER_AUTOMATIC_IBRS);
        }
    }
}

/// Drops this CPU's branch predictions, where that is wanted.
#[inline]
pub(crate) fn forget_predictions() {
    if has(Measures::BARRIER) {
        Counter::prediction_barriers.add(1);
        // SAFETY: chosen where the register exists; it drops predictions.
        unsafe { write_msr(msr::PRED_CMD, PRED_CMD_BARRIER) };
    }
}

/// What programs may do about a kind of speculation.
pub fn choice_of(kind: Speculation) -> Choice {
    mitigations::choice(&found().0, chosen(), kind)
}

/// The bits of `SPEC_CTRL` for a program that wants these kinds of speculation restricted.
pub fn restrictions(stores: bool, branches: bool) -> u32 {
    mitigations::restrictions(&found().0, chosen(), stores, branches) as u32
}

/// Gives a program its bits of `SPEC_CTRL`, from [`restrictions`], while it runs on this CPU.
/// Interrupts are off.
#[inline]
pub fn restrict_program(bits: u32) {
    let cpu = percpu::this();
    if cpu.program_controls.load(Ordering::Relaxed) != bits {
        cpu.program_controls.store(bits, Ordering::Relaxed);
        // The kernel keeps them, beside its own: one register does for both where it need not
        // change on each way in and out.
        let all = chosen().controls() as u32 | bits;
        cpu.kernel_controls.store(all, Ordering::Relaxed);
        // SAFETY: bits that the CPU has; they only restrict predictions.
        unsafe { write_msr(msr::SPEC_CTRL, all.into()) };
    }
}

/// The faults of the CPUs.
pub fn bugs() -> Bugs {
    Bugs::of(&found().0)
}

/// The value of the switch `name`, the index of its word.
pub(crate) fn choice(name: &str) -> u32 {
    found().1.value(name).into()
}

/// What is done about each fault, in Linux's words for the files of
/// `/sys/devices/system/cpu/vulnerabilities`.
pub fn vulnerabilities() -> Vec<(&'static str, String)> {
    mitigations::vulnerabilities(&found().0, chosen())
}
