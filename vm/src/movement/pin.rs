//! Pages of a program that are pinned for a transfer by a device (`uvm.txt` 3.2: `physio`).
//!
//! No entry records the pin. It consists of references to the frames, held by the caller: page-out
//! and copy-on-write leave a frame alone that has more references than its owner and its mappings.
//! An unmapped page is kept by these references, too; data written to it is then lost.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::Ordering::SeqCst;
use nucleus::{Access, PAGE_SIZE, Prot, VirtRange, addr::USER_END, dma::Part, pmap};

use crate::map::{Fault, Map};

/// Bytes of an address space whose pages stay resident, and the address space's own, until this is
/// dropped.
pub struct PinnedPages {
    map: Arc<Map>,
    access: Access,
    parts: Vec<Part>,
}

impl Map {
    /// Pins the bytes of `range`, which need not be page-aligned: brings them in and, for a write,
    /// copies shared pages. A device may then read them, or write them if `access` is a write.
    /// Forks wait for such pins, since the owner of a page that is written across a fork would be
    /// undefined.
    ///
    /// # Errors
    /// That of the first page that cannot be brought in, with nothing pinned.
    /// [`Fault::OutOfMemory`] also if memory for the list is missing.
    pub fn pin(self: &Arc<Map>, range: VirtRange, access: Access) -> Result<PinnedPages, Fault> {
        if range.end > USER_END {
            return Err(Fault::NotMapped);
        }
        let pages = range.len().div_ceil(PAGE_SIZE) + 1;
        let parts = nucleus::try_vec(pages)?;
        {
            // No fork is under way while the map is locked, and the next one sees the count.
            let _space = self.space.read();
            if access == Access::Write {
                self.write_pins.fetch_add(1, SeqCst);
            }
        }
        // From here on dropping it wakes waiting forks.
        let mut held = PinnedPages {
            map: self.clone(),
            access,
            parts,
        };
        let mut at = range.start;
        while at < range.end {
            let (offset, page) = (at.page_offset(), at.page_floor());
            let len = (PAGE_SIZE - offset).min(range.end - at);
            let frame = self.resolve(page, access, |_| {
                let (frame, prot) = self.pmap.extract(page)?;
                (access != Access::Write || prot.contains(Prot::WRITE)).then_some(frame)
            })?;
            held.parts.push(Part { frame, offset, len });
            at = at + len;
        }
        Ok(held)
    }
}

impl PinnedPages {
    /// The bytes, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        if self.access != Access::Write {
            return;
        }
        for part in &self.parts {
            // The device's store left no modified bit.
            pmap::set_modified(&part.frame);
        }
        // The frames first: a fork may start as soon as it is woken.
        self.parts.clear();
        if self.map.write_pins.fetch_sub(1, SeqCst) == 1 {
            self.map.unpinned.wake_all();
        }
    }
}
