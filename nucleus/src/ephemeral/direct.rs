//! The backend for frames that the direct map reaches: nothing to allocate, nothing to invalidate
//! (`ephemeral-mappings.txt` 4.3).

use super::{Flags, Mapping, Unavailable};
use crate::Frame;
use crate::frame::record::NONE;

#[inline]
pub(super) fn alloc(frame: &Frame, flags: Flags) -> Result<Mapping<'_>, Unavailable> {
    let _ = flags;
    Ok(Mapping {
        frame,
        address: frame.bytes(),
        slot: NONE,
    })
}

#[inline]
pub(super) fn free(frame: &Frame, address: *mut u8) {
    debug_assert_eq!(frame.bytes(), address);
}
