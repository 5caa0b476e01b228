//! The pages of files whose last vnode is gone: they stay a while, and are evicted like all others.

use alloc::{collections::VecDeque, sync::Arc};

use nucleus::sync::{Rank, SpinLock};

use super::content::Content;

/// Files whose pages stay when no vnode is left.
const KEPT_MAX: usize = 128;

/// Identifies a file among all mounts: the mount's device number, and the server's number for the
/// file.
pub(super) type Key = (u64, u64);

/// Files without a vnode, the one that lost it last at the end.
static KEPT: SpinLock<VecDeque<(Key, Arc<Content>)>> = SpinLock::new(Rank::Leaf, VecDeque::new());

/// The last vnode of a file is gone: its pages stay a while.
pub(super) fn keep(key: Key, content: Arc<Content>) {
    let mut kept = KEPT.lock();
    let full = kept.len() >= KEPT_MAX;
    let oldest = if full { kept.pop_front() } else { None };
    let refused = match kept.try_reserve(1) {
        Ok(()) => {
            kept.push_back((key, content));
            None
        }
        Err(_) => Some(content),
    };
    drop(kept);
    // Both free pages: with no lock held.
    drop((oldest, refused));
}

/// Takes the kept pages of a file.
pub(super) fn take(key: Key) -> Option<Arc<Content>> {
    let mut kept = KEPT.lock();
    let at = kept.iter().position(|(other, _)| *other == key)?;
    kept.remove(at).map(|(_, content)| content)
}

/// Drops the kept pages of a mount that has ended.
pub(super) fn forget(device: u64) {
    loop {
        let mut kept = KEPT.lock();
        let Some(at) = kept.iter().position(|((of, _), _)| *of == device) else {
            return;
        };
        let gone = kept.remove(at);
        drop(kept);
        drop(gone);
    }
}
