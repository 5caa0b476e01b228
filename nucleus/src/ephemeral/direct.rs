//! The backend for frames that the direct map reaches: nothing to allocate, nothing to invalidate
//! (`ephemeral-mappings.txt` 4.3).
//!
//! A build with assertions pins the task to its CPU all the same, so that code which sleeps with a
//! mapping is found where mappings cost nothing, too.

use super::Mapping;
use crate::Frame;
use crate::frame::record::NONE;
use crate::hw::machine;

#[inline]
pub(super) fn alloc(frame: &Frame) -> Mapping<'_> {
    pin();
    Mapping {
        frame,
        address: frame.bytes(),
        slot: NONE,
    }
}

/// What a mapping in the direct map begins with, and [`free`] ends.
#[inline]
pub(super) fn pin() {
    if cfg!(debug_assertions) {
        machine::preempt_disable();
    }
}

#[inline]
pub(super) fn free() {
    if cfg!(debug_assertions) {
        super::unpin();
    }
}
