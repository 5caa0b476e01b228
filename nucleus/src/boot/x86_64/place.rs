//! The choice of the kernel's place, before anything that has an address is made.

use core::ptr::addr_of_mut;

use blake2::{Blake2s256, Digest};

use crate::hw::options;
use crate::hw::x86_64::layout::{self, DIRECT_MAP, KERNEL_BASE};
use crate::hw::x86_64::placement::choose;
use crate::hw::x86_64::{cpu, loader};
use crate::{PAGE_SHIFT, PAGE_SIZE};

const PRESENT: u64 = 3;
const LARGE: u64 = 0x80;
const LARGE_SHIFT: u32 = 21;

/// How far things move, for the code that moves them (`start`).
#[repr(C)]
pub struct Move {
    image: usize,
    direct_map: usize,
}

unsafe extern "C" {
    static mut boot_l4: [u64; 512];
    static mut boot_l3_direct: [u64; 512];
    static mut boot_l2: [u64; 512];
    static mut boot_l2_image: [u64; 1024];
    static kernel_relocations: [u32; 2];
}

/// Chooses where image, direct map and the other regions go, and maps the first two there in the
/// boot page tables. Called once, at the address that the image is linked at; no pointer that it
/// makes is used after it.
#[unsafe(no_mangle)]
extern "C" fn nucleus_place(kind: u32, info: u32) -> Move {
    cpu::detect();
    let to = find(kind, info);
    let image = layout::image();
    let physical = |at: usize| (at - KERNEL_BASE) as u64;
    // SAFETY: only this CPU runs, in tables that map the image as before until `start` loads them;
    // the old direct map is not used any more.
    unsafe {
        let pages = addr_of_mut!(boot_l2_image).cast::<u64>();
        let first = (image.start >> LARGE_SHIFT) as usize;
        let last = ((image.end - 1) >> LARGE_SHIFT) as usize;
        for page in first..=last {
            let entry = (page as u64) << LARGE_SHIFT | LARGE | PRESENT;
            pages
                .add((to.image >> LARGE_SHIFT) + page)
                .write_volatile(entry);
        }
        if to.direct_map != 0 {
            let start = DIRECT_MAP + to.direct_map;
            let table = addr_of_mut!(boot_l3_direct).cast::<u64>();
            let lower = physical(addr_of_mut!(boot_l2) as usize);
            for n in 0..4 {
                let entry = (lower + (n * PAGE_SIZE) as u64) | PRESENT;
                table.add((start >> 30 & 511) + n).write_volatile(entry);
            }
            let root = addr_of_mut!(boot_l4).cast::<u64>();
            let entry = physical(table as usize) | PRESENT;
            root.add(start >> 39 & 511).write_volatile(entry);
        }
    }
    to
}

/// Chooses, unless the command line says no; moves the regions that nothing uses yet.
#[inline(never)]
fn find(kind: u32, info: u32) -> Move {
    let stay = Move {
        image: 0,
        direct_map: 0,
    };
    // What is wrong is found again, and told, when there is a console.
    let Ok(found) = loader::read_all(kind, info.into()) else {
        return stay;
    };
    let hash = Blake2s256::new().chain_update(cpu::time_stamp().to_le_bytes());
    let hash = hash.chain_update(found.seed.unwrap_or_default());
    let words = [(); 4].map(|()| cpu::processor_random().unwrap_or(0).to_le_bytes());
    let hash = hash.chain_update(words.as_flattened());
    let derive = |purpose: u64| -> [u8; 32] {
        let hash = hash.clone().chain_update(purpose.to_le_bytes());
        hash.finalize().into()
    };
    if found.seed.is_some() {
        // For the random pool, which learns nothing of the placement.
        loader::keep_seed(&derive(0));
    }
    // Everything stays where it was linked.
    if options::last_value(found.command_line(), "kaslr", Some) == Some("off") {
        return stay;
    }
    let mut drawn = 0;
    let below = |limit: u64| {
        drawn += 1;
        let [a, b, c, d, e, f, g, h, ..] = derive(drawn);
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) % limit
    };
    let memory_end = found
        .memory
        .ranges()
        .last()
        .map_or(0, |range| range.end << PAGE_SHIFT);
    let to = choose(below, layout::image().end, memory_end);
    layout::move_regions(to.regions);
    // SAFETY: counts that the linker, or the tool that made the table, wrote.
    let has_table = unsafe { (&raw const kernel_relocations).read_volatile() } != [0, 0];
    Move {
        image: if has_table { to.image } else { 0 },
        direct_map: to.direct_map,
    }
}
