//! Changes of the direct map, for frames that are not always in it.
//!
//! It is made of large pages. One that a part is taken out of is replaced by a table of level 1,
//! which was set aside for it at the start and says the same; so a change needs no memory.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::layout::{DIRECT_MAP_SIZE, TABLES_SIZE};
use super::space::{DATA, LARGE, PRESENT, WRITABLE, table, walk_kernel, walk_to};
use crate::hw::KernelPage;
use crate::hw::mitigations::ADDRESS;
use crate::{PAGE_SHIFT, PAGE_SIZE, PhysAddr};

use super::layout::{ptr, tables};

/// Frames that an entry of level 2 maps.
pub(super) const BLOCK: u32 = 512;

/// The first of the tables of level 1, one for each 2 MiB of memory in order; 0 without any.
static TABLES: AtomicU64 = AtomicU64::new(0);

/// Says where the tables of level 1 are.
pub fn set_tables(first: u64) {
    TABLES.store(first, Ordering::Relaxed);
}

/// Brings frames into the direct map that are not there. They are memory that was mapped there at
/// the start; the caller serializes changes of the direct map.
pub(crate) fn direct_show(frames: Range<u32>) {
    change(frames, true);
}

/// Takes frames out of the direct map that are there, as [`direct_show`] brings them in. TLBs hold
/// them until [`flush_kernel`](super::flush_kernel).
pub(crate) fn direct_hide(frames: Range<u32>) {
    change(frames, false);
}

pub(super) fn address(frame: u32) -> u64 {
    u64::from(frame) << PAGE_SHIFT
}

fn change(frames: Range<u32>, present: bool) {
    let mut at = frames.start;
    while at < frames.end {
        let block = at / BLOCK;
        let end = frames.end.min((block + 1) * BLOCK);
        let own = own_table(block);
        let entry = walk_to(ptr(PhysAddr(address(at))) as usize, 2);
        let whole = DATA | LARGE | address(block * BLOCK);
        // SAFETY: an entry of the kernel's tables, which are never freed.
        let old = unsafe { entry.read_volatile() };
        let is_table = old & (PRESENT | LARGE) == PRESENT;
        let is_own = !is_table || old & ADDRESS == own;
        if end - at == BLOCK && is_own {
            // An entry that leads to a table may be held by a CPU, which then would not look at
            // the new one.
            debug_assert!(
                !present || old & PRESENT == 0,
                "a table of the direct map becomes a large page without a flush"
            );
            // SAFETY: as above; the caller alone changes it.
            unsafe { entry.write_volatile(if present { whole } else { 0 }) };
        } else {
            if !is_table {
                fill(own, (old & LARGE != 0).then_some(block * BLOCK), DATA);
                // SAFETY: as above. The table says of each page what the entry said.
                unsafe { entry.write_volatile(own | PRESENT | WRITABLE) };
            }
            let of_block = match is_table {
                true => old & ADDRESS,
                false => own,
            };
            for frame in at..end {
                let page = if present { address(frame) | DATA } else { 0 };
                // SAFETY: a table of the direct map, set aside for this block.
                unsafe {
                    (&raw mut (*table(of_block))[(frame % BLOCK) as usize]).write_volatile(page);
                }
            }
            // A table that leads nowhere goes with the flush that is due: CPUs hold what leads to
            // tables, too, and would not look at a large page in its place.
            if !present && of_block == own && is_empty(own) {
                // SAFETY: as above.
                unsafe { entry.write_volatile(0) };
            }
        }
        at = end;
    }
}

/// Whether a table leads nowhere. Most are emptied upwards.
fn is_empty(at: u64) -> bool {
    // SAFETY: a table of the direct map, which the caller alone changes.
    (0..512)
        .rev()
        .all(|i| unsafe { (&raw const (*table(at))[i]).read_volatile() } == 0)
}

/// The table of level 1 that is set aside for a block.
pub(super) fn own_table(block: u32) -> u64 {
    TABLES.load(Ordering::Relaxed) + address(block)
}

/// Fills a table that no entry leads to: with all frames from `first` on, or with none.
pub(super) fn fill(at: u64, first: Option<u32>, rights: u64) {
    let entries = core::array::from_fn(|i| first.map_or(0, |it| address(it + i as u32) | rights));
    // SAFETY: set aside for this, and not in use.
    unsafe { table(at).write(entries) };
}

/// Calls `each` for each page of the kernel's half of the address space; the direct map is left out
/// unless `whole`.
pub(crate) fn each_kernel_page(whole: bool, each: &mut impl FnMut(KernelPage)) {
    let start = ptr(PhysAddr(0)) as usize;
    let of_tables = tables();
    walk_kernel(&mut |leaf| {
        let is_direct = leaf.va.wrapping_sub(start) < DIRECT_MAP_SIZE;
        let is_table = leaf.va.wrapping_sub(of_tables) < TABLES_SIZE;
        if whole || !is_direct && !is_table {
            for part in 0..leaf.frames {
                each(KernelPage {
                    address: leaf.va + part as usize * PAGE_SIZE,
                    frame: leaf.frame + part,
                    is_direct,
                    is_table,
                    is_writable: leaf.is_writable,
                });
            }
        }
    });
}
