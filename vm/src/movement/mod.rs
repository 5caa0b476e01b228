//! Moving pages between a program and other users.
//!
//! - `pin`: pages of a program that a device reads or writes.
//! - `access`: reading and writing an address space that is not the current one.

mod access;
mod pin;

pub use pin::PinnedPages;
