//! Protocols: TCP, UDP, UDP-Lite and raw packets over IPv4 and IPv6, on the loopback interface.
//!
//! Sockets are here without Linux's structures: a [`tcp::Socket`] binds, listens, accepts,
//! connects, sends, receives and is shut; a [`datagram::Socket`] exchanges datagrams. No call
//! sleeps: callers wait in the socket's [`Waits`], which are woken after each change.
//!
//! From the bottom up; a module uses only those above its line:
//!
//! - `link`: the loopback interface; `waits`: a socket's wait queues; `timer`: the alarm;
//! - [`ip`]: this machine's addresses, packets, checksums, echo replies;
//! - [`ports`]: bindings, and Linux's rules for sharing a port;
//! - [`stream`]: the bytes between the two ends of a connection, a chain of slices of pages;
//! - [`tcp`]: connections, by a state machine that acts on segments; [`datagram`]: UDP, UDP-Lite
//!   and raw sockets;
//! - [`Stack`]: all protocols of one machine; a kernel has one, a test creates its own.
//!
//! # Following a page
//!
//! Both ends of a connection are on this machine, so their data need not become segments. After the
//! handshake the two ends are *fused*: a send puts slices into the very chain from which the other
//! end reads. Bytes are copied in and out of programs and nowhere else; `sendfile` does not copy
//! them at all. Handshakes, ends of streams, resets and their order remain those of TCP segments,
//! which travel over the wire inside `tcp`.
//!
//! # Locks
//!
//! ```text
//! stream's reading, stream's writing   QUEUE_READING, QUEUE_WRITING: one copier each
//!    protocol (connections, ports)     NET: sleeping, held while segments are exchanged
//!       socket's state, stream's chain Leaf: spinning, a few loads and stores
//! ```
//! Sending and receiving on an established connection takes no lock of the protocol.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod counters;
pub mod datagram;
pub mod ip;
pub mod link;
pub mod packet;
pub mod ports;
pub mod rank;
mod stack;
pub mod stream;
mod switches;
pub mod tcp;
mod timer;
mod waits;

pub use ip::Family;
pub use stack::Stack;
pub use switches::SWITCHES;
pub use waits::{Readiness, Waits};
