//! `/proc/net/unix`, and what netlink tells of local sockets.

use alloc::{format, sync::Arc, vec::Vec};

use super::end::{self, End, Stage};

/// `__SO_ACCEPTCON` of Linux.
const ACCEPTS: u32 = 1 << 16;
const UNCONNECTED: u32 = 1;
const CONNECTING: u32 = 2;
const CONNECTED: u32 = 3;

/// Passes on the text: a line a socket.
pub fn list(out: &mut dyn FnMut(&[u8])) {
    out(b"Num       RefCount Protocol Flags    Type St Inode Path\n");
    for end in end::all() {
        let (flags, state) = match &*end.stage.lock() {
            Stage::Listening(_) => (ACCEPTS, UNCONNECTED),
            Stage::Connecting => (0, CONNECTING),
            Stage::Connected => (0, CONNECTED),
            Stage::Fresh | Stage::Closed => (0, UNCONNECTED),
        };
        // The first column is an address that others than root never see.
        let line = format!(
            "{:016x}: {:08X} {:08X} {flags:08X} {:04X} {state:02X} {:5}",
            0,
            Arc::strong_count(&end).saturating_sub(1),
            0,
            end.common.kind,
            end.common.inode
        );
        out(line.as_bytes());
        if let Some(name) = end.name() {
            out(b" ");
            out(&name.text());
        }
        out(b"\n");
    }
}

/// One socket.
pub struct Entry {
    /// `SOCK_*`.
    pub kind: u32,
    /// As a state of TCP: connected, closed, listening.
    pub state: u8,
    pub inode: u64,
    /// The name as it stands in an address.
    pub name: Option<Vec<u8>>,
    /// The inode of the other end.
    pub peer: Option<u64>,
    /// Bytes or connections that wait, and the most connections.
    pub waiting: u32,
    pub room: u32,
    /// The user that has made it.
    pub owner: u32,
    /// What is shut: 1 for receiving, 2 for sending.
    pub shut: u8,
}

/// Lists all sockets.
pub fn entries() -> impl Iterator<Item = Entry> {
    end::all().map(|end| entry(&end))
}

fn entry(end: &Arc<End>) -> Entry {
    let (state, waiting, room) = match &*end.stage.lock() {
        Stage::Listening(listener) => (10, listener.waiting.len() as u32, listener.backlog),
        Stage::Connected => (1, 0, 0),
        Stage::Connecting => (2, 0, 0),
        Stage::Fresh | Stage::Closed => (7, 0, 0),
    };
    let name = end.name().map(|name| {
        let address = name.address();
        address.bytes().get(2..).unwrap_or(&[]).to_vec()
    });
    Entry {
        kind: end.common.kind,
        state,
        inode: end.common.inode,
        name,
        peer: end.peer_inode(),
        waiting,
        room,
        owner: end.common.owner.0,
        shut: u8::from(end.is_receive_shut()) | u8::from(end.is_send_shut()) << 1,
    }
}
