//! Pipes and FIFOs: a chain of slices of pages between a writing and a reading end, never a byte ring.
//!
//! - [`Pipe`] (`queue`): the chain, and what ends it has; `writing`: how it is filled; `reading`: how it is drained.
//! - [`End`] (`end`): the open file of a pipe or FIFO.
//! - [`splice`]: moving slices between pipes and other files without copying.
//!
//! Locks, in the order in which they are taken:
//!
//! ```text
//! reading (one reader at a time copies)      Rank::PipeReading
//!    writing (one writer at a time copies)   Rank::Pipe
//!       queue (the chain and the counts)     Rank::Leaf, spinning, never held while bytes are copied
//! ```
//! So a reader and a writer on two CPUs copy at the same time and meet only to link and unlink a slice. Bytes that
//! a slice shows never change; the writer adds to the last frame only behind what any slice shows.

use crate::process::{signal, thread};

mod end;
mod fifo;
mod packets;
mod queue;
mod reading;
pub mod splice;
mod writing;

pub use end::{End, pair};
pub use fifo::open as open_fifo;
pub use queue::{DEFAULT_SLOTS, Pipe, max_size, set_max_size};

/// The current thread wrote to a pipe that nobody reads: SIGPIPE.
pub fn broken_pipe() {
    thread::with_current(|thread| {
        signal::send_to_thread(thread, signal::Info::kernel(abi::raw::general::SIGPIPE))
    });
}

#[cfg(test)]
mod tests;
