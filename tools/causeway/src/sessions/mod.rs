//! The host's side of sessions: programs in a guest whose streams are the host's.
//!
//! ```text
//! Program ── what to start ──▶ Handle ──▶ Switch ──▶ control port
//! Descriptor ◀── bytes ──▶ Input, Output ──▶ data and error ports
//! ```
//!
//! [`Ports`] are the sockets that QEMU connects to the guest's ports. One thread, the [`Switch`],
//! moves all bytes of all sessions and never blocks: a stream of the host that does not take its
//! bytes holds up only itself. Other threads speak to it through a [`Handle`] and hear from it by
//! the [`Observer`] that they give it with each session. The messages are in the crate `session`.

mod control;
mod descriptor;
#[cfg(test)]
mod fake;
mod flow;
mod handle;
mod ports;
mod program;
mod relay;
mod slot;
mod switch;
#[cfg(test)]
mod tests;

pub use descriptor::{Descriptor, give_up, null};
pub use flow::Record;
pub use handle::{Event, FIRST, Handle, Observer, Streams, broken};
pub use ports::Ports;
pub use program::Program;
pub use switch::Switch;
