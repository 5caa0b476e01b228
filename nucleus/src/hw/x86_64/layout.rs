//! The kernel's half of every address space.
//!
//! | from | what |
//! |---|---|
//! | `DIRECT_MAP` | all physical memory, never executable |
//! | `STACKS` | kernel stacks between guard pages |
//! | `WINDOW` | mappings of frames for a short time, where the direct map is not used for them |
//! | `BLOCKS` | large blocks of the heap whose frames are not neighbours |
//! | `DEVICES` | device registers, uncached |
//! | `KERNEL_BASE` | the kernel image: text, read-only data, data |

use crate::PhysAddr;

/// Where physical address 0 is mapped.
pub const DIRECT_MAP: usize = 0xffff_8000_0000_0000;
/// Bytes that the direct map may grow to.
pub const DIRECT_MAP_SIZE: usize = 64 << 40;
/// Physical memory that the boot page tables map, in bytes.
pub const BOOT_MAPPED: u64 = 4 << 30;
/// The kernel stacks.
pub const STACKS: usize = 0xffff_c000_0000_0000;
/// Bytes of a stack. The deepest chains, from a system call through a fault and a page's arrival to
/// an interrupt, take about a third of it in builds with assertions.
pub const STACK_SIZE: usize = 32 << 10;
/// Bytes of a slot; what the stack does not use guards it.
pub const STACK_SLOT: usize = 64 << 10;
/// Stacks at most, and so threads at most.
pub const MAX_STACKS: usize = 32 << 10;
/// Short-lived mappings, in the level-3 table of the stacks.
pub const WINDOW: usize = 0xffff_c040_0000_0000;
/// Device registers.
pub const DEVICES: usize = 0xffff_c080_0000_0000;
/// Large heap blocks, in a level-3 table of their own: 512 GiB.
pub const BLOCKS: usize = 0xffff_c100_0000_0000;
/// What the kernel image is linked at, for physical address 0.
pub const KERNEL_BASE: usize = 0xffff_ffff_8000_0000;

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

/// Where the linker and the loader put the image.
pub fn image() -> Image {
    let at = |symbol: *const u8| (symbol as usize - KERNEL_BASE) as u64;
    Image {
        start: at(&raw const __image_start),
        text_end: at(&raw const __text_end),
        rodata_end: at(&raw const __rodata_end),
        end: at(&raw const __image_end),
    }
}

/// A byte of memory in the direct map.
#[inline]
pub fn ptr(at: PhysAddr) -> *mut u8 {
    (DIRECT_MAP + at.0 as usize) as *mut u8
}

/// Whether an address lies in the guard below a stack, or so near above it that a push goes there.
pub fn is_stack_guard(address: usize) -> bool {
    let within = address.wrapping_sub(STACKS);
    within < MAX_STACKS * STACK_SLOT && within % STACK_SLOT < STACK_SLOT - STACK_SIZE + 256
}
