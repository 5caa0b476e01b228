//! Speculation that a thread does without (`PR_SET_SPECULATION_CTRL`).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use abi::{Errno, Result, raw::prctl as raw};
use nucleus::{
    processor::{self, Choice, Speculation},
    trap::UserContext,
};

/// What a thread has said of each kind, in `PR_SPEC_*`: enabled, disabled, disabled for good, or
/// disabled until it executes a program. Changed by the thread itself.
#[derive(Debug)]
pub struct Restrictions {
    stores: AtomicU32,
    branches: AtomicU32,
}

impl Default for Restrictions {
    fn default() -> Self {
        Restrictions {
            stores: AtomicU32::new(raw::PR_SPEC_ENABLE),
            branches: AtomicU32::new(raw::PR_SPEC_ENABLE),
        }
    }
}

impl Restrictions {
    /// Those of a child.
    pub fn copy(&self) -> Restrictions {
        Restrictions {
            stores: AtomicU32::new(self.stores.load(Relaxed)),
            branches: AtomicU32::new(self.branches.load(Relaxed)),
        }
    }

    fn kind(&self, kind: Speculation) -> &AtomicU32 {
        match kind {
            Speculation::Stores => &self.stores,
            Speculation::Branches => &self.branches,
        }
    }

    /// Returns what holds for a kind, in `PR_SPEC_*`.
    pub fn get(&self, kind: Speculation) -> u32 {
        match processor::choice_of(kind) {
            Choice::NotAffected => raw::PR_SPEC_NOT_AFFECTED,
            Choice::Always => raw::PR_SPEC_ENABLE,
            Choice::ByProgram => raw::PR_SPEC_PRCTL | self.kind(kind).load(Relaxed),
        }
    }

    /// Sets what holds for a kind.
    ///
    /// # Errors
    /// `ERANGE` for what is none of `PR_SPEC_*`, `EPERM` if it was disabled for good, or nothing
    /// can be done about branches; `ENXIO` if nothing can be done about stores.
    pub fn set(&self, kind: Speculation, value: u64) -> Result<()> {
        let can = processor::choice_of(kind) == Choice::ByProgram;
        if kind == Speculation::Stores && !can {
            return Err(Errno::ENXIO);
        }
        let value = u32::try_from(value).map_err(|_| Errno::ERANGE)?;
        let is_known = match value {
            raw::PR_SPEC_ENABLE | raw::PR_SPEC_DISABLE | raw::PR_SPEC_FORCE_DISABLE => true,
            raw::PR_SPEC_DISABLE_NOEXEC => kind == Speculation::Stores,
            _ => false,
        };
        if !is_known {
            return Err(Errno::ERANGE);
        }
        let place = self.kind(kind);
        let is_for_good = place.load(Relaxed) == raw::PR_SPEC_FORCE_DISABLE;
        match value {
            raw::PR_SPEC_ENABLE if !can => {}
            _ if !can => return Err(Errno::EPERM),
            raw::PR_SPEC_DISABLE if is_for_good => {}
            raw::PR_SPEC_ENABLE | raw::PR_SPEC_DISABLE_NOEXEC if is_for_good => {
                return Err(Errno::EPERM);
            }
            _ => place.store(value, Relaxed),
        }
        Ok(())
    }

    /// Whether the thread's branches share no predictions.
    pub fn has_own_branches(&self) -> bool {
        self.branches.load(Relaxed) != raw::PR_SPEC_ENABLE
    }

    /// The thread executes another program.
    pub fn executed(&self) {
        if self.stores.load(Relaxed) == raw::PR_SPEC_DISABLE_NOEXEC {
            self.stores.store(raw::PR_SPEC_ENABLE, Relaxed);
        }
    }

    /// Makes them hold for the thread's program.
    pub fn apply(&self, context: &mut UserContext) {
        let stores = self.stores.load(Relaxed) != raw::PR_SPEC_ENABLE;
        context.restrict(stores, self.has_own_branches());
    }
}
