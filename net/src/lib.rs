//! Protocols: TCP and UDP over IPv4 and IPv6, on the loopback interface.
//!
//! What programs see of sockets is here, without Linux's structures: a [`tcp::Socket`] is bound, listens, accepts,
//! connects, sends, receives and is shut; a [`udp::Socket`] exchanges datagrams. No call waits: who must wait does
//! so on the socket's [`Waits`], which are woken after each change.
//!
//! - [`address`]: which addresses are this machine's, and what a bound name covers;
//! - [`ports`]: who is bound where, and Linux's rules for sharing;
//! - [`stream`]: the bytes between the two ends of a connection, a chain of slices of pages;
//! - [`tcp`]: connections. Their segments and states are `smoltcp`'s, behind `tcp::wire`, which is all that a stack of
//!   our own has to replace;
//! - [`udp`]: datagrams; [`raw`]: packets that programs make themselves, as `ping` does;
//! - [`Stack`]: all of it together; a kernel has one, a test makes its own.
//!
//! # Following a page
//!
//! Both ends of a connection are on this machine, so their data need not become segments. Once a handshake has
//! brought two ends together they are *fused*: a send puts slices into the very chain that the other end reads from. The
//! bytes are copied in and out of programs and nowhere else; `sendfile` doesn't copy them at all. Handshakes, the ends of
//! streams, resets and their order remain those of TCP segments, which travel over the wire inside `tcp`.
//!
//! # Locks
//!
//! ```text
//! stream's reading, stream's writing   Rank::PipeReading, Rank::Pipe: who copies
//!    stack (connections, ports)        Rank::Net: sleeping, held for the exchange of segments
//!       socket's state, stream's chain Rank::Leaf: spinning, a few loads and stores
//! ```
//! Sending and receiving on an established connection takes no lock of the stack.
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod address;
pub mod ports;
pub mod raw;
mod stack;
pub mod stream;
pub mod tcp;
pub mod udp;
mod waits;

pub use address::Family;
pub use stack::Stack;
pub use waits::Waits;
