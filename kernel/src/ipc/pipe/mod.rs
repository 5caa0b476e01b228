//! Pipes and FIFOs: a byte queue ([`fbuf::queue`]) between writing and reading ends.
//!
//! - [`Pipe`] (`queue`): the queue and its wait queues; `state`: the counts of ends, and the limit
//!   in slices; `limits`: what sizes there may be, of a pipe and of a user's pipes; `transfer`:
//!   reading and writing; `packets`: packets of `O_DIRECT`;
//! - [`End`] (`end`): the open file of a pipe or FIFO; `fifo`: how ends of a FIFO meet;
//! - [`splice`]: slices that move between pipes and other files without a copy.

mod end;
mod fifo;
mod limits;
mod packets;
mod queue;
pub mod splice;
mod state;
mod transfer;

pub use end::{End, pair};
pub use fifo::open as open_fifo;
pub use limits::{DEFAULT_SLOTS, hard, max_size, set_hard, set_max_size, set_soft, soft};
pub use queue::Pipe;

#[cfg(test)]
mod tests;
