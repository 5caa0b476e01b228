//! The flags and choices among a call's arguments.

use abi::Result;

use super::Call;
use crate::flags::{Caller, FlagSet};

impl Call<'_> {
    /// Returns the caller for [`FlagSet::check`] where the value is not an argument by itself.
    pub fn caller(&self) -> Caller {
        Caller {
            number: self.number,
            compatible: self.own.compatible_call,
        }
    }

    /// Argument `n` as flags of `set`, of which unknown ones are counted and refused, or left out
    /// where `set` says so.
    ///
    /// # Errors
    /// The set's own.
    #[inline]
    pub fn flags(&self, n: usize, set: &FlagSet) -> Result<u32> {
        self.known(u64::from(self.unsigned(n)), set)
    }

    /// Argument `n` as one of the values of `set`; unknown ones are counted and refused.
    ///
    /// # Errors
    /// The set's own.
    #[inline]
    pub fn choice(&self, n: usize, set: &FlagSet) -> Result<u32> {
        self.known(u64::from(self.unsigned(n)), set)
    }

    fn known(&self, value: u64, set: &FlagSet) -> Result<u32> {
        set.check(self.caller(), value).map(|known| known as u32)
    }
}
