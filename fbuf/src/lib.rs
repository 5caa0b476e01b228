//! Data on its way: slices of frames, chained into aggregates, never a byte ring.
//!
//! [`Sink`] and [`Source`] are the two ends of a transfer: a program's buffer, an aggregate, the kernel's own bytes.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod aggregate;
mod transfer;

pub use aggregate::{Aggregate, Slice};
pub use transfer::{BytesSink, BytesSource, Sink, Source};
