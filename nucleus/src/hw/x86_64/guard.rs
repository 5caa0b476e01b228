//! The guard of page tables and descriptor tables: no mapping lets the kernel write them, the
//! direct map included, but the region of [`table_ptr`](super::layout::table_ptr).
//!
//! That region is at a random place of its own and maps the 2 MiB around each table. The code that
//! changes page tables reaches them there, so a write costs what it costs without the guard. A
//! write through the direct map, as by a wrong pointer or the address of a frame that an attacker
//! knows, ends in a page fault.
//!
//! Alternatives, by what they would cost; only this one was built:
//!
//! | | a write of an entry | a frame becomes a table |
//! |---|---|---|
//! | this | nothing more | nothing: blocks are guarded before |
//! | `CR0.WP` cleared for the moment | two serializing writes and interrupts off; TCG drops all translations each time | as here |
//! | protection keys for supervisor pages | two `wrmsr` | as here |
//! | a mapping of the CPU for the moment | an entry and `invlpg` | as here |
//!
//! Ephemeral mappings that were kept for a frame end when it is set aside
//! ([`end_unused`](crate::ephemeral)).
//!
//! # No shootdown
//!
//! A block is guarded when it is set aside for page tables, and stays guarded while the page-table
//! cache has it. Only then the direct map changes: this CPU invalidates its translations at once,
//! the others with the next flush that is waited for anyway ([`is_unsealed`]). A block that is
//! released may be written again; a CPU that still holds the old right faults once and goes on
//! ([`is_spurious`]).

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::cpu::{flush_global, irqs_disable, irqs_restore};
use super::direct::{BLOCK, address, fill, own_table};
use super::layout::{DIRECT_MAP_SIZE, image, is_guarded, ptr, tables};
use super::percpu;
use super::space::{DATA, LARGE, PRESENT, WRITABLE, invalidate_page, table, walk_down, walk_to};
use crate::hw::mitigations::ADDRESS;
use crate::hw::options;
use crate::{PAGE_SHIFT, PAGE_SIZE, PhysAddr, VirtAddr};

/// The page tables that were made at the start, in bytes.
static EARLY: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The pages of descriptor tables: where two ranges begin and end, in bytes.
static DESCRIPTORS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Other CPUs may hold rights to write frames that have been guarded since.
static UNSEALED: AtomicBool = AtomicBool::new(false);

/// Invalidations one by one; more are done by dropping all translations.
const MOST_PAGES: u32 = 32;

/// Whether the command line asks for the guard, or does not say: `guard=on`.
pub fn is_asked_for(command_line: &str) -> bool {
    options::last_value(command_line, "guard", Some) != Some("off")
}

/// Notes where the descriptor tables are, by physical addresses.
pub fn set_descriptors(places: [Range<u64>; 2]) {
    let ends = places.into_iter().flat_map(|it| [it.start, it.end]);
    for (place, end) in DESCRIPTORS.iter().zip(ends) {
        place.store(end, Ordering::Relaxed);
    }
}

/// Notes which page tables were made at the start.
pub fn set_early(early: Range<u64>) {
    EARLY[0].store(early.start, Ordering::Relaxed);
    EARLY[1].store(early.end, Ordering::Relaxed);
}

/// Whether nothing may let the kernel write a frame at any time: its text, constants, descriptor
/// tables, and the page tables that were made at the start.
pub(crate) fn is_constant(frame: u64) -> bool {
    let at = frame << PAGE_SHIFT;
    let image = image();
    if (image.start..image.rodata_end).contains(&at) {
        return true;
    }
    let [start, end] = [0, 1].map(|i| EARLY[i].load(Ordering::Relaxed));
    let is_descriptor = || at < image.end && descriptor_frames().any(|it| it == frame);
    is_guarded() && ((start..end).contains(&at) || is_descriptor())
}

/// The frames of descriptor tables.
pub fn descriptor_frames() -> impl Iterator<Item = u64> {
    let at = |i: usize| DESCRIPTORS[i].load(Ordering::Relaxed) >> PAGE_SHIFT;
    (at(0)..at(1)).chain(at(2)..at(3))
}

/// Takes the right to write frames, which are in the direct map, away from it, or gives it back.
/// The caller serializes changes of the direct map.
pub(crate) fn guard(frames: Range<u32>, guarded: bool) {
    if !is_guarded() {
        return;
    }
    if guarded {
        reach_tables(frames.clone());
    }
    each_part(frames.clone(), |part| {
        let block = part.start / BLOCK;
        let entry = walk_to(ptr(PhysAddr(address(part.start))) as usize, 2);
        // SAFETY: an entry of the kernel's tables, which are never freed, where it can be written;
        // the caller alone changes it.
        unsafe {
            let old = entry.read_volatile();
            let is_whole = part.len() == BLOCK as usize;
            if old & LARGE != 0 && is_whole {
                entry.write_volatile(with_right(old, guarded));
                return;
            }
            let of_block = if old & LARGE != 0 {
                let own = own_table(block);
                fill(own, Some(block * BLOCK), old & !(LARGE | ADDRESS));
                entry.write_volatile(own | PRESENT | WRITABLE);
                own
            } else {
                old & ADDRESS
            };
            for frame in part {
                let page = &raw mut (*table(of_block))[(frame % BLOCK) as usize];
                page.write_volatile(with_right(page.read_volatile(), guarded));
            }
        }
    });
    if guarded {
        invalidate(&frames);
        UNSEALED.store(true, Ordering::Release);
    }
}

fn with_right(entry: u64, guarded: bool) -> u64 {
    match guarded {
        true => entry & !WRITABLE,
        false => entry | WRITABLE,
    }
}

/// Has frames reached in the region of page tables, from now on and for good.
pub(crate) fn reach_tables(frames: Range<u32>) {
    if !is_guarded() {
        return;
    }
    each_part(frames, |part| {
        let block = part.start / BLOCK;
        let entry = walk_to(tables() + address(block * BLOCK) as usize, 2);
        // SAFETY: as in `guard`. An entry that is not present is in no TLB.
        unsafe {
            let old = entry.read_volatile();
            if old & PRESENT == 0 {
                entry.write_volatile(address(block * BLOCK) | DATA | LARGE);
            } else if old & LARGE == 0 {
                // The kernel's image is in this block: only what is asked for.
                for frame in part {
                    let page = &raw mut (*table(old & ADDRESS))[(frame % BLOCK) as usize];
                    page.write_volatile(address(frame) | DATA);
                }
            }
        }
    });
}

/// Calls `each` with the part of the frames in each block of 2 MiB.
fn each_part(frames: Range<u32>, mut each: impl FnMut(Range<u32>)) {
    let mut at = frames.start;
    while at < frames.end {
        let end = frames.end.min((at / BLOCK + 1) * BLOCK);
        each(at..end);
        at = end;
    }
}

/// Invalidates this CPU's translations of frames in the direct map.
fn invalidate(frames: &Range<u32>) {
    let is_block = frames.len() == BLOCK as usize && frames.start.is_multiple_of(BLOCK);
    if is_block || frames.len() <= MOST_PAGES as usize {
        let pages = if is_block { 1 } else { frames.len() };
        for page in 0..pages {
            let at = ptr(PhysAddr(address(frames.start))) as usize + page * PAGE_SIZE;
            invalidate_page(VirtAddr(at));
        }
        return;
    }
    let irqs = irqs_disable();
    flush_global();
    percpu::note_flush();
    irqs_restore(irqs);
}

/// Whether other CPUs may still hold rights to write frames that were guarded since the last call.
/// The caller flushes their TLBs.
#[inline]
pub(crate) fn is_unsealed() -> bool {
    UNSEALED.load(Ordering::Relaxed) && UNSEALED.swap(false, Ordering::AcqRel)
}

/// Whether a stale translation of this CPU, and not the page tables, refused a write in the direct
/// map: then it may be tried again.
pub fn is_spurious(at: VirtAddr, error: u64) -> bool {
    const PRESENT_AND_WRITE: u64 = 3;
    if error & PRESENT_AND_WRITE != PRESENT_AND_WRITE || !is_direct(at) {
        return false;
    }
    let frame = (at.0 - ptr(PhysAddr(0)) as usize) >> PAGE_SHIFT;
    let may_write = lets_write(at, frame as u64);
    if may_write {
        invalidate_page(at);
    }
    may_write
}

/// Whether the page tables let the kernel write the frame at this address now: one of the direct
/// map, or of an area of single pages.
pub(crate) fn lets_write(at: VirtAddr, frame: u64) -> bool {
    // SAFETY: as in `guard`.
    let entry = unsafe { walk_down(at.0, 1).0.read_volatile() };
    let leads_there = is_direct(at) || entry & ADDRESS == frame << PAGE_SHIFT;
    leads_there && entry & (PRESENT | WRITABLE) == PRESENT | WRITABLE
}

fn is_direct(at: VirtAddr) -> bool {
    at.0.wrapping_sub(ptr(PhysAddr(0)) as usize) < DIRECT_MAP_SIZE
}

/// Explains a fault at an address in the kernel, if the guard refused a write there.
pub fn explain(at: VirtAddr, error: u64) -> &'static str {
    let is_refused = error & 3 == 3;
    let image_address = at.0.wrapping_sub(super::layout::image_base()) as u64;
    let physical = match is_direct(at) {
        true => (at.0 - ptr(PhysAddr(0)) as usize) as u64,
        false => image_address,
    };
    let is_image = !is_direct(at) && image_address < image().end;
    if !is_refused || !is_direct(at) && !is_image {
        return "";
    }
    let frame = physical >> PAGE_SHIFT;
    if (image().start..image().rodata_end).contains(&physical) {
        return ": a write to the kernel's text or constants";
    }
    match descriptor_frames().any(|it| it == frame) {
        true => ": a write to a descriptor table",
        false => ": a write to a page table, which the guard refused",
    }
}
