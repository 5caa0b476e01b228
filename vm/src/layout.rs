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
//! The distances and the amounts of randomness are Linux's, since programs have come to rely on
//! them.

use nucleus::{PAGE_SHIFT, PAGE_SIZE, VirtAddr, addr::USER_END, random};

/// Kept free below a mapping that grows down: 256 pages, more than a function's frame that skips a
/// page.
pub const GUARD_GAP: usize = 256 << PAGE_SHIFT;

/// Room for stacks is never less than this, so that raising the limit later has some effect.
const STACK_ROOM_MIN: usize = 128 << 20;
/// And never more than this part of the address space.
const STACK_ROOM_MAX: usize = USER_END.0 / 6 * 5;
/// Pages by which the stack's top varies.
const STACK_RANDOM: u64 = 1 << 22;
/// Pages by which the top of mappings, and the base of programs, vary.
const MMAP_RANDOM: u64 = 1 << 28;
/// Bytes by which the heap's start varies.
const HEAP_RANDOM: usize = 32 << 20;
/// Where position-independent programs start at the lowest: two thirds up.
const PROGRAM_BASE: usize = USER_END.0 / 3 * 2;

/// Where things go in one address space.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
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
        let random = |pages| if fixed { 0 } else { random_pages(pages) };
        let stack_room = usize::try_from(stack_limit)
            .unwrap_or(usize::MAX)
            .clamp(STACK_ROOM_MIN, STACK_ROOM_MAX)
            .next_multiple_of(PAGE_SIZE)
            + GUARD_GAP
            + if fixed {
                0
            } else {
                (STACK_RANDOM as usize) << PAGE_SHIFT
            };
        // The random part is far smaller than what STACK_ROOM_MAX leaves.
        let mmap_top = (USER_END.0 - stack_room - random(MMAP_RANDOM)) & !(PAGE_SIZE - 1);
        Layout {
            stack_top: USER_END - random(STACK_RANDOM),
            mmap_top: VirtAddr(mmap_top),
            program_base: VirtAddr(PROGRAM_BASE + random(MMAP_RANDOM)).page_floor(),
            heap_gap: random((HEAP_RANDOM / PAGE_SIZE) as u64),
        }
    }
}
