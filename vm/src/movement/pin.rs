//! Pages of a program that are held for an input or output past the processor (`uvm.txt` 3.2: `physio`).
//!
//! That they are wired stands in no entry: it is the handles of their frames, on the stack of who needs them, that keep them. Whoever
//! takes pages from programs leaves alone what has more handles than the page's owner and its mappings. An unmapped page is kept
//! by the handles as well, and what is written into it then reaches nobody.

use alloc::{sync::Arc, vec::Vec};
use core::sync::atomic::Ordering::SeqCst;
use nucleus::{Access, PAGE_SIZE, Prot, VirtRange, addr::USER_END, dma::Part, pmap};

use crate::map::{Fault, Map};

/// Bytes of an address space that stay in memory, and stay that program's, until this is dropped.
pub struct PinnedPages {
    map: Arc<Map>,
    access: Access,
    parts: Vec<Part>,
}

impl Map {
    /// Holds the bytes of `range`, which need not begin or end with pages: brought in and, for a write, copied if others share
    /// them. A device may then read them, or write them if `access` is a write; forks wait for such writes, because afterwards
    /// nobody could say whose page it was that was written.
    ///
    /// # Errors
    /// The first page's that can't be had; nothing is held then. [`Fault::OutOfMemory`] also for want of a list.
    pub fn pin(self: &Arc<Map>, range: VirtRange, access: Access) -> Result<PinnedPages, Fault> {
        if range.end > USER_END {
            return Err(Fault::NotMapped);
        }
        let pages = range.len().div_ceil(PAGE_SIZE) + 1;
        let mut parts = Vec::new();
        parts
            .try_reserve_exact(pages)
            .map_err(|_| Fault::OutOfMemory)?;
        {
            // No fork is under way while the map is locked, and the next one sees this.
            let _space = self.space.read();
            if access == Access::Write {
                self.write_pins.fetch_add(1, SeqCst);
            }
        }
        // From here on its end tells those who wait.
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
    /// Where the bytes are, in order.
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
            // No processor saw it.
            pmap::set_modified(&part.frame);
        }
        // First the frames: a fork may come as soon as it is told.
        self.parts.clear();
        if self.map.write_pins.fetch_sub(1, SeqCst) == 1 {
            self.map.unpinned.wake_all();
        }
    }
}
