//! Data on its way: slices of frames, chained into aggregates, never a byte ring.
//!
//! A [`Slice`] is part of one frame, an [`Aggregate`] a chain of slices (`fbufs.txt` 2.1.1). What has been
//! passed on in an aggregate is immutable: who wants to change it makes a copy.
//!
//! [`Sink`] and [`Source`] are the two ends of a transfer. Who moves data asks one of them for
//! bytes of a frame, and it copies or keeps the frame, as its nature is:
//!
//! - [`UserSink`], [`UserSource`]: a program's memory, one buffer or an array of them;
//! - [`AggregateSink`], [`AggregateSource`]: a chain of slices, frames kept rather than copied;
//! - [`BytesSink`], [`BytesSource`]: the kernel's own bytes.
//!
//! [`moved`] gives the result of a transfer that an error ended.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod aggregate;
mod bytes;
mod chain;
mod transfer;
mod user;

pub use aggregate::{Aggregate, Slice};
pub use bytes::{BytesSink, BytesSource};
pub use chain::{AggregateSink, AggregateSource};
pub use transfer::{Sink, Source, moved};
pub use user::{MAX_TRANSFER, UserSink, UserSource};
