//! Values of socket options on their way from and to a program.

use alloc::vec::Vec;
use core::time::Duration;

use abi::{Errno, Result};
use nucleus::{
    VirtAddr,
    user::{self, Plain, Unpadded, as_bytes},
};

/// The value that a program gives to `setsockopt`. It lies in the program's memory: read it once.
#[derive(Clone, Copy, Debug)]
pub struct Value {
    pub at: VirtAddr,
    /// Bytes.
    pub len: usize,
    /// The program's structures have the 32-bit layout.
    pub compatible: bool,
}

impl Value {
    /// An `int`.
    ///
    /// # Errors
    /// `EINVAL` if it is too short, `EFAULT`.
    pub fn int(&self) -> Result<i32> {
        self.read()
    }

    /// A structure.
    ///
    /// # Errors
    /// `EINVAL` if it is too short, `EFAULT`.
    pub fn read<T: Plain>(&self) -> Result<T> {
        if self.len < size_of::<T>() {
            return Err(Errno::EINVAL);
        }
        Ok(user::read(self.at)?)
    }

    /// Its first bytes, as many as there are and `to` holds; returns how many.
    ///
    /// # Errors
    /// `EFAULT`.
    pub fn bytes(&self, to: &mut [u8]) -> Result<usize> {
        let n = self.len.min(to.len());
        user::copy_in(&mut to[..n], self.at)?;
        Ok(n)
    }

    /// A `struct timeval`; `old`: of the program's own layout rather than of 64-bit numbers. `None`
    /// for ever.
    ///
    /// # Errors
    /// `EINVAL` if it is too short, `EDOM` for impossible microseconds, `EFAULT`.
    pub fn timeval(&self, old: bool) -> Result<Option<Duration>> {
        let [seconds, microseconds] = if old && self.compatible {
            self.read::<[i32; 2]>()?.map(i64::from)
        } else {
            self.read::<[i64; 2]>()?
        };
        let microseconds = u64::try_from(microseconds)
            .ok()
            .filter(|&us| us < 1_000_000)
            .ok_or(Errno::EDOM)?;
        let Ok(seconds) = u64::try_from(seconds) else {
            // Linux takes a negative time for "at once", the shortest there is.
            return Ok(Some(Duration::from_nanos(1)));
        };
        let time = Duration::from_secs(seconds).saturating_add(Duration::from_micros(microseconds));
        Ok((!time.is_zero()).then_some(time))
    }
}

/// The answer of `getsockopt`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// An `int`; a shorter buffer gets its first bytes.
    Int(i32),
    /// Bytes; a shorter buffer gets the first of them.
    Bytes(Vec<u8>),
    /// Bytes that are useless in part: `ERANGE`, and the length needed, for a shorter buffer.
    Whole(Vec<u8>),
}

impl Answer {
    /// A structure.
    pub fn of<T: Unpadded>(value: &T) -> Answer {
        Answer::Bytes(as_bytes(value).to_vec())
    }

    /// Zero or one.
    pub fn flag(on: bool) -> Answer {
        Answer::Int(on.into())
    }
}
