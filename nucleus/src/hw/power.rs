//! Ending the machine. The host learns the cause from the exit status of the emulator
//! (`isa-debug-exit`) and the details from the log.

/// Why the machine stops; the value is written to the debug-exit port, so that QEMU ends with
/// `value * 2 + 1`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Stop {
    /// The first program ended; its status is in the log line `exit: status N`. QEMU: 33.
    Done = 0x10,
    /// The kernel panicked. QEMU: 35.
    Panic = 0x11,
    /// A bad kernel command line, root archive or first program. QEMU: 37.
    BadStart = 0x12,
    /// A program asked for a restart. QEMU: 39.
    Restart = 0x13,
}

/// Stops all CPUs and ends the machine: debug-exit, else ACPI, else halt.
pub fn stop(cause: Stop) -> ! {
    crate::hw::machine::stop(cause)
}
