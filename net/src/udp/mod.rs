//! UDP and UDP-Lite: sockets that exchange datagrams.
//!
//! - [`Socket`] (`socket`): what a program's descriptor leads to, its names and its queue;
//! - [`Table`] (`table`): who is bound where, and who gets a datagram;
//! - `report`: errors that come back;
//! - `transfer`: sending, receiving, readiness.
//!
//! A datagram on the loopback interface goes from the sender's call straight into the receiver's queue as an aggregate of
//! slices: it needs no header and no place in between. So of UDP-Lite's sums over a part of a datagram (RFC 3828) only
//! their extent is left, by which a receiver may refuse datagrams.

mod report;
mod socket;
mod table;
mod transfer;

pub use report::ErrorReport;
pub use socket::{Options, Protocol, Socket, Summary};
pub use table::Table;
pub use transfer::{Datagram, MAX_V4, MAX_V6, Manner, Readiness};
