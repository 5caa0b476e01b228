//! The place of a byte of shared memory, the same for all address spaces.

use alloc::sync::Arc;

use nucleus::{PAGE_SIZE, VirtAddr};

use crate::map::Map;

impl Map {
    /// Identifies a byte of shared memory across address spaces, for futexes: the address of its
    /// object and the offset there, or the amap's for private memory that children share. `None` if
    /// `va` is in no such mapping.
    pub fn shared_location(&self, va: VirtAddr) -> Option<(usize, u64)> {
        let space = self.space.read();
        let entry = space.lookup(va)?;
        if entry.shares_amap() {
            let amap = Arc::as_ptr(entry.amap.as_ref()?);
            let byte = (entry.key(va) as u64)
                .wrapping_mul(PAGE_SIZE as u64)
                .wrapping_add(va.page_offset() as u64);
            return Some((amap as usize, byte));
        }
        let entry = Some(entry).filter(|entry| entry.shared)?;
        let object = entry.object.as_ref()?;
        let page = entry.index(object, va);
        let byte = page * PAGE_SIZE as u64 + va.page_offset() as u64;
        Some((
            core::ptr::from_ref(object.pager.shown_object()) as usize,
            byte,
        ))
    }
}
