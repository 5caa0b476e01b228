//! A unit's registers (VT-d 10.4).

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::super::clock::nanoseconds;
use super::super::cpu::spin_hint;
use super::super::space::map_device;

pub const VERSION: usize = 0x0;
pub const CAPABILITIES: usize = 0x8;
pub const EXTENDED: usize = 0x10;
const COMMAND: usize = 0x18;
const STATUS: usize = 0x1c;
pub const ROOT_TABLE: usize = 0x20;
pub const CONTEXT_COMMAND: usize = 0x28;
pub const FAULT_STATUS: usize = 0x34;
pub const FAULT_CONTROL: usize = 0x38;
pub const FAULT_DATA: usize = 0x3c;
pub const FAULT_ADDRESS: usize = 0x40;
pub const FAULT_UPPER_ADDRESS: usize = 0x44;
pub const PROTECTED_MEMORY: usize = 0x64;
pub const QUEUE_HEAD: usize = 0x80;
pub const QUEUE_TAIL: usize = 0x88;
pub const QUEUE: usize = 0x90;
pub const INTERRUPT_TABLE: usize = 0xb8;

/// Bits of the global command and of the global status.
pub mod global {
    pub const TRANSLATION: u32 = 1 << 31;
    pub const SET_ROOT: u32 = 1 << 30;
    pub const FLUSH_WRITES: u32 = 1 << 27;
    pub const QUEUE: u32 = 1 << 26;
    pub const INTERRUPTS: u32 = 1 << 25;
    pub const SET_INTERRUPT_TABLE: u32 = 1 << 24;
    pub const COMPATIBLE: u32 = 1 << 23;
    /// Commands that are done once; the others stay as they were written last.
    pub const ONCE: u32 = SET_ROOT | 1 << 29 | 1 << 28 | FLUSH_WRITES | SET_INTERRUPT_TABLE;
}

/// Bits of the fault status.
pub mod fault_status {
    pub const OVERFLOW: u32 = 1 << 0;
    pub const PENDING: u32 = 1 << 1;
    /// The queue stands still at a descriptor that is wrong.
    pub const BAD_DESCRIPTOR: u32 = 1 << 4;
    /// That, a device that answered wrongly, and one that did not answer.
    pub const QUEUE_ERRORS: u32 = BAD_DESCRIPTOR | 1 << 5 | 1 << 6;
}

/// How long a unit may take for a command, in nanoseconds: a unit of hardware needs microseconds,
/// an emulator whose host is busy may be away for a while.
const PATIENCE: u64 = 1_000_000_000;

/// The time at which a command times out, however many waits it takes.
#[derive(Clone, Copy)]
pub struct Deadline(u64);

impl Deadline {
    /// Of a command that begins now.
    pub fn new() -> Deadline {
        Deadline(nanoseconds().wrapping_add(PATIENCE))
    }

    /// Waits until `is_done`; false if that takes longer than a unit may take.
    pub fn wait(self, mut is_done: impl FnMut() -> bool) -> bool {
        loop {
            if is_done() {
                return true;
            }
            if (self.0.wrapping_sub(nanoseconds()) as i64) < 0 {
                // The host may have been away: the last look counts.
                return is_done();
            }
            spin_hint();
        }
    }
}

/// A unit's registers.
pub struct Registers {
    /// Where they are mapped; 0 before.
    base: AtomicUsize,
    /// The two registers of capabilities, which take long to read.
    capabilities: [AtomicU64; 2],
}

impl Registers {
    pub const fn new() -> Registers {
        Registers {
            base: AtomicUsize::new(0),
            capabilities: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Maps the page at `at`, and the pages behind it that the unit's registers take. False without
    /// room for it, or if any of it is memory.
    pub fn map(&self, at: u64, is_memory: impl Fn(u64, u64) -> bool) -> bool {
        if is_memory(at, at + 4096) {
            return false;
        }
        let Some(base) = map_device(at, 4096) else {
            return false;
        };
        self.base.store(base as usize, Ordering::Relaxed);
        for (to, from) in self.capabilities.iter().zip([CAPABILITIES, EXTENDED]) {
            to.store(self.read_wide(from), Ordering::Relaxed);
        }
        let len = self.len();
        if len <= 4096 {
            return true;
        }
        if is_memory(at, at + len as u64) {
            return false;
        }
        let base = map_device(at, len);
        self.base
            .store(base.map_or(0, |it| it as usize), Ordering::Relaxed);
        base.is_some()
    }

    /// Bytes up to the end of the last fault record and of the registers of the IOTLB.
    pub fn len(&self) -> usize {
        let records = self.fault_records();
        (records.start + 16 * records.count).max(self.iotlb() + 16)
    }

    /// Uses the bytes at `base` as the registers from now on, for a test.
    ///
    /// # Safety
    /// As many bytes are there for good.
    pub unsafe fn move_to(&self, base: usize) {
        self.base.store(base, Ordering::Relaxed);
    }

    fn at(&self, offset: usize) -> usize {
        self.base.load(Ordering::Relaxed) + offset
    }

    pub fn read(&self, offset: usize) -> u32 {
        // SAFETY: mapped by `map`, which knows the last of them; reading changes nothing.
        unsafe { (self.at(offset) as *const u32).read_volatile() }
    }

    pub fn write(&self, offset: usize, value: u32) {
        // SAFETY: as above; the unit reaches the tables that it is given, all of which are the
        // kernel's for good.
        unsafe { (self.at(offset) as *mut u32).write_volatile(value) }
    }

    pub fn read_wide(&self, offset: usize) -> u64 {
        // SAFETY: as in `read`.
        unsafe { (self.at(offset) as *const u64).read_volatile() }
    }

    pub fn write_wide(&self, offset: usize, value: u64) {
        // SAFETY: as in `write`.
        unsafe { (self.at(offset) as *mut u64).write_volatile(value) }
    }

    pub fn capabilities(&self) -> Capabilities {
        let [one, other] = self.capabilities.each_ref();
        Capabilities(one.load(Ordering::Relaxed), other.load(Ordering::Relaxed))
    }

    /// The registers of the IOTLB: the address, then the command.
    pub fn iotlb(&self) -> usize {
        (self.capabilities().1 >> 8 & 0x3ff) as usize * 16
    }

    pub fn fault_records(&self) -> FaultRecords {
        let capabilities = self.capabilities();
        FaultRecords {
            start: (capabilities.0 >> 24 & 0x3ff) as usize * 16,
            count: (capabilities.0 >> 40 & 0xff) as usize + 1,
        }
    }

    fn kept_commands(&self) -> u32 {
        self.read(STATUS) & !global::ONCE
    }

    /// Whether a command's bit is set in the status.
    pub fn is_on(&self, bit: u32) -> bool {
        self.read(STATUS) & bit != 0
    }

    /// Turns something on or off. False if the unit does not answer.
    #[must_use]
    pub fn turn(&self, bit: u32, on: bool) -> bool {
        let kept = self.kept_commands();
        let command = if on { kept | bit } else { kept & !bit };
        self.write(COMMAND, command);
        Deadline::new().wait(|| self.is_on(bit) == on)
    }

    /// Flushes the unit's write buffer, or makes it take a table's address. As
    /// [`turn`](Self::turn).
    #[must_use]
    pub fn once(&self, bit: u32) -> bool {
        self.write(COMMAND, self.kept_commands() | bit);
        // The buffer's bit is set until it is done, the others' from then on.
        Deadline::new().wait(|| self.is_on(bit) == (bit != global::FLUSH_WRITES))
    }
}

/// The fault records of a unit: 16 bytes each.
#[derive(Clone, Copy)]
pub struct FaultRecords {
    pub start: usize,
    pub count: usize,
}

/// What a unit can do: the two registers.
#[derive(Clone, Copy)]
pub struct Capabilities(u64, u64);

impl Capabilities {
    /// Domain numbers.
    pub fn domains(self) -> u32 {
        1 << (4 + 2 * (self.0 & 7).min(6))
    }

    /// Whether tables of so many levels can be used.
    pub fn has_levels(self, levels: usize) -> bool {
        self.0 >> (8 + levels - 2) & 1 != 0
    }

    /// Bits of the largest address that a device may use.
    pub fn address_bits(self) -> u32 {
        (self.0 >> 16 & 0x3f) as u32 + 1
    }

    pub fn needs_write_flush(self) -> bool {
        self.0 >> 4 & 1 != 0
    }

    pub fn has_caching_mode(self) -> bool {
        self.0 >> 7 & 1 != 0
    }

    pub fn has_large(self) -> bool {
        self.0 >> 34 & 1 != 0
    }

    /// The largest order of a page-selective invalidation.
    pub fn page_order(self) -> Option<u32> {
        (self.0 >> 39 & 1 != 0).then_some((self.0 >> 48 & 0x3f) as u32)
    }

    /// Whether there are regions that the firmware may have closed to all devices.
    pub fn protects_memory(self) -> bool {
        self.0 >> 5 & 3 != 0
    }

    /// Writes and reads that can be waited for with an invalidation.
    pub fn drains(self) -> [bool; 2] {
        [self.0 >> 54 & 1 != 0, self.0 >> 55 & 1 != 0]
    }

    /// Whether the unit snoops the CPUs' caches when it reads its tables.
    pub fn is_coherent(self) -> bool {
        self.1 & 1 != 0
    }

    pub fn has_queue(self) -> bool {
        self.1 >> 1 & 1 != 0
    }

    pub fn remaps_interrupts(self) -> bool {
        self.1 >> 3 & 1 != 0
    }

    /// Whether messages may name CPUs with numbers of 32 bits.
    pub fn has_wide_interrupts(self) -> bool {
        self.1 >> 4 & 1 != 0
    }
}
