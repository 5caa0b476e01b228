//! The words of the Linux ABI that floors above the nucleus share: error numbers, to which the
//! nucleus's own errors and a refused allocation convert, and the constants and structures of
//! `linux-raw-sys`, which are not typed again anywhere.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod errno;

pub use errno::{Errno, Result};
pub use linux_raw_sys as raw;
