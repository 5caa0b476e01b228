//! Where things go in an address space.
//!
//! ```text
//!   USER_END ─┬─ stack_top        random within 16 GiB
//!             │  stack, growing down to RLIMIT_STACK, then a guard gap
//!             ├─ mmap_top         below the largest stack, random within 1 TiB
//!             │  mappings, from the top down
//!             ├─ program_base     where a position-independent program goes, random within 1 TiB
//!             │  program, then its heap, random within 32 MiB behind it
//! USER_START ─┴─
//! ```
//! A 32-bit program has the same below 4 GiB, with less at random, and its position-independent programs at
//! the bottom. The distances and the amounts of randomness are Linux's, since programs have come to rely on
//! them.

use nucleus::{PAGE_SHIFT, PAGE_SIZE, VirtAddr, addr::USER_END, random};

/// Kept free below a mapping that grows down: 256 pages, more than a function's frame that skips a
/// page.
pub const GUARD_GAP: usize = 256 << PAGE_SHIFT;

/// Room for stacks is never less than this, so that raising the limit later has some effect, nor more than five sixths of
/// the address space.
const STACK_ROOM_MIN: usize = 128 << 20;
/// Pages by which the stack's top varies.
const STACK_RANDOM: u64 = 1 << 22;
/// Pages by which the top of mappings, and the base of programs, vary.
const MMAP_RANDOM: u64 = 1 << 28;
/// Bytes by which the heap's start varies.
const HEAP_RANDOM: usize = 32 << 20;
/// Where position-independent programs start at the lowest: two thirds up.
const PROGRAM_BASE: usize = USER_END.0 / 3 * 2;

/// Where the address space of a 32-bit program ends.
const END_32: VirtAddr = VirtAddr(0xffff_e000);
/// Pages by which its stack's top varies.
const STACK_RANDOM_32: u64 = 1 << 11;
/// Pages by which the top of its mappings, and the base of a program, vary.
const MMAP_RANDOM_32: u64 = 1 << 8;
/// Where a position-independent 32-bit program starts at the lowest.
const PROGRAM_BASE_32: usize = 0x40_0000;

/// Where things go in one address space.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Where the program's part ends: nothing is mapped above.
    pub end: VirtAddr,
    /// Where the first stack ends.
    pub stack_top: VirtAddr,
    /// Where mappings end; they are laid out from here down.
    pub mmap_top: VirtAddr,
    /// Where a position-independent program goes.
    pub program_base: VirtAddr,
    /// By how much the heap starts behind the program.
    pub heap_gap: usize,
}

/// `below` pages at most, at random, in bytes.
fn random_pages(below: u64) -> usize {
    ((random::u64() % below) as usize) << PAGE_SHIFT
}

impl Layout {
    /// A layout for a stack of at most `stack_limit` bytes, random unless `fixed`.
    pub fn new(stack_limit: u64, fixed: bool) -> Layout {
        Layout::within(
            USER_END,
            PROGRAM_BASE,
            [STACK_RANDOM, MMAP_RANDOM].map(|pages| if fixed { 0 } else { pages }),
            stack_limit,
        )
    }

    /// As [`new`](Layout::new) for a 32-bit program.
    pub fn for_32_bits(stack_limit: u64, fixed: bool) -> Layout {
        Layout::within(
            END_32,
            PROGRAM_BASE_32,
            [STACK_RANDOM_32, MMAP_RANDOM_32].map(|pages| if fixed { 0 } else { pages }),
            stack_limit,
        )
    }

    /// Whether addresses have 32 bits.
    pub fn is_32_bits(&self) -> bool {
        self.end == END_32
    }

    fn within(
        end: VirtAddr,
        program_base: usize,
        [stack_random, mmap_random]: [u64; 2],
        stack_limit: u64,
    ) -> Layout {
        let random = |pages| if pages == 0 { 0 } else { random_pages(pages) };
        let stack_room = usize::try_from(stack_limit)
            .unwrap_or(usize::MAX)
            .clamp(STACK_ROOM_MIN, end.0 / 6 * 5)
            .next_multiple_of(PAGE_SIZE)
            + GUARD_GAP
            + ((stack_random as usize) << PAGE_SHIFT);
        // The random part is far smaller than what the largest room for stacks leaves.
        let mmap_top = (end.0 - stack_room - random(mmap_random)) & !(PAGE_SIZE - 1);
        let heap_random = if mmap_random == 0 { 0 } else { HEAP_RANDOM };
        Layout {
            end,
            stack_top: end - random(stack_random),
            mmap_top: VirtAddr(mmap_top),
            program_base: VirtAddr(program_base + random(mmap_random)).page_floor(),
            heap_gap: random((heap_random / PAGE_SIZE) as u64),
        }
    }
}
