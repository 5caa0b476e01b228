//! Pipes and FIFOs: a byte queue ([`fbuf::queue`]) between writing and reading ends.
//!
//! - [`Pipe`] (`queue`): the queue and its wait queues; `state`: the counts of ends, and the limit
//!   in slices; `transfer`: reading and writing; `packets`: packets of `O_DIRECT`;
//! - [`End`] (`end`): the open file of a pipe or FIFO; `fifo`: how ends of a FIFO meet;
//! - [`splice`]: slices that move between pipes and other files without a copy.

mod end;
mod fifo;
mod packets;
mod queue;
pub mod splice;
mod state;
mod transfer;

pub use end::{End, pair};
pub use fifo::open as open_fifo;
pub use queue::Pipe;
pub use state::{DEFAULT_SLOTS, max_size, set_max_size};

#[cfg(test)]
mod tests;
