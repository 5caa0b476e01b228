//! All packet sockets, by inode.

use alloc::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use nucleus::sync::{Rank, SpinLock};

/// What is listed.
pub(super) trait Listed: Send + Sync {
    /// Shows it.
    fn entry(&self) -> Entry;
}

static SOCKETS: SpinLock<BTreeMap<u64, Weak<dyn Listed>>> =
    SpinLock::new(Rank::Leaf, BTreeMap::new());

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

/// Lists a socket from now on.
pub(super) fn add(inode: u64, socket: Weak<dyn Listed>) {
    SOCKETS.lock().insert(inode, socket);
}

/// Lists a socket no more.
pub(super) fn remove(inode: u64) {
    SOCKETS.lock().remove(&inode);
}

/// Visits all sockets.
pub fn list(mut visit: impl FnMut(Entry)) {
    let fill = |after: Option<u64>, take: &mut dyn FnMut(u64, Arc<dyn Listed>) -> bool| {
        use core::ops::Bound::{Excluded, Unbounded};
        let sockets = SOCKETS.lock();
        let mut rest = sockets.range((after.map_or(Unbounded, Excluded), Unbounded));
        rest.all(|(inode, socket)| match socket.upgrade() {
            Some(socket) => take(*inode, socket),
            None => true,
        });
    };
    nucleus::visit_by_key(fill, |socket| {
        visit(socket.entry());
        true
    });
}
