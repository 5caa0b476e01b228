//! Sockets: the objects of the calls in `linux/syscall/socket*.rs`.
//!
//! - [`Socket`]: what an address family offers; [`Family`] and [`family`]: the table of families.
//! - [`SocketFile`] (`file`): the open file over a socket: `read`, `write`, `poll`, `ioctl`,
//!   `fstat`.
//! - [`Common`] (`common`), [`options`]: the options that every socket has, and how values of
//!   options come and go.
//! - [`Address`]: a `sockaddr` as bytes, which the family reads and writes.
//! - [`Outgoing`] and [`Incoming`] (`message`): a message on its way, with its data as
//!   [`fbuf::Source`] or [`fbuf::Sink`]; [`control`]: the control messages that go with it.
//! - [`Timeout`]: how long a call may wait, and its answer when it may not.
//! - [`unix`]: the family of local sockets; [`inet`]: TCP and UDP; [`netlink`]: questions about the
//!   network; [`packet`]: packets of interfaces as they are.

mod address;
pub mod common;
pub mod control;
mod families;
mod file;
pub mod inet;
mod message;
pub mod netlink;
pub mod options;
pub mod packet;
mod peer;
mod socket_trait;
mod timeout;
pub mod unix;

pub use address::Address;
pub use common::{Common, Waited};
pub use families::family;
pub use file::SocketFile;
pub use message::{Incoming, MSG_ZEROCOPY, Outgoing};
pub use options::{Answer, Value};
pub use peer::PeerCredentials;
pub use socket_trait::{BACKLOG_MAX, Family, Shutdown, Socket, send};
pub use timeout::Timeout;
