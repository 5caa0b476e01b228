//! Protocols: TCP, UDP, UDP-Lite and raw packets over IPv4 and IPv6.
//!
//! Sockets are here without Linux's structures: a [`tcp::Socket`] binds, listens, accepts,
//! connects, sends, receives and is shut; a [`datagram::Socket`] exchanges datagrams. No call
//! sleeps for what others do: callers wait in the socket's [`Waits`], which are woken after each
//! change.
//!
//! From the bottom up; a module uses only those above its line:
//!
//! - `waits`: a socket's wait queues; `timer`: the alarm; `due`: timers under a spin lock;
//!   `switches`: `loopback=ip`;
//! - [`packet`]: headers and slices, checksums; [`link`]: devices, loopback among them, and a
//!   simulated link for tests;
//! - [`ip`]: interfaces, addresses, routes, neighbours, fragments, messages of ICMP;
//! - [`configure`]: addresses by DHCP, and by what routers advertise;
//! - [`ports`]: bindings, and Linux's rules for sharing a port;
//! - [`stream`]: the bytes of one direction of a connection, a chain of slices of pages;
//! - [`tcp`]: connections, by a state machine that acts on segments; [`datagram`]: UDP; UDP-Lite
//!   and raw sockets, which reach this machine only;
//! - [`Stack`]: all protocols of one machine; a kernel has one, a test creates its own.
//!
//! # Following a page
//!
//! *Inside the machine* data need not become segments. After the handshake the two ends are
//! *fused*: a send puts slices into the very chain from which the other end reads. Bytes are
//! copied in and out of programs and nowhere else; `sendfile` does not copy them at all.
//! Handshakes, ends of streams, resets and their order remain those of TCP segments, which travel
//! over the wire inside `tcp`.
//!
//! *To another machine*, and with `loopback=ip` to this one:
//!
//! ```text
//! send ─ stream ─ block (segments; slices stay until acknowledged) ─ ip (headers) ─ device
//! receive ─ stream ─ block (order) ─ lookup (which connection) ─ ip (checks) ─ device
//! ```
//! A payload is slices all the way; a header is read from a copy of its bytes and clipped off.
//!
//! # Locks
//!
//! ```text
//! stream's reading, stream's writing   QUEUE_READING, QUEUE_WRITING: one copier each
//!    protocol (connections, ports)     NET: sleeping, for beginnings, ends and changes of state
//!    addresses by DHCP and routers     NET_CONFIGURE: sleeping
//!       one connection with packets    NET_CONNECTION: its block, while segments are made
//!          socket's state, stream's    Leaf: spinning, a few loads and stores
//!          chain, lookup, tables of ip
//! ```
//! Sending and receiving on an established connection takes no lock of the protocol. A packet
//! finds its connection by one of 64 locks.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(target_os = "none", no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod configure;
pub mod counters;
pub mod datagram;
mod due;
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
