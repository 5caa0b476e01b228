//! All packet sockets, in places that they keep.

use alloc::sync::Weak;

use nucleus::{
    OutOfMemory, Slots,
    sync::{Rank, SpinLock},
};

/// What is listed.
pub(super) trait Listed: Send + Sync {
    /// Shows it.
    fn entry(&self) -> Entry;
}

static SOCKETS: SpinLock<Slots<Weak<dyn Listed>>> = SpinLock::new(Rank::Leaf, Slots::new());

/// One socket, as `/proc/net/packet` shows it.
pub struct Entry {
    pub kind: u32,
    pub protocol: u16,
    pub interface: u32,
    /// Bytes that wait.
    pub waiting: usize,
    pub owner: u32,
    pub inode: u64,
}

/// Lists a socket from now on; returns its place.
///
/// # Errors
/// [`OutOfMemory`].
pub(super) fn add(socket: Weak<dyn Listed>) -> Result<usize, OutOfMemory> {
    Slots::add_with(socket, |socket, spare| SOCKETS.lock().add(socket, spare))
}

/// Lists a socket no more.
pub(super) fn remove(place: usize) {
    let socket = SOCKETS.lock().remove(place);
    drop(socket);
}

/// Visits all sockets; one that comes or goes meanwhile may be seen or not.
pub fn list(mut visit: impl FnMut(Entry)) {
    for place in 0.. {
        let socket = match SOCKETS.lock().get(place) {
            Some(socket) => socket.and_then(Weak::upgrade),
            None => return,
        };
        if let Some(socket) = socket {
            visit(socket.entry());
        }
    }
}
