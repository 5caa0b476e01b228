//! The kernel's half of every address space.
//!
//! | region | what | where |
//! |---|---|---|
//! | [`ptr`] | all physical memory, never executable: the direct map | at a GiB of the lower half |
//! | [`stacks`] | kernel stacks between guard pages | in 512 GiB of the upper half |
//! | [`window`] | mappings of frames for a short time, where the direct map is not used for them | behind them |
//! | [`devices`] | device registers, uncached | behind that |
//! | [`table_ptr`] | page tables and descriptor tables, where they can be written | in a third 512 GiB of the upper half |
//! | [`blocks`] | large blocks of the heap whose frames are not neighbours | in another 512 GiB of the upper half |
//! | [`image`] | the kernel image: text, read-only data, data | in the last 2 GiB, which the code's 32-bit addresses reach |
//!
//! `place` (in `boot`) moves all of them by random distances before anything else runs. The
//! direct map's address is an immediate operand in the code, which the move changes.

use core::arch::asm;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::PhysAddr;

/// Where physical address 0 is mapped in a kernel that was not moved.
pub const DIRECT_MAP: usize = 0xffff_8000_0000_0000;
/// Bytes from [`DIRECT_MAP`] on in which the direct map is.
pub const DIRECT_MAP_SIZE: usize = 64 << 40;
/// Bytes from [`tables`] on in which page tables can be.
pub const TABLES_SIZE: usize = 512 << 30;
/// Physical memory that the boot page tables map, in bytes.
pub const BOOT_MAPPED: u64 = 4 << 30;
/// Bytes of a stack. The deepest chains, from a system call through a fault and a page's arrival to
/// an interrupt, take about a third of it in builds with assertions.
pub const STACK_SIZE: usize = 32 << 10;
/// Bytes of a slot; what the stack does not use guards it.
pub const STACK_SLOT: usize = 64 << 10;
/// Stacks at most, and so threads at most.
pub const MAX_STACKS: usize = 32 << 10;
/// What the kernel image is linked at, for physical address 0.
pub const KERNEL_BASE: usize = 0xffff_ffff_8000_0000;
/// What it is loaded at.
const LOAD_ADDRESS: usize = 0x10_0000;

/// Where the regions with page tables of their own begin: stacks, window, devices, blocks. The
/// first three are in the 512 GiB of one level-3 table, the others in those of others; `space`
/// makes these tables.
static REGIONS: [AtomicUsize; 5] = [
    AtomicUsize::new(0xffff_c000_0000_0000),
    AtomicUsize::new(0xffff_c040_0000_0000),
    AtomicUsize::new(0xffff_c060_0000_0000),
    AtomicUsize::new(0xffff_c100_0000_0000),
    AtomicUsize::new(0xffff_c180_0000_0000),
];

/// Moves the regions with page tables of their own. Once, before any is used.
pub fn move_regions(to: [usize; 5]) {
    for (region, to) in REGIONS.iter().zip(to) {
        region.store(to, Ordering::Relaxed);
    }
}

/// The kernel stacks.
#[inline]
pub fn stacks() -> usize {
    REGIONS[0].load(Ordering::Relaxed)
}

/// Short-lived mappings.
#[inline]
pub fn window() -> usize {
    REGIONS[1].load(Ordering::Relaxed)
}

/// Device registers.
pub fn devices() -> usize {
    REGIONS[2].load(Ordering::Relaxed)
}

/// Large heap blocks.
#[inline]
pub fn blocks() -> usize {
    REGIONS[3].load(Ordering::Relaxed)
}

/// Where physical address 0 is in the region of page tables that can be written.
pub fn tables() -> usize {
    REGIONS[4].load(Ordering::Relaxed)
}

/// Where page tables are reached: physical address 0 of the direct map, or of [`tables`].
static TABLES: AtomicUsize = AtomicUsize::new(0);

/// Has page tables reached in the direct map, at the start and where they are not guarded, or in
/// their region.
pub fn reach_tables(guarded: bool) {
    let base = if guarded { tables() } else { direct_map() };
    TABLES.store(base, Ordering::Relaxed);
}

/// Whether page tables are reached in their own region: see [`guard`](super::guard).
#[inline]
pub fn is_guarded() -> bool {
    TABLES.load(Ordering::Relaxed) == tables()
}

/// A byte of a page table or descriptor table, to be read or written.
#[inline]
pub fn table_ptr(at: PhysAddr) -> *mut u8 {
    (TABLES.load(Ordering::Relaxed) + at.0 as usize) as *mut u8
}

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
}

/// The kernel image's physical borders, page-aligned.
#[derive(Clone, Copy)]
pub struct Image {
    pub start: u64,
    pub text_end: u64,
    pub rodata_end: u64,
    pub end: u64,
}

/// How far the image has moved from where it was linked.
pub fn slide() -> usize {
    let start: usize;
    // SAFETY: gives an address. The compiler must not know whose: it would let the linker take the
    // difference below, which has no place in the image, so that it would not change.
    unsafe {
        asm!("lea {}, [rip + {}]", out(reg) start, sym __image_start,
            options(pure, nomem, nostack, preserves_flags));
    }
    start - (KERNEL_BASE + LOAD_ADDRESS)
}

/// Where physical address 0 is in the image's mapping.
pub fn image_base() -> usize {
    KERNEL_BASE + slide()
}

/// Where the linker and the loader put the image.
pub fn image() -> Image {
    let base = image_base();
    let at = |symbol: *const u8| (symbol as usize - base) as u64;
    Image {
        start: at(&raw const __image_start),
        text_end: at(&raw const __text_end),
        rodata_end: at(&raw const __rodata_end),
        end: at(&raw const __image_end),
    }
}

/// Where physical address 0 is in the direct map.
#[inline(always)]
fn direct_map() -> usize {
    let base;
    // SAFETY: gives a number, which the start of the kernel changes in place (`start`): the operand
    // is the last eight bytes of the instruction, which always has ten.
    unsafe {
        asm!("2: movabs {}, {}", ".pushsection .direct_sites, \"a\"", ".long 2b + 2 - .",
            ".popsection", out(reg) base, const DIRECT_MAP as i64,
            options(pure, nomem, nostack, preserves_flags));
    }
    base
}

/// A byte of memory in the direct map.
#[inline]
pub fn ptr(at: PhysAddr) -> *mut u8 {
    (direct_map() + at.0 as usize) as *mut u8
}

/// Whether an address lies in the guard below a stack, or so near above it that a push goes there.
pub fn is_stack_guard(address: usize) -> bool {
    let within = address.wrapping_sub(stacks());
    within < MAX_STACKS * STACK_SLOT && within % STACK_SLOT < STACK_SLOT - STACK_SIZE + 256
}
