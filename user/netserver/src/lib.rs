//! UDP/IP as an ordinary process that serves others through fbufs (`fbufs.txt` 4).
//!
//! - [`UdpSocket`]: a client's socket, whose datagrams are aggregates of fbufs.
//! - [`Server`]: clients, their ports and limits, over a [`Link`].
//! - [`Stack`]: UDP, IP and ICMP echo; [`fragments`]: datagrams cut and put together without a
//!   copy.
//! - [`wire`]: headers; [`protocol`]: what clients and the server say to each other.
//!
//! The document is `docs/netserver.md`.

use std::io;

mod client;
mod clients;
pub mod fragments;
mod headers;
mod interface;
mod line;
mod link;
mod poll;
pub mod protocol;
mod server;
mod stack;
pub mod wire;

pub use client::{Incoming, Options, UdpSocket};
pub use clients::Limits;
pub use link::{Card, Link, Start};
pub use server::Server;
pub use stack::{Config, Counts, Datagram, Stack};

/// Returns the error of a number.
pub(crate) fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// The examples of the document.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/netserver.md")]
struct Document;
