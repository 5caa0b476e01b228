//! Marks around what a row measures: `causeway profile` counts the kernel's instructions between them only.
//!
//! A mark is an instruction that does nothing; `tools/causeway/src/profile/counter.c` knows it by its operand.

use core::arch::asm;

/// From here on it counts.
#[inline(always)]
pub fn begin() {
    // SAFETY: a no-op: its operand is an address that is not used.
    unsafe {
        asm!(
            "nop dword ptr [rax + 0x6e676562]",
            options(preserves_flags, nostack)
        )
    };
}

/// Until here.
#[inline(always)]
pub fn end() {
    // SAFETY: as above.
    unsafe {
        asm!(
            "nop dword ptr [rax + 0x21646e65]",
            options(preserves_flags, nostack)
        )
    };
}
