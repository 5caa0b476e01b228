//! What the kernel's own page tables lead to, for tests and for `/proc/causeway/mapped`.

use crate::VirtAddr;
use crate::frame::record::{Type, find};
use crate::frame::{DirectMap, RING_SLOTS, direct_map, is_exposed};
use crate::hw::KernelPage;
use crate::hw::machine::{self, WINDOW_RING};
use crate::pmap::audit::{Report, Seen, Violation};

use super::{uncached, window};

/// How a data frame is mapped in the kernel's half of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the direct map: with `directmap=kernel`, what the kernel shares with devices and programs
    /// for long.
    Direct,
    /// At an address of this CPU, which touches it now.
    Own(usize),
    /// At an address of the cache, which has so many users now.
    Cached(usize),
    /// At a single address, which is in use.
    Single,
    /// Anywhere else.
    Elsewhere,
}

/// A data frame that the kernel's page tables lead to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The kernel's address.
    pub address: usize,
    /// The frame's number.
    pub frame: u64,
    /// How it is mapped.
    pub place: Place,
}

/// Calls `each` for each data frame (a page of a program or file, and what the kernel shares with
/// devices) that the kernel's half of the address space maps at the time. The direct map is left
/// out where it has all frames. May sleep.
pub fn each_mapped(mut each: impl FnMut(Found)) {
    let _addresses = window::keep_addresses();
    let whole = direct_map() != DirectMap::All;
    machine::each_kernel_page(whole, &mut |page| {
        let KernelPage { address, frame, .. } = page;
        if find(frame).is_none_or(|record| record.kind() != Type::Writable) {
            return;
        }
        let place = match machine::window_slot(address) {
            _ if page.is_direct => Place::Direct,
            Some(slot) => place_in_window(slot),
            None => Place::Elsewhere,
        };
        each(Found {
            address,
            frame,
            place,
        });
    });
}

/// Audits what the kernel's own page tables let the kernel write: none of its text and constants.
/// May sleep.
pub fn audit_kernel(seen: &mut Seen, report: Report<'_>) {
    let _addresses = window::keep_addresses();
    machine::each_kernel_page(true, &mut |page| {
        seen.kernel_pages += 1;
        let is_suspect = page.is_writable && !page.is_table && is_guarded(page.frame);
        // Both may have changed since the entry was read: a block of the heap is unmapped, and its
        // frame becomes a table.
        let changes = !machine::is_constant(page.frame);
        if is_suspect && (!changes || is_exposed(page.frame as u32, VirtAddr(page.address))) {
            report(Violation::Writable {
                address: page.address,
                frame: page.frame,
            });
        }
    });
}

/// Whether no mapping but the one where page tables are changed may let the kernel write the frame.
fn is_guarded(frame: u64) -> bool {
    let is_table = || find(frame).is_some_and(|record| record.is_cached());
    machine::is_constant(frame) || machine::is_guarded() && is_table()
}

fn place_in_window(slot: usize) -> Place {
    if slot < RING_SLOTS {
        return Place::Own(slot / WINDOW_RING);
    }
    match uncached::owns(slot as u32) {
        true => Place::Single,
        false => Place::Cached(window::users(slot as u32)),
    }
}
