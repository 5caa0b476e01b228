//! The alternate signal stack.

use abi::raw::general as raw;

use super::Action;

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
    /// From the fields of a `stack_t`.
    pub fn decode(base: u64, flags: u32, size: u64) -> AltStack {
        match flags & raw::SS_DISABLE {
            0 => AltStack {
                base,
                size,
                flags: flags & raw::SS_AUTODISARM,
            },
            _ => AltStack::default(),
        }
    }

    /// Where the stack of a handler begins that is to change to this one, coming from `sp`.
    pub fn top_for(&self, action: &Action, sp: u64) -> Option<u64> {
        let changes = action.has(raw::SA_ONSTACK) && self.size != 0 && !self.contains(sp);
        changes.then(|| self.base.wrapping_add(self.size))
    }

    /// A handler is about to run, perhaps on this stack.
    pub fn used(&mut self) {
        if self.flags & raw::SS_AUTODISARM != 0 {
            *self = AltStack::default();
        }
    }

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
