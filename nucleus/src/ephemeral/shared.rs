//! Mappings that any CPU uses, and that may live long: the paper's default
//! (`ephemeral-mappings.txt` 4.1).

use super::{LENT, Mapping, Unavailable, direct, is_direct, window};
use crate::Frame;
use crate::ephemeral::Flags;
use crate::frame::record::NONE;
use crate::hw::machine;

/// A mapping that owns a handle of its frame. Several of the same frame are one mapping, counted.
pub struct Shared {
    frame: Frame,
    /// The address's number in the window, [`NONE`] for the direct map.
    slot: u32,
}

impl Shared {
    /// Maps a frame until this is dropped. Sleeps if no mapping is free and `flags` don't say
    /// otherwise. The caller holds no spin lock.
    ///
    /// # Errors
    /// See [`Unavailable`]; only with the flags named there.
    pub fn new(frame: Frame, flags: Flags) -> Result<Shared, Unavailable> {
        let slot = match is_direct(&frame) {
            true => NONE,
            false => window::share(&frame, flags)?,
        };
        Ok(Shared { frame, slot })
    }

    /// The frame mapped.
    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    /// The mapping for a use by this task on its CPU, to which the task is pinned meanwhile.
    pub fn here(&self) -> Mapping<'_> {
        if self.slot == NONE {
            return direct::alloc(&self.frame);
        }
        machine::preempt_disable();
        window::check_here(self.slot);
        Mapping::at_slot(&self.frame, self.slot | LENT)
    }

    /// How many share the mapping, this one included; 1 for a frame in the direct map.
    pub fn sharers(&self) -> usize {
        match self.slot {
            NONE => 1,
            slot => window::users(slot),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.slot != NONE {
            window::unshare(self.slot);
        }
    }
}
