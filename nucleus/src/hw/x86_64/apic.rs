//! Interrupt controllers: each CPU's local APIC, the I/O APICs, and the two legacy ones, which are
//! silenced.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use super::acpi::Tables;
use super::cpu::{self, Features, features, msr, read_msr, write_msr};
use super::percpu::{self, MAX_CPUS};
use super::port::out8;
use super::{space, vectors};

const ID: u32 = 0x20;
const TASK_PRIORITY: u32 = 0x80;
/// The register to write to when an interrupt was taken.
pub const END_OF_INTERRUPT: u32 = 0xb0;
const SPURIOUS: u32 = 0xf0;
const COMMAND: u32 = 0x300;
const COMMAND_HIGH: u32 = 0x310;
const LVT_TIMER: u32 = 0x320;
const LVT_LINT0: u32 = 0x350;
const LVT_ERROR: u32 = 0x370;
const TIMER_INITIAL: u32 = 0x380;
const TIMER_CURRENT: u32 = 0x390;
const TIMER_DIVIDE: u32 = 0x3e0;

const MASKED: u32 = 1 << 16;
const TIMER_DEADLINE: u32 = 2 << 17;
const DIVIDE_BY_1: u32 = 0b1011;
const SOFTWARE_ENABLE: u32 = 1 << 8;
const BASE_ENABLE: u64 = 1 << 11;
const BASE_X2APIC: u64 = 1 << 10;

const COMMAND_BUSY: u32 = 1 << 12;
const COMMAND_ASSERT: u32 = 1 << 14;
const ALL_OTHERS: u32 = 3 << 18;
const NON_MASKABLE: u32 = 4 << 8;
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;

/// Where the registers are mapped; 0 before [`start`], [`X2APIC`] when they are reached as
/// model-specific registers.
pub static REGISTERS: AtomicUsize = AtomicUsize::new(0);
/// See [`REGISTERS`].
pub const X2APIC: usize = 1;

/// Local APIC numbers by CPU.
static IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

#[inline]
fn read(register: u32) -> u32 {
    match REGISTERS.load(Ordering::Relaxed) {
        // SAFETY: the CPU is in x2APIC mode, where each register has a number.
        X2APIC => unsafe { read_msr(msr::X2APIC + (register >> 4)) as u32 },
        // SAFETY: mapped by `start`.
        base => unsafe { ((base + register as usize) as *const u32).read_volatile() },
    }
}

#[inline]
fn write(register: u32, value: u32) {
    match REGISTERS.load(Ordering::Relaxed) {
        // SAFETY: as in `read`; the values are ones that the manual defines.
        X2APIC => unsafe { write_msr(msr::X2APIC + (register >> 4), value.into()) },
        // SAFETY: as in `read`.
        base => unsafe { ((base + register as usize) as *mut u32).write_volatile(value) },
    }
}

/// Finds the local APIC. Once, on the boot CPU. False if it can't be reached.
pub fn start(tables: &Tables) -> bool {
    silence_legacy();
    let is_allowed = !tables.remapping.refuses_x2apic();
    if features().contains(Features::X2APIC) && is_allowed {
        REGISTERS.store(X2APIC, Ordering::Relaxed);
    } else {
        let Some(base) = space::map_device(tables.local_apic, 0x1000) else {
            return false;
        };
        REGISTERS.store(base as usize, Ordering::Relaxed);
    }
    true
}

/// Whether the registers are reached as model-specific ones, and numbers have 32 bits.
pub fn is_x2apic() -> bool {
    REGISTERS.load(Ordering::Relaxed) == X2APIC
}

/// Turns this CPU's local APIC on.
pub fn enable() {
    let x2apic = is_x2apic();
    // SAFETY: every 64-bit CPU has the register; x2APIC mode is set only where it exists.
    unsafe {
        let base = read_msr(msr::APIC_BASE) | BASE_ENABLE;
        write_msr(
            msr::APIC_BASE,
            if x2apic { base | BASE_X2APIC } else { base },
        );
    }
    write(TASK_PRIORITY, 0);
    write(SPURIOUS, SOFTWARE_ENABLE | u32::from(vectors::SPURIOUS));
    write(LVT_LINT0, MASKED);
    write(LVT_ERROR, MASKED);
    write(TIMER_DIVIDE, DIVIDE_BY_1);
    let mode = if features().contains(Features::TSC_DEADLINE) {
        TIMER_DEADLINE
    } else {
        0
    };
    write(LVT_TIMER, u32::from(vectors::TIMER) | mode);
    // The write must be done before the first deadline is set.
    fence(Ordering::SeqCst);
    IDS[percpu::cpu()].store(id(), Ordering::Relaxed);
}

/// This CPU's local APIC number.
pub fn id() -> u32 {
    let id = read(ID);
    if REGISTERS.load(Ordering::Relaxed) == X2APIC {
        id
    } else {
        id >> 24
    }
}

/// A CPU's local APIC number.
pub fn id_of(cpu: usize) -> u32 {
    IDS[cpu].load(Ordering::Relaxed)
}

/// Tells this CPU's local APIC that the interrupt was taken.
#[inline]
pub fn end_of_interrupt() {
    write(END_OF_INTERRUPT, 0);
}

/// Sets this CPU's timer to fire after `count` of its ticks; 0 stops it.
#[inline]
pub fn set_timer_count(count: u32) {
    write(TIMER_INITIAL, count);
}

/// The timer's ticks that are left.
pub fn timer_count() -> u32 {
    read(TIMER_CURRENT)
}

fn command(destination: u32, command: u32) {
    if REGISTERS.load(Ordering::Relaxed) == X2APIC {
        // What this CPU wrote to memory must be seen by the one that is interrupted; the register
        // write does not order it by itself.
        fence(Ordering::SeqCst);
        let value = u64::from(destination) << 32 | u64::from(command);
        // SAFETY: a message to other CPUs, whose handlers are part of the kernel.
        unsafe { write_msr(msr::X2APIC + (COMMAND >> 4), value) };
        return;
    }
    // An interrupt between the two halves could send its own.
    let irqs = cpu::irqs_disable();
    while read(COMMAND) & COMMAND_BUSY != 0 {
        core::hint::spin_loop();
    }
    write(COMMAND_HIGH, destination << 24);
    write(COMMAND, command);
    cpu::irqs_restore(irqs);
}

/// Interrupts another CPU.
#[inline]
pub fn send(cpu: usize, vector: u8) {
    command(
        IDS[cpu].load(Ordering::Relaxed),
        COMMAND_ASSERT | u32::from(vector),
    );
}

/// Interrupts all other CPUs, whatever they do, to stop them.
pub fn stop_others() {
    if REGISTERS.load(Ordering::Relaxed) != 0 && percpu::cpu_count() > 1 {
        command(0, ALL_OTHERS | COMMAND_ASSERT | NON_MASKABLE);
    }
}

/// Resets the CPU with this local APIC number.
pub fn send_init(id: u32) {
    command(id, INIT | COMMAND_ASSERT);
}

/// Makes a CPU that was reset start at physical page `page`, below 256.
pub fn send_start(id: u32, page: u8) {
    command(id, START_UP | COMMAND_ASSERT | u32::from(page));
}

/// The legacy controllers: remapped away from the CPU's own vectors, then masked.
fn silence_legacy() {
    let setup = [(0x11, 0x11), (0x20, 0x28), (4, 2), (1, 1), (0xff, 0xff)];
    for (i, (first, second)) in setup.into_iter().enumerate() {
        let register = u16::from(i > 0);
        // SAFETY: the controllers only raise interrupts, and end up raising none.
        unsafe {
            out8(0x20 + register, first);
            out8(0xa0 + register, second);
        }
    }
}

struct IoApic {
    registers: *mut u32,
}

impl IoApic {
    fn write(&self, register: u32, value: u32) {
        // SAFETY: an index and a data register, mapped by `route_legacy`, used on the boot CPU
        // only.
        unsafe {
            self.registers.write_volatile(register);
            self.registers.add(4).write_volatile(value);
        }
    }

    fn read(&self, register: u32) -> u32 {
        // SAFETY: as above.
        unsafe {
            self.registers.write_volatile(register);
            self.registers.add(4).read_volatile()
        }
    }
}

const IO_ID: u32 = 0;
const IO_VERSION: u32 = 1;
const IO_TABLE: u32 = 0x10;
const IO_LOW_ACTIVE: u32 = 1 << 13;
const IO_LEVEL: u32 = 1 << 15;

/// Sends a legacy interrupt line to the boot CPU as `vector`; all other lines of its I/O APIC that
/// were not routed stay masked. False if no I/O APIC has it.
///
/// `remap` is given the I/O APIC's number, the boot CPU's, and whether the line has a level; it
/// returns the entry's upper half and further bits of the lower one, where interrupts are remapped.
pub fn route_legacy(
    tables: &Tables,
    line: u8,
    vector: u8,
    remap: impl Fn(u32, u32, bool) -> Option<[u32; 2]>,
) -> bool {
    let (input, flags) = tables.legacy_line(line);
    for &(address, first) in tables.io_apics() {
        let Some(registers) = space::map_device(address, 0x20) else {
            continue;
        };
        let io_apic = IoApic {
            registers: registers.cast(),
        };
        let lines = (io_apic.read(IO_VERSION) >> 16 & 0xff) + 1;
        for pin in 0..lines {
            io_apic.write(IO_TABLE + pin * 2, MASKED);
        }
        let Some(pin) = input.checked_sub(first).filter(|&pin| pin < lines) else {
            continue;
        };
        // Polarity and trigger: 3 means low active, level; legacy lines are neither unless told.
        let low = if flags & 3 == 3 { IO_LOW_ACTIVE } else { 0 };
        let level = if flags >> 2 & 3 == 3 { IO_LEVEL } else { 0 };
        let (id, to) = (io_apic.read(IO_ID) >> 24 & 15, id_of(0));
        let remapped = remap(id, to, level != 0);
        let [upper, lower] = remapped.unwrap_or([to << 24, 0]);
        io_apic.write(IO_TABLE + pin * 2 + 1, upper);
        io_apic.write(IO_TABLE + pin * 2, u32::from(vector) | low | level | lower);
        return true;
    }
    false
}
