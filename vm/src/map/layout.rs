//! The layout of an address space.
//!
//! ```text
//!   USER_END ─┬─ stack_top        random within 16 GiB
//!             │  stack, growing down to RLIMIT_STACK, then a guard gap
//!             ├─ mmap_top         below the largest stack, random within 1 TiB
//!             │  mappings, from the top down
//!             ├─ program_base     position-independent programs, random within 1 TiB
//!             │  program, then its heap, random within 32 MiB after it
//! USER_START ─┴─
//! ```
//! A 32-bit program has the same layout below 4 GiB, with less randomness, and its
//! position-independent programs at the bottom. The distances and the amount of randomness are
//! Linux's, on which programs depend.

use nucleus::{PAGE_SHIFT, PAGE_SIZE, VirtAddr, addr::USER_END, random};

/// Kept free below a mapping that grows down: 256 pages, more than a stack frame that skips a page.
pub const GUARD_GAP: usize = 256 << PAGE_SHIFT;

/// The least room for stacks, so that raising the limit later has an effect; the most is five
/// sixths of the address space.
const STACK_ROOM_MIN: usize = 128 << 20;
/// Randomness of the stack's top, in pages.
const STACK_RANDOM: u64 = 1 << 22;
/// Randomness of the top of mappings and of the base of programs, in pages.
const MMAP_RANDOM: u64 = 1 << 28;
/// Randomness of the heap's start, in bytes.
const HEAP_RANDOM: usize = 32 << 20;
/// The lowest start of position-independent programs: two thirds up.
const PROGRAM_BASE: usize = USER_END.0 / 3 * 2;

/// The end of a 32-bit program's address space.
const END_32: VirtAddr = VirtAddr(0xffff_e000);
/// Randomness of its stack's top, in pages.
const STACK_RANDOM_32: u64 = 1 << 11;
/// Randomness of its top of mappings and base of programs, in pages.
const MMAP_RANDOM_32: u64 = 1 << 8;
/// The lowest start of a position-independent 32-bit program.
const PROGRAM_BASE_32: usize = 0x40_0000;

/// How much of a layout is random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Randomness {
    /// Every layout is the same.
    Nothing,
    /// All but the start of the heap, which follows the program at once.
    ButHeap,
    /// Stack, mappings, program and heap.
    Everything,
}

/// The layout of one address space.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The end of user space for the program.
    pub end: VirtAddr,
    /// The end of the first stack.
    pub stack_top: VirtAddr,
    /// The end of mappings, which are laid out from here down.
    pub mmap_top: VirtAddr,
    /// The base of a position-independent program.
    pub program_base: VirtAddr,
    /// The distance of the heap from the end of the program, in bytes.
    pub heap_gap: usize,
}

/// A random number of pages below `below`, in bytes.
fn random_pages(below: u64) -> usize {
    ((random::u64() % below) as usize) << PAGE_SHIFT
}

impl Layout {
    /// Returns a layout for a stack of at most `stack_limit` bytes.
    pub fn new(stack_limit: u64, randomness: Randomness) -> Layout {
        let pages = [STACK_RANDOM, MMAP_RANDOM];
        Layout::within(USER_END, PROGRAM_BASE, pages, stack_limit, randomness)
    }

    /// As [`new`](Layout::new) for a 32-bit program.
    pub fn for_32_bits(stack_limit: u64, randomness: Randomness) -> Layout {
        let pages = [STACK_RANDOM_32, MMAP_RANDOM_32];
        Layout::within(END_32, PROGRAM_BASE_32, pages, stack_limit, randomness)
    }

    /// Returns whether addresses have 32 bits.
    pub fn is_32_bits(&self) -> bool {
        self.end == END_32
    }

    fn within(
        end: VirtAddr,
        program_base: usize,
        random: [u64; 2],
        stack_limit: u64,
        randomness: Randomness,
    ) -> Layout {
        let [stack_random, mmap_random] = match randomness {
            Randomness::Nothing => [0, 0],
            Randomness::ButHeap | Randomness::Everything => random,
        };
        let heap_random = match randomness {
            Randomness::Nothing | Randomness::ButHeap => 0,
            Randomness::Everything => HEAP_RANDOM,
        };
        let random = |pages| if pages == 0 { 0 } else { random_pages(pages) };
        let stack_room = usize::try_from(stack_limit)
            .unwrap_or(usize::MAX)
            .clamp(STACK_ROOM_MIN, end.0 / 6 * 5)
            .next_multiple_of(PAGE_SIZE)
            + GUARD_GAP
            + ((stack_random as usize) << PAGE_SHIFT);
        // The random part is far smaller than what remains above the largest room for stacks.
        let mmap_top = (end.0 - stack_room - random(mmap_random)) & !(PAGE_SIZE - 1);
        Layout {
            end,
            stack_top: end - random(stack_random),
            mmap_top: VirtAddr(mmap_top),
            program_base: VirtAddr(program_base + random(mmap_random)).page_floor(),
            heap_gap: random((heap_random / PAGE_SIZE) as u64),
        }
    }
}
