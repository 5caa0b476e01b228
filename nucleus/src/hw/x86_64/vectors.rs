//! The vectors of interrupts, and the messages that raise them.

/// First serial port.
pub const CONSOLE: u8 = 0x30;
/// A remapping unit refused something.
pub const REMAPPING: u8 = 0x31;
/// The first of the vectors for messages of devices.
pub const FIRST_DEVICE: u8 = 0x40;
/// How many there are.
pub const DEVICES: usize = 128;
/// This CPU's timer.
pub const TIMER: u8 = 0xf0;
/// Another CPU wants this one to schedule.
pub const RESCHEDULE: u8 = 0xf1;
/// Another CPU changed mappings.
pub const SHOOTDOWN: u8 = 0xf2;
/// Another CPU changed mappings of the kernel's half.
pub const FLUSH: u8 = 0xf3;
/// Another CPU measures how long this one takes to answer; its gate goes to `selftest::hw_cost`.
pub const HW_COST: u8 = 0xf4;
/// What the local APIC gives when there was nothing after all; it wants no answer.
pub const SPURIOUS: u8 = 0xff;

/// What a device writes, and where to, so that a handler runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub address: u64,
    pub data: u32,
}
