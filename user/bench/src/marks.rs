//! Marks around the measured part of a row: `causeway profile` counts the kernel's instructions
//! between them only.
//!
//! A mark is a no-op that `tools/causeway/src/profile/counter.c` recognises by its operand.

use core::arch::asm;

/// Marks the start of the counted part.
#[inline(always)]
pub fn begin() {
    // SAFETY: a no-op: its operand is an address that is not used.
    unsafe {
        asm!(
            "nop dword ptr [rax + 0x6e676562]",
            options(preserves_flags, nostack)
        );
    };
}

/// Marks the start of a row: a part with nothing in it.
pub fn separate() {
    begin();
    end();
}

/// Marks its end.
#[inline(always)]
pub fn end() {
    // SAFETY: as above.
    unsafe {
        asm!(
            "nop dword ptr [rax + 0x21646e65]",
            options(preserves_flags, nostack)
        );
    };
}
