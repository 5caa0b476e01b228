//! I/O ports.

use core::arch::asm;

/// Reads a byte from an I/O port.
///
/// # Safety
/// Reading this port must have no effect that breaks an invariant of the kernel's memory.
#[inline]
pub unsafe fn in8(port: u16) -> u8 {
    let value;
    // SAFETY: the caller answers for the device behind the port.
    unsafe { asm!("in al, dx", out("al") value, in("dx") port, options(nostack, preserves_flags)) };
    value
}

/// Writes a byte to an I/O port.
///
/// # Safety
/// As [`in8`].
#[inline]
pub unsafe fn out8(port: u16, value: u8) {
    // SAFETY: the caller answers for the device behind the port.
    unsafe { asm!("out dx, al", in("al") value, in("dx") port, options(nostack, preserves_flags)) };
}

/// Reads 16 bits from an I/O port.
///
/// # Safety
/// As [`in8`].
#[inline]
pub unsafe fn in16(port: u16) -> u16 {
    let value;
    // SAFETY: the caller answers for the device behind the port.
    unsafe { asm!("in ax, dx", out("ax") value, in("dx") port, options(nostack, preserves_flags)) };
    value
}

/// Writes 16 bits to an I/O port.
///
/// # Safety
/// As [`in8`].
#[inline]
pub unsafe fn out16(port: u16, value: u16) {
    // SAFETY: the caller answers for the device behind the port.
    unsafe { asm!("out dx, ax", in("ax") value, in("dx") port, options(nostack, preserves_flags)) };
}

/// Reads 32 bits from an I/O port.
///
/// # Safety
/// As [`in8`].
#[inline]
pub unsafe fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: the caller answers for the device behind the port.
    unsafe {
        asm!("in eax, dx", out("eax") value, in("dx") port, options(nostack, preserves_flags));
    };
    value
}

/// Writes 32 bits to an I/O port.
///
/// # Safety
/// As [`in8`].
#[inline]
pub unsafe fn out32(port: u16, value: u32) {
    // SAFETY: the caller answers for the device behind the port.
    unsafe {
        asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags));
    };
}
