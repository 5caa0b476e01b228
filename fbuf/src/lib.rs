//! Data on its way: slices of frames, chained into aggregates, never a byte ring.
//!
//! From the bottom up:
//!
//! - [`Slice`]: part of one frame; [`Aggregate`]: a chain of slices (`fbufs.txt` 2.1.1). Data that
//!   was passed on in an aggregate is immutable: a change needs a copy.
//! - `io`: [`Sink`] and [`Source`], the two ends of a transfer. The code that moves data offers
//!   bytes of a frame, and the sink copies them or keeps the frame:
//!   - [`UserBuffers`]: a program's memory, one buffer or an array of them;
//!   - [`AggregateSink`], [`AggregateSource`]: a chain of slices, whose frames are kept;
//!     [`Moving`]: both, for the slices of one call;
//!   - [`BytesSink`], [`BytesSource`]: the kernel's own bytes; [`DiscardSink`]: drops them;
//!     [`Clipped`]: the first bytes of another source.
//! - [`queue`]: the byte queue of pipes, TCP and stream sockets of the Unix family.
//! - [`dag`]: aggregates of programs in fbufs, which are read once and with bounded work.
//! - [`region`]: fbufs of programs: domains, paths, chunks, messages.
//! - `switches`: the settings of this floor's mechanisms.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod aggregate;
pub mod counters;
pub mod dag;
mod io;
pub mod queue;
pub mod rank;
pub mod region;
mod slice;
mod switches;

pub use aggregate::Aggregate;
pub use io::{
    AggregateSink, AggregateSource, BytesSink, BytesSource, Clipped, DiscardSink, MAX_TRANSFER,
    Moving, Sink, Source, UserBuffers, moved,
};
pub use slice::{Slice, View};
pub use switches::SWITCHES;
