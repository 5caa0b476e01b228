//! The configuration space of PCI functions, by its two ports: 256 bytes a function, which is what
//! devices for virtual machines need.

use super::port::{in32, out32};

const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// The value for the address port: `function` is bus, device and function in bits 15..0.
fn address(function: u16, register: u8) -> u32 {
    ENABLE | u32::from(function) << 8 | u32::from(register & !3)
}

/// Reads a 32-bit register; all ones where there is nothing.
///
/// # Safety
/// No other CPU uses the two ports meanwhile.
pub(crate) unsafe fn pci_read(function: u16, register: u8) -> u32 {
    // SAFETY: the registers of the configuration space can be read without an effect on memory.
    unsafe {
        out32(ADDRESS, address(function, register));
        in32(DATA)
    }
}

/// Writes a 32-bit register.
///
/// # Safety
/// No other CPU uses the two ports meanwhile. What the function does afterwards must break no
/// invariant of the kernel's memory: it may decode addresses that nothing else uses, and reach
/// memory only as its driver tells it to.
pub(crate) unsafe fn pci_write(function: u16, register: u8, value: u32) {
    // SAFETY: the caller answers for the effect.
    unsafe {
        out32(ADDRESS, address(function, register));
        out32(DATA, value);
    }
}
