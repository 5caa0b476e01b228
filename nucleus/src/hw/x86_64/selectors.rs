//! The data selectors and the bases of FS and GS in this CPU's registers. The kernel uses none of
//! them but the base of GS, which `swapgs` exchanges.

use core::arch::asm;

use super::cpu::{Features, features, msr, write_msr};
use super::gdt::{self, USER_DATA};
use super::percpu;
use crate::hw::registers::Selectors;
use crate::hw::segment;

/// The bit of a selector of a local segment.
pub const LOCAL: u16 = 4;

/// The data selectors in this CPU's registers. The kernel loads none of its own.
pub fn read_selectors() -> Selectors {
    let [ds, es, fs, gs]: [u16; 4];
    // SAFETY: reads registers.
    unsafe {
        asm!("mov {0:x}, ds", "mov {1:x}, es", "mov {2:x}, fs", "mov {3:x}, gs",
            out(reg) ds, out(reg) es, out(reg) fs, out(reg) gs,
            options(nomem, nostack, preserves_flags));
    }
    Selectors { ds, es, fs, gs }
}

/// A data selector that the CPU will load: as it is, or 0 in the place of one that it would refuse.
fn loadable(selector: u16) -> u16 {
    use segment::{IS_CODE, PRESENT, WRITABLE};
    if selector <= 3 || selector == USER_DATA {
        return selector;
    }
    match gdt::descriptor(percpu::this(), u64::from(selector)) {
        // Data, or code that may be read.
        Some(word) if word & PRESENT != 0 && word & (IS_CODE | WRITABLE) != IS_CODE => selector,
        _ => 0,
    }
}

/// Loads a program's selectors, of descriptors that are in this CPU's tables. What is loaded
/// already is left alone, unless its descriptor may be another one now.
///
/// # Safety
/// Interrupts are off.
#[inline(always)]
pub unsafe fn load(wanted: Selectors) {
    let now = read_selectors();
    let Selectors { ds, es, fs, gs } = wanted;
    let differs = |wanted: u16, now: u16| wanted != now || wanted > 3;
    // SAFETY: each selector is null or names a segment of programs' privilege that is present. The
    // kernel uses none of these registers but the base of GS, which `swapgs` keeps out of the way;
    // no interrupt comes between.
    unsafe {
        if differs(ds, now.ds) {
            asm!("mov ds, {0:x}", in(reg) loadable(ds), options(nostack, preserves_flags));
        }
        if differs(es, now.es) {
            asm!("mov es, {0:x}", in(reg) loadable(es), options(nostack, preserves_flags));
        }
        if differs(fs, now.fs) {
            asm!("mov fs, {0:x}", in(reg) loadable(fs), options(nostack, preserves_flags));
        }
        if differs(gs, now.gs) {
            asm!("swapgs", "mov gs, {0:x}", "swapgs", in(reg) loadable(gs),
                options(nostack, preserves_flags));
        }
    }
}

/// # Safety
/// FSGSBASE is on.
pub unsafe fn read_fs() -> u64 {
    let base;
    // SAFETY: the caller's promise.
    unsafe { asm!("rdfsbase {}", out(reg) base, options(nostack, preserves_flags)) };
    base
}

/// The program's GS base; the kernel's own is in place.
///
/// # Safety
/// FSGSBASE is on and interrupts are off.
pub unsafe fn read_user_gs() -> u64 {
    let base;
    // SAFETY: nothing between the two exchanges uses GS, and no interrupt comes between.
    unsafe {
        asm!("swapgs", "rdgsbase {}", "swapgs", out(reg) base, options(nostack, preserves_flags));
    }
    base
}

/// # Safety
/// `base` is canonical.
#[inline]
pub unsafe fn write_fs(base: u64) {
    // SAFETY: the kernel does not use FS.
    unsafe {
        if features().contains(Features::FSGSBASE) {
            asm!("wrfsbase {}", in(reg) base, options(nostack, preserves_flags));
        } else {
            write_msr(msr::FS_BASE, base);
        }
    }
}

/// # Safety
/// `base` is canonical and interrupts are off.
#[inline]
pub unsafe fn write_user_gs(base: u64) {
    // SAFETY: as in `read_user_gs`; the register that waits for `swapgs` is the program's.
    unsafe {
        if features().contains(Features::FSGSBASE) {
            asm!("swapgs", "wrgsbase {}", "swapgs", in(reg) base,
                options(nostack, preserves_flags));
        } else {
            write_msr(msr::KERNEL_GS_BASE, base);
        }
    }
}

/// Nearest canonical address, by copying bit 47 upwards.
pub fn canonical(address: u64) -> u64 {
    ((address << 16) as i64 >> 16) as u64
}
