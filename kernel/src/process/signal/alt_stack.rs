//! The alternate signal stack.

use abi::raw::general as raw;

/// The alternate signal stack of a thread (`sigaltstack`).
#[derive(Clone, Copy, Default, Debug)]
pub struct AltStack {
    pub base: u64,
    /// Bytes; 0 if there is none.
    pub size: u64,
    /// `SS_AUTODISARM` or 0.
    pub flags: u32,
}

impl AltStack {
    /// Whether a stack pointer lies on it.
    pub fn contains(&self, sp: u64) -> bool {
        self.flags & raw::SS_AUTODISARM == 0 && sp > self.base && sp - self.base <= self.size
    }

    /// `ss_flags` as a program sees them when its stack pointer is `sp`.
    pub fn visible_flags(&self, sp: u64) -> u32 {
        let state = if self.size == 0 {
            raw::SS_DISABLE
        } else if self.contains(sp) {
            raw::SS_ONSTACK
        } else {
            0
        };
        state | self.flags
    }
}
