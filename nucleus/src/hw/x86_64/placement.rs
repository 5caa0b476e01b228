//! Where the kernel puts itself.

use super::layout::DIRECT_MAP_SIZE;

/// The image moves by 2 MiB, so that it keeps its alignment to large pages, and so that its places
/// in the last 2 GiB are about 2^10.
const IMAGE_STEP: u64 = 2 << 20;
/// The addresses that the code of the image can name, from where it is linked on.
const IMAGE_ROOM: u64 = 2 << 30;
/// Kept free at the end of them: no place in the image is named by an address behind the last one.
const IMAGE_GAP: u64 = 2 << 20;

const GIB: u64 = 1 << 30;
/// Physical memory that the boot page tables map, by entries of one level-3 table.
const BOOT_GIBS: u64 = 4;
/// Entries of a table.
const ENTRIES: u64 = 512;

/// The level-4 slots of which one is for the regions with page tables of their own: behind the
/// direct map's, before the image's.
const REGION_SLOTS: core::ops::Range<u64> = 384..511;
/// The first GiB of each region in the slot, and its places, each a GiB: stacks take two.
const REGIONS: [(u64, u64); 3] = [(0, 254), (256, 127), (384, 127)];
/// The region of blocks, in another slot: its step and its places, which leave it 320 GiB. The step
/// is the largest alignment that a block can have.
const BLOCKS: (u64, u64) = (16, 13);
/// The region of page tables that can be written: in a slot of its own, as large as all memory that
/// can have records.
const TABLES_ROOM: u64 = 64;

/// How far things move, in bytes, or where to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// How far the image moves.
    pub image: usize,
    /// How far the direct map moves.
    pub direct_map: usize,
    /// Where stacks, window, devices, blocks and page tables are.
    pub regions: [usize; 5],
}

/// Chooses a placement for an image that ends at the physical address `image_end`, and memory that
/// ends at `memory_end`. `below` gives random numbers below its argument.
pub fn choose(mut below: impl FnMut(u64) -> u64, image_end: u64, memory_end: u64) -> Placement {
    let places = (IMAGE_ROOM - IMAGE_GAP).saturating_sub(image_end) / IMAGE_STEP;
    let image = below(places + 1) * IMAGE_STEP;

    let gibs = memory_end.div_ceil(GIB).max(BOOT_GIBS);
    let room = DIRECT_MAP_SIZE as u64 / GIB;
    let mut direct_map = below(room.saturating_sub(gibs) + 1);
    direct_map -= (direct_map % ENTRIES).saturating_sub(ENTRIES - BOOT_GIBS);

    let slots = REGION_SLOTS.end - REGION_SLOTS.start;
    let (of_three, of_blocks) = (below(slots), below(slots - 1));
    let mut of_tables = below(slots);
    // Canonical: the slots are in the upper half.
    let start_of = |slot: u64| (REGION_SLOTS.start + slot) << 39 | 0xffff << 48;
    let mut place = |slot: u64, first: u64, step: u64, places: u64| {
        (start_of(slot) + (first + below(places) * step) * GIB) as usize
    };
    let [stacks, window, devices] =
        REGIONS.map(|(first, places)| place(of_three, first, 1, places));
    let other = of_blocks + u64::from(of_blocks >= of_three);
    let blocks = place(other, 0, BLOCKS.0, BLOCKS.1);
    // The next slot that is free, from a random one on.
    while [of_three, other].contains(&of_tables) {
        of_tables = (of_tables + 1) % slots;
    }
    let gibs = gibs.max(TABLES_ROOM);
    let tables = place(of_tables, 0, 1, ENTRIES.saturating_sub(gibs).max(1));
    Placement {
        image: image as usize,
        direct_map: (direct_map * GIB) as usize,
        regions: [stacks, window, devices, blocks, tables],
    }
}
