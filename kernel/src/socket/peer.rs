//! The credentials of the process at the other end.

use alloc::vec::Vec;

/// The credentials of the process at the other end (`SO_PEERCRED`, `SO_PEERGROUPS`).
#[derive(Clone, Debug)]
pub struct PeerCredentials {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}
