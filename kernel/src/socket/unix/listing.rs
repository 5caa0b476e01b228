//! `/proc/net/unix`.

use alloc::{format, sync::Arc};

use super::end::{self, Stage};

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
