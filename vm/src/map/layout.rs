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
//! position-independent programs at the bottom. In a small space it has the same layout within its
//! region (`small-spaces.txt` 4): the stack's top is the region's end, the stack has a quarter of
//! it at most, and mappings, libraries among them, begin below that. The distances and the amount
//! of randomness are Linux's, on which programs depend.

use nucleus::{PAGE_SHIFT, PAGE_SIZE, VirtAddr, addr::USER_END, pmap, random};

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

/// The part of a region that is a stack's at most, and that a position-independent program begins
/// behind at most, as divisors; and the part that randomness may take away.
const STACK_PART: usize = 4;
const PROGRAM_PART: usize = 8;
const RANDOM_PART: usize = 64;
/// The limit up to which a stack may be cut to its part of a region: the usual one. Who has set a
/// higher one means it.
const USUAL_STACK: u64 = 8 << 20;

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

/// The room for a stack of at most `limit` bytes below `end`.
fn stack_room(end: VirtAddr, limit: u64) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    limit.clamp(STACK_ROOM_MIN, end.0 / 6 * 5)
}

impl Layout {
    /// Returns a layout for a stack of at most `stack_limit` bytes.
    pub fn new(stack_limit: u64, randomness: Randomness) -> Layout {
        let pages = [STACK_RANDOM, MMAP_RANDOM];
        let stack = stack_room(USER_END, stack_limit);
        Layout::within(USER_END, PROGRAM_BASE, pages, stack, randomness)
    }

    /// As [`new`](Layout::new) for a 32-bit program.
    pub fn for_32_bits(stack_limit: u64, randomness: Randomness) -> Layout {
        let pages = [STACK_RANDOM_32, MMAP_RANDOM_32];
        let stack = stack_room(END_32, stack_limit);
        Layout::within(END_32, PROGRAM_BASE_32, pages, stack, randomness)
    }

    /// As [`for_32_bits`](Layout::for_32_bits) in a small space with a region of this size, a power
    /// of two of 4 MiB or more. `None` if the stack's limit is for more than the region has.
    pub fn in_region(size: usize, stack_limit: u64, randomness: Randomness) -> Option<Layout> {
        let most = size / STACK_PART;
        if stack_limit > USUAL_STACK.max(most as u64) {
            return None;
        }
        let pages = [STACK_RANDOM_32, MMAP_RANDOM_32];
        let pages = pages.map(|pages| pages.min((size / RANDOM_PART) as u64 >> PAGE_SHIFT));
        let stack = most.min(stack_limit as usize);
        let program = PROGRAM_BASE_32.min(size / PROGRAM_PART);
        let mut layout = Layout::within(VirtAddr(size), program, pages, stack, randomness);
        layout.heap_gap = layout.heap_gap.min(size / RANDOM_PART) & !(PAGE_SIZE - 1);
        Some(layout)
    }

    /// The layout of a program in a region that has become large: what it maps from now on lies
    /// below `end`, from the top down. All else stays where it is.
    pub(super) fn widened(self, end: VirtAddr) -> Layout {
        let end = end.min(END_32);
        Layout {
            end,
            mmap_top: end,
            ..self
        }
    }

    /// Returns whether addresses have 32 bits.
    pub fn is_32_bits(&self) -> bool {
        self.end <= END_32
    }

    /// Returns whether it is that of a region.
    pub(super) fn is_in_region(&self) -> bool {
        self.end <= VirtAddr(*pmap::REGIONS.end())
    }

    fn within(
        end: VirtAddr,
        program_base: usize,
        random: [u64; 2],
        stack: usize,
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
        let stack_room =
            stack.next_multiple_of(PAGE_SIZE) + GUARD_GAP + ((stack_random as usize) << PAGE_SHIFT);
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
