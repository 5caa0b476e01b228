//! Supervisors: the process that started a guest's machine, and what others find of it.
//!
//! The supervisor of a guest is `causeway run` itself, or for `--detach` a daemon ([`daemon`]). It
//! moves the bytes of all sessions ([`crate::sessions`]) and decides how the guest ends
//! ([`supervise`]). A guest with a name has a [`place`]: a folder with a lock that the name's owner
//! holds, a socket ([`wire`]) by which other `causeway` commands ([`client`]) reach its [`server`],
//! and, if it is detached, the [`record`] of its output.

pub mod client;
mod daemon;
pub mod place;
pub mod record;
mod server;
mod supervise;
mod wire;

pub use daemon::detach;
pub use supervise::supervise;
