//! Faults: accesses that units refused. An interrupt takes them out of the units' records into a
//! ring.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::gate::Gate;
use super::super::{apic, vectors};
use super::registers::{self, fault_status};
use super::unit::{Unit, units};
use crate::hw::iommu::{Device, Fault};
use crate::hw::places::Places;

/// Faults that wait to be taken; more are only counted.
const KEPT: usize = 64;

struct Ring {
    faults: [Option<Fault>; KEPT],
    first: usize,
    count: usize,
}

static RING: Gate<Ring> = Gate::new(Ring {
    faults: [None; KEPT],
    first: 0,
    count: 0,
});

/// Faults that were not recorded: by a unit whose records were full (at least that many), or here.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Devices behind units that do not answer, which are not reported yet.
static CUT_OFF: Places = Places::new();

/// Units do not interrupt for faults, and their records are not read.
static IS_MASKED: AtomicBool = AtomicBool::new(false);

const MASKED: u32 = 1 << 31;

/// Lets a unit interrupt the first CPU for faults. Its own messages are not remapped.
pub fn start(unit: &Unit) {
    let registers = &unit.registers;
    let id = apic::id_of(0);
    registers.write(registers::FAULT_DATA, vectors::REMAPPING.into());
    registers.write(registers::FAULT_ADDRESS, 0xfee0_0000 | (id & 0xff) << 12);
    registers.write(registers::FAULT_UPPER_ADDRESS, id & !0xff);
    // Those of the time before are the firmware's.
    let records = registers.fault_records();
    for record in 0..records.count {
        let _ = take_record(unit, records.start + 16 * record);
    }
    let errors = fault_status::OVERFLOW | fault_status::QUEUE_ERRORS;
    registers.write(registers::FAULT_STATUS, errors);
    let control = registers.read(registers::FAULT_CONTROL);
    registers.write(registers::FAULT_CONTROL, control & !MASKED);
}

/// Takes a fault out of a record, which is free again then.
fn take_record(unit: &Unit, at: usize) -> Option<Fault> {
    const SET: u32 = 1 << 31;
    const READ: u32 = 1 << 30;
    let registers = &unit.registers;
    let last = registers.read(at + 12);
    if last & SET == 0 {
        return None;
    }
    let (address, source) = (registers.read_wide(at), registers.read(at + 8));
    registers.write(at + 12, SET);
    let reason = last as u8;
    let is_interrupt = (0x20..0x30).contains(&reason);
    Some(Fault {
        device: Device(source as u16),
        address: match is_interrupt {
            // The index that the message named.
            true => address >> 48,
            false => address & !0xfff,
        },
        is_write: !is_interrupt && last & READ == 0,
        reason,
    })
}

impl Ring {
    fn keep(&mut self, fault: Fault) {
        if self.count == KEPT {
            LOST.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.faults[(self.first + self.count) % KEPT] = Some(fault);
        self.count += 1;
    }

    fn take(&mut self) -> Option<Fault> {
        let fault = self.faults[self.first].take()?;
        self.first = (self.first + 1) % KEPT;
        self.count -= 1;
        Some(fault)
    }

    /// Takes all that units have recorded; each has at most 256 records, which are looked at once.
    fn collect(&mut self) {
        if IS_MASKED.load(Ordering::Relaxed) {
            return;
        }
        for unit in units().filter(|unit| !unit.is_lost()) {
            let registers = &unit.registers;
            let status = registers.read(registers::FAULT_STATUS);
            if status & fault_status::PENDING != 0 {
                let records = registers.fault_records();
                let first = (status >> 8 & 0xff) as usize;
                for n in 0..records.count {
                    let record = (first + n) % records.count;
                    if let Some(fault) = take_record(unit, records.start + 16 * record) {
                        self.keep(fault);
                    }
                }
            }
            if status & fault_status::OVERFLOW != 0 {
                LOST.fetch_add(1, Ordering::Relaxed);
                registers.write(registers::FAULT_STATUS, fault_status::OVERFLOW);
            }
        }
    }
}

/// Takes the recorded faults of all units, for [`take`].
pub fn collect() {
    RING.with(Ring::collect);
}

/// The oldest fault that was not taken yet; before these, devices that were cut off.
pub fn take() -> Option<Fault> {
    if let Some(place) = CUT_OFF.take() {
        return Some(Fault {
            device: Device(place),
            address: 0,
            is_write: false,
            reason: Fault::UNIT_LOST,
        });
    }
    RING.with(|ring| {
        ring.take().or_else(|| {
            ring.collect();
            ring.take()
        })
    })
}

/// Reports that a device reaches nothing any more because its unit does not answer.
pub fn report_lost(place: u16) {
    CUT_OFF.insert(place);
    take_later();
}

/// Requests an interrupt that takes the recorded faults, outside of the locks of the caller.
pub fn take_later() {
    apic::send(0, vectors::REMAPPING);
}

/// Masks the units' fault interrupts; their records are not read any more.
pub fn mask() {
    IS_MASKED.store(true, Ordering::Relaxed);
    for unit in units().filter(|unit| !unit.is_lost()) {
        let control = unit.registers.read(registers::FAULT_CONTROL);
        unit.registers
            .write(registers::FAULT_CONTROL, control | MASKED);
    }
}

/// See [`LOST`].
pub fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}
