//! The words of the Linux ABI that every floor above the nucleus shares: error numbers, and the
//! constants and structures of `linux-raw-sys`, which are not typed again anywhere.
#![no_std]
#![forbid(unsafe_code)]

mod errno;

pub use errno::{Errno, Result};
pub use linux_raw_sys as raw;
