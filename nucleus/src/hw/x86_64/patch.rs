//! Places in the text that are patched at the start, by what the CPU has and what
//! [`mitigations`](super::mitigations) wants.

use core::arch::asm;

use super::cpu::{Features, features};
use super::mitigations;
use crate::hw::mitigations::Measures;

/// The kinds of places in the text that are patched at the start. A site without a kind of its own
/// is one for `stac` or `clac`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Site {
    /// `stac` and `clac`.
    Smap = 0,
    /// Switches between a program's root and the kernel's.
    Isolate = 1,
    /// Clears the CPU's buffers before a program runs.
    Clear = 2,
    /// Fences after `swapgs` and where it is skipped.
    Fence = 3,
    /// Enters programs by the guarded way.
    Guard = 4,
    /// Restricts predictions on each way in, and allows them again on each way out.
    Control = 5,
    /// Fills the return stack at a switch of tasks: see `context`, which has the number.
    Returns = 6,
}
const _: () = assert!(Site::Returns as u8 == 6);

impl Site {
    fn is_wanted(self) -> bool {
        match self {
            Site::Smap => features().contains(Features::SMAP),
            Site::Isolate => mitigations::has(Measures::ISOLATE),
            Site::Clear => mitigations::has(Measures::CLEAR),
            Site::Fence => mitigations::has(Measures::FENCE),
            Site::Guard => mitigations::is_guarded(),
            Site::Control => mitigations::has(Measures::IBRS),
            Site::Returns => mitigations::has(Measures::FILL_RETURNS),
        }
    }
}

unsafe extern "C" {
    static __patch_sites_start: [u64; 2];
    static __patch_sites_end: [u64; 2];
}

/// Patches the sites of the kinds that are wanted. Once, before the text is write-protected and
/// before other CPUs and programs run.
pub fn apply() {
    use Site::*;
    let kinds = [Smap, Isolate, Clear, Fence, Guard, Control, Returns];
    let kinds = kinds.map(|kind| (kind as u8, kind.is_wanted()));
    let mut site = &raw const __patch_sites_start;
    let end = &raw const __patch_sites_end;
    while site < end {
        // SAFETY: the linker script collects pairs of the address of three bytes of whole
        // instructions in the text, and three bytes for them below the kind; the boot page tables
        // let text be written.
        unsafe {
            let [address, instruction] = *site;
            let bytes = instruction.to_le_bytes();
            if kinds.contains(&(bytes[7], true)) {
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, 3);
            }
            site = site.add(1);
        }
    }
    // SAFETY: a serializing instruction, after which the patched text is fetched anew.
    unsafe {
        asm!("push rbx", "cpuid", "pop rbx", inout("eax") 0 => _, out("ecx") _, out("edx") _);
    };
}
