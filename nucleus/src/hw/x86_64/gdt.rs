//! Segments and the task state of each CPU: what the CPU insists on in 64-bit mode.

use core::arch::asm;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ops::Range;
use core::ptr::from_ref;
use core::sync::atomic::Ordering;

use super::layout::{image_base, table_ptr};
use super::percpu::{MAX_CPUS, PerCpu};
use crate::hw::local_segments::{LOCAL_SEGMENTS, LocalSegments};
use crate::hw::registers::{FIRST_TLS_SEGMENT, TLS_SEGMENTS};
use crate::hw::{Window, segment};
use crate::{PhysAddr, speculation};

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
/// A descriptor whose limit is the CPU's number. Programs may ask for that, and can't load it: it
/// is one of a table of segments, which takes two places.
pub const CPU_NUMBER: u16 = 0x4b;
/// The descriptor of the table of local segments; it takes two places.
const LOCAL_TABLE: usize = FIRST_TLS + TLS_SEGMENTS;

/// The first of the descriptors that a thread of a 32-bit program sets, [`TLS_SEGMENTS`] in all.
pub const FIRST_TLS: usize = FIRST_TLS_SEGMENT;

/// Descriptors in the table: those above, of which two take two places, and those that threads
/// set.
pub const GDT_ENTRIES: usize = LOCAL_TABLE + 2;

/// One CPU's descriptor tables.
#[repr(C)]
struct Table {
    global: [u64; GDT_ENTRIES],
    /// A copy of the local segments of the program that runs.
    local: [u64; LOCAL_SEGMENTS],
}

/// The descriptor tables of all CPUs, in pages of their own: they are [guarded](super::guard).
#[repr(C, align(4096))]
struct Tables(UnsafeCell<[Table; MAX_CPUS]>);

// SAFETY: each table is changed only by its own CPU.
unsafe impl Sync for Tables {}

static TABLES: Tables = Tables(UnsafeCell::new(
    [const {
        Table {
            global: [0; GDT_ENTRIES],
            local: [0; LOCAL_SEGMENTS],
        }
    }; MAX_CPUS],
));

/// The addresses of the pages of all tables.
pub fn place() -> Range<usize> {
    let tables = &raw const TABLES as usize;
    tables..tables + size_of::<Tables>()
}

/// Where the CPU reads its tables.
fn table(data: &PerCpu) -> *const Table {
    let tables = TABLES.0.get().cast::<Table>();
    tables.wrapping_add(data.number() as usize)
}

/// Where the tables are written.
fn writable(data: &PerCpu) -> *mut Table {
    let at = table(data) as usize - image_base();
    table_ptr(PhysAddr(at as u64)).cast()
}

/// The address of this CPU's table of local segments, which it reads.
fn local_base(data: &PerCpu) -> u64 {
    table(data) as u64 + offset_of!(Table, local) as u64
}

const SEGMENTS: [u64; 7] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0,
    0x00cf_fb00_0000_ffff,
    0x00cf_f300_0000_ffff,
    CODE_64,
];

/// 64-bit programs' code. Its place is empty while a 32-bit program runs.
const CODE_64: u64 = 0x00af_fb00_0000_ffff;

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
        let gdt = &mut (*writable(data)).global;
        gdt[..7].copy_from_slice(&SEGMENTS);
        gdt[7] = limit | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        gdt[8] = base >> 32;
        // A local table, present, of privilege 3, at 0, with a limit in bytes.
        gdt[usize::from(CPU_NUMBER) / 8] = 0xe2 << 40 | data.number() as u64;
        let local = local_base(data);
        let limit = (LOCAL_SEGMENTS * 8 - 1) as u64;
        gdt[LOCAL_TABLE] =
            limit | (local & 0xff_ffff) << 16 | 0x82 << 40 | (local >> 24 & 0xff) << 56;
        gdt[LOCAL_TABLE + 1] = local >> 32;
        let pointer = |base: *const u64| TablePointer {
            limit: (GDT_ENTRIES * 8 - 1) as u16,
            base: base as u64,
        };
        // To load the task state the processor writes to the table.
        let first = pointer(writable(data).cast());
        let then = pointer(table(data).cast());
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
            // After a reset the table of local segments is the program's memory from 0 on.
            "lldt {none:x}",
            "lgdt [{then}]",
            first = in(reg) from_ref(&first),
            then = in(reg) from_ref(&then),
            code = const KERNEL_CODE,
            scratch = out(reg) _,
            data = in(reg) u32::from(KERNEL_DATA),
            task = in(reg) TASK_STATE,
            none = in(reg) 0u16,
        );
    }
}

/// The place of the descriptors that depend on the program: of 32-bit code, data, and 64-bit code.
const PROGRAMS: usize = (USER_CODE_32 / 8) as usize;
const _: () = assert!(USER_DATA as usize / 8 == PROGRAMS + 1);
const _: () = assert!(USER_CODE as usize / 8 == PROGRAMS + 2);

/// Puts a thread's own descriptors, as [`segment`] puts them, into this CPU's table, before it
/// loads a selector of one. Interrupts are off.
pub fn set_tls(data: &'static PerCpu, descriptors: &[u64; TLS_SEGMENTS]) {
    // SAFETY: only this CPU touches its table, and no interrupt comes between; the descriptors are
    // data segments of programs' privilege by construction.
    let slots = unsafe { &mut (&mut (*writable(data)).global)[FIRST_TLS..LOCAL_TABLE] };
    // Word by word: to compare them as bytes is a call.
    if slots.iter().ne(descriptors) {
        slots.copy_from_slice(descriptors);
    }
}

/// Prepares this CPU's tables for a 32-bit program with these local segments, or for a 64-bit one,
/// before it loads a selector of the program's. A program in a small space has its region as code
/// and data, and its local segments are moved there. Interrupts are off, and the segments of the
/// last program are still those of [`segments_base`](super::percpu::segments_base). Between two
/// 64-bit programs nothing changes.
pub fn set_program(data: &'static PerCpu, window: Window, local: Option<&LocalSegments>) {
    let programs = match (window.is_small(), local) {
        (true, _) => segment::of_region(window),
        (false, Some(_)) => [SEGMENTS[PROGRAMS], SEGMENTS[PROGRAMS + 1], 0],
        (false, None) => [SEGMENTS[PROGRAMS], SEGMENTS[PROGRAMS + 1], CODE_64],
    };
    // SAFETY: only this CPU touches its tables, and no interrupt comes between. The kernel uses
    // neither the places of programs' segments nor a local segment; the descriptors are segments of
    // programs' privilege by construction.
    unsafe {
        let places = &mut (&mut (*writable(data)).global)[PROGRAMS..PROGRAMS + 3];
        if places.iter().ne(&programs) {
            places.copy_from_slice(&programs);
        }
    }
    let stamp = local.map_or(0, LocalSegments::stamp);
    let is_here = window.base == super::percpu::segments_base();
    if stamp == data.local_stamp.load(Ordering::Relaxed) && (is_here || stamp == 0) {
        return;
    }
    data.local_stamp.store(stamp, Ordering::Relaxed);
    let used = local.map_or(0, LocalSegments::len);
    // SAFETY: as above.
    let words = unsafe { &mut (*writable(data)).local };
    let before = data.local_used.load(Ordering::Relaxed);
    data.local_used.store(used, Ordering::Relaxed);
    // Those behind are another program's, and go with it.
    for (n, word) in words.iter_mut().enumerate().take(used.max(before)) {
        let own = local.map_or(0, |local| local.word(n));
        *word = segment::in_region(own, window, false);
    }
    let selector = if used == 0 { 0 } else { LOCAL_TABLE as u16 * 8 };
    // SAFETY: none, or the descriptor that `load` made.
    unsafe { asm!("lldt {0:x}", in(reg) selector, options(nostack, preserves_flags)) };
}

/// The descriptor that a selector names in this CPU's tables, if it is a program's: one of the
/// segments that all have, a thread's own or a local one. It may be absent. Interrupts are off,
/// until the selector has been loaded.
pub fn descriptor(data: &'static PerCpu, selector: u64) -> Option<u64> {
    let index = selector as usize >> 3 & 0x1fff;
    // SAFETY: only this CPU changes its tables, and no interrupt comes between.
    let tables = unsafe { &*writable(data) };
    let word = if selector & 4 != 0 {
        if data.local_stamp.load(Ordering::Relaxed) == 0 {
            return None;
        }
        *speculation::get(&tables.local, index)?
    } else {
        let is_programs = [USER_CODE_32, USER_DATA, USER_CODE].contains(&((index as u16 * 8) | 3))
            || (FIRST_TLS..LOCAL_TABLE).contains(&index);
        if !is_programs {
            return None;
        }
        *speculation::get(&tables.global, index)?
    };
    (word != 0).then_some(word)
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
