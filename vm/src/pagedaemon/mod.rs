//! The pagedaemon: frames for those who need them (`uvm.txt` 6).
//!
//! - `registry`: what the daemon goes round.
mod registry;

pub(crate) use registry::{Hand, Registry, Token};
