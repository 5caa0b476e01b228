//! Segments and the task state of each CPU: what the CPU insists on in 64-bit mode.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::ptr::from_ref;

use super::layout::{image_base, table_ptr};
use super::percpu::{MAX_CPUS, PerCpu};
use crate::PhysAddr;
use crate::hw::{Window, segment};

/// Kernel code.
pub const KERNEL_CODE: u16 = 0x08;
/// Kernel data.
pub const KERNEL_DATA: u16 = 0x10;
/// 32-bit programs' code, privilege 3. `sysret` counts from here.
pub const USER_CODE_32: u16 = 0x23;
/// Programs' data and stack.
pub const USER_DATA: u16 = 0x2b;
/// 64-bit programs' code.
pub const USER_CODE: u16 = 0x33;
const TASK_STATE: u16 = 0x38;
/// A segment of data whose limit is the CPU's number: programs may ask for the limit, and reach
/// nothing by it that they don't reach otherwise.
pub const CPU_NUMBER: u16 = 0x4b;

/// The first of the descriptors that a thread of a 32-bit program sets,
/// [`TLS_SEGMENTS`](crate::hw::registers::TLS_SEGMENTS) in all.
pub const FIRST_TLS: usize = crate::hw::registers::FIRST_TLS_SEGMENT;

/// Descriptors in the table: those above, of which the task state has two, and those that threads
/// set.
pub const GDT_ENTRIES: usize = FIRST_TLS + crate::hw::registers::TLS_SEGMENTS;

/// The descriptor tables of all CPUs, in pages of their own: they are [guarded](super::guard).
#[repr(C, align(4096))]
struct Tables(UnsafeCell<[[u64; GDT_ENTRIES]; MAX_CPUS]>);

// SAFETY: each table is changed only by its own CPU.
unsafe impl Sync for Tables {}

static TABLES: Tables = Tables(UnsafeCell::new([[0; GDT_ENTRIES]; MAX_CPUS]));

/// The addresses of the pages of all tables.
pub fn place() -> Range<usize> {
    let tables = &raw const TABLES as usize;
    tables..tables + size_of::<Tables>()
}

/// Where the CPU reads its table.
fn table(data: &PerCpu) -> *const u64 {
    let tables = TABLES.0.get().cast::<[u64; GDT_ENTRIES]>();
    tables.wrapping_add(data.number() as usize).cast()
}

/// Where the table is written.
fn writable(data: &PerCpu) -> *mut [u64; GDT_ENTRIES] {
    let at = table(data) as usize - image_base();
    table_ptr(PhysAddr(at as u64)).cast()
}

const SEGMENTS: [u64; 7] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0,
    0x00cf_fb00_0000_ffff,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
];

/// Which interrupt stack a trap takes, whatever the stack pointer was.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum InterruptStack {
    DoubleFault = 1,
    NonMaskable = 2,
    MachineCheck = 3,
}

/// The 64-bit task state segment.
#[repr(C, packed(4))]
pub struct Tss {
    reserved: u32,
    /// Stacks by privilege; only the first is used.
    rsp: [u64; 3],
    reserved2: u64,
    /// Interrupt stacks 1 to 7.
    ist: [u64; 7],
    reserved3: u64,
    reserved4: u16,
    io_map: u16,
}

impl Tss {
    /// Offset of the stack pointer for traps from programs.
    pub const RSP0: usize = core::mem::offset_of!(Tss, rsp);

    pub const fn new() -> Tss {
        Tss {
            reserved: 0,
            rsp: [0; 3],
            reserved2: 0,
            ist: [0; 7],
            reserved3: 0,
            reserved4: 0,
            io_map: 0,
        }
    }
}

#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// Has traps from programs come to the CPU's own small stack, where the guarded ways are taken.
pub fn set_entry_stack(data: &'static PerCpu) {
    // SAFETY: only this CPU reads its task state, and no program runs.
    unsafe { (&raw mut (*data.tss.get()).rsp[0]).write_unaligned(data.entry_stack() as u64) };
}

/// Loads this CPU's descriptor table and task state. `stacks` are the tops of the interrupt
/// stacks in the order of [`InterruptStack`].
#[inline(never)]
pub fn load(data: &'static PerCpu, stacks: [usize; 3]) {
    set_stacks(data, stacks);
    // SAFETY: only this CPU touches its tables, and no trap can happen on it yet that needs them.
    unsafe {
        let base = data.tss.get() as u64;
        let limit = size_of::<Tss>() as u64 - 1;
        // Past the limit: no port is open to programs.
        (&raw mut (*data.tss.get()).io_map).write_unaligned(size_of::<Tss>() as u16);
        let gdt = &mut *writable(data);
        gdt[..7].copy_from_slice(&SEGMENTS);
        gdt[7] = limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        gdt[8] = base >> 32;
        // Readable data of privilege 3, in bytes.
        gdt[usize::from(CPU_NUMBER) / 8] = 0x0040_f100_0000_0000 | data.number() as u64;
        let pointer = |base: *const u64| TablePointer {
            limit: (GDT_ENTRIES * 8 - 1) as u16,
            base: base as u64,
        };
        // To load the task state the processor writes to the table.
        let first = pointer(writable(data).cast());
        let then = pointer(table(data));
        asm!(
            "lgdt [{first}]",
            // A far return is the way to a new code segment.
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ss, {data:e}",
            "ltr {task:x}",
            "lgdt [{then}]",
            first = in(reg) from_ref(&first),
            then = in(reg) from_ref(&then),
            code = const KERNEL_CODE,
            scratch = out(reg) _,
            data = in(reg) u32::from(KERNEL_DATA),
            task = in(reg) TASK_STATE,
        );
    }
}

/// The place of the descriptors that depend on the program: of 32-bit code, data, and 64-bit code.
const PROGRAMS: usize = (USER_CODE_32 / 8) as usize;
const _: () = assert!(USER_DATA as usize / 8 == PROGRAMS + 1);
const _: () = assert!(USER_CODE as usize / 8 == PROGRAMS + 2);

/// Gives this CPU's table the code and data of where a program is: in a small space its region, and
/// no 64-bit code, which knows no limits. Interrupts are off.
pub fn set_programs(data: &'static PerCpu, window: Window) {
    let programs = match window.is_small() {
        false => [
            SEGMENTS[PROGRAMS],
            SEGMENTS[PROGRAMS + 1],
            SEGMENTS[PROGRAMS + 2],
        ],
        true => segment::of_region(window),
    };
    // SAFETY: only this CPU touches its table, and no interrupt comes between; the descriptors are
    // segments of programs' privilege by construction.
    let slots = unsafe { &mut (&mut *writable(data))[PROGRAMS..PROGRAMS + 3] };
    slots.copy_from_slice(&programs);
}

/// Puts a thread's own descriptors into this CPU's table, before it loads a selector of one.
/// Interrupts are off.
pub fn set_tls(data: &'static PerCpu, descriptors: &[u64; crate::hw::registers::TLS_SEGMENTS]) {
    // SAFETY: as in `set_programs`.
    let slots = unsafe { &mut (&mut *writable(data))[FIRST_TLS..] };
    // Word by word: to compare them as bytes is a call.
    if slots.iter().ne(descriptors) {
        slots.copy_from_slice(descriptors);
    }
}

/// Replaces this CPU's interrupt stacks.
pub fn set_stacks(data: &'static PerCpu, stacks: [usize; 3]) {
    // SAFETY: only this CPU reads its task state, and none of these stacks is in use: their
    // handlers run with interrupts off and this code runs on none of them.
    unsafe {
        let tss = data.tss.get();
        for (i, top) in stacks.into_iter().enumerate() {
            (&raw mut (*tss).ist[i]).write_unaligned(top as u64);
        }
    }
}
