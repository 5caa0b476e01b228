//! A call of 32-bit programs, and how its arguments are translated.

use abi::Result;
use nucleus::{
    VirtAddr,
    user::{ToUser, compat_scratch},
};

use super::translate::Difference;
use crate::linux::syscall::{Call, Handler, TABLE};

/// One call of 32-bit programs.
pub(super) struct Row {
    /// Its number.
    pub(super) number: u32,
    /// The number of the 64-bit call whose body serves it.
    pub(super) native: u32,
    /// The translation around that body.
    pub(super) translation: Translation,
}

/// How a call is translated.
pub(super) enum Translation {
    /// By a list of differences, which may be empty.
    List(&'static [Difference]),
    /// By a function of its own.
    Shim(Handler),
}

/// Makes a row for a call that takes the same arguments in both worlds.
pub(super) const fn same(number: u32, native: u32) -> Row {
    differs(number, native, &[])
}

/// Makes a row for a call whose arguments are translated by a list.
pub(super) const fn differs(number: u32, native: u32, list: &'static [Difference]) -> Row {
    Row {
        number,
        native,
        translation: Translation::List(list),
    }
}

/// Makes a row for a call that a function of its own translates.
pub(super) const fn shim(number: u32, native: u32, shim: Handler) -> Row {
    Row {
        number,
        native,
        translation: Translation::Shim(shim),
    }
}

impl Call<'_> {
    /// Calls the body of a 64-bit call.
    pub(super) fn native(&mut self, number: u32) -> Result<usize> {
        TABLE[number as usize](self)
    }

    /// Calls the body of a 64-bit call with these arguments.
    pub(super) fn native_with(&mut self, number: u32, args: [u64; 6]) -> Result<usize> {
        self.args = args;
        self.native(number)
    }

    /// Makes argument `n` point to `value`.
    pub(super) fn lay<T: ToUser>(&mut self, n: usize, value: &T) -> Result<()> {
        let at = value.with_bytes(compat_scratch::put)?;
        self.args[n] = at.0 as u64;
        Ok(())
    }

    /// Makes argument `n` point to `len` bytes for the body to write, unless it is null; returns
    /// its former value.
    pub(super) fn lay_room(&mut self, n: usize, len: usize) -> Result<VirtAddr> {
        let to = self.address(n);
        if to.0 != 0 {
            let at = compat_scratch::reserve(len)?;
            self.args[n] = at.0 as u64;
        }
        Ok(to)
    }

    /// Two arguments as the lower and upper half of a number.
    pub(super) fn joined(&self, low: usize, high: usize) -> u64 {
        u64::from(self.unsigned(low)) | u64::from(self.unsigned(high)) << 32
    }
}
