//! I/O ports.

use core::arch::asm;

/// Defines the two functions for ports of a width.
macro_rules! ports {
    ($read:ident, $write:ident, $value:ty, $register:tt) => {
        /// Reads from an I/O port.
        ///
        /// # Safety
        /// Reading this port must have no effect that breaks an invariant of the kernel's memory.
        #[inline]
        pub unsafe fn $read(port: u16) -> $value {
            let value;
            // SAFETY: the caller answers for the device behind the port.
            unsafe {
                asm!(concat!("in ", $register, ", dx"), out($register) value, in("dx") port,
                    options(nostack, preserves_flags));
            }
            value
        }

        /// Writes to an I/O port.
        ///
        /// # Safety
        /// The same for writing.
        #[inline]
        pub unsafe fn $write(port: u16, value: $value) {
            // SAFETY: the caller answers for the device behind the port.
            unsafe {
                asm!(concat!("out dx, ", $register), in($register) value, in("dx") port,
                    options(nostack, preserves_flags));
            }
        }
    };
}

ports!(in8, out8, u8, "al");
ports!(in16, out16, u16, "ax");
ports!(in32, out32, u32, "eax");
