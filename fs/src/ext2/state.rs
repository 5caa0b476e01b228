//! What the upper half knows of an inode in memory: where it hangs, and what only inodes of one kind have.

use alloc::sync::Arc;
use core::sync::atomic::AtomicBool;

use nucleus::sync::{Rank, SpinLock};

use super::{directory::Directory, inode::Node};
use crate::{DenyWrite, Kind, device::Attachment, vnode::MountPoint};

/// What the upper half knows of an inode.
pub(super) struct State {
    pub mount_point: MountPoint,
    pub place: SpinLock<Hangs>,
    /// Made without a name: may get its first one.
    pub unnamed: AtomicBool,
    pub body: Body,
}

/// What only inodes of one kind have.
pub(super) enum Body {
    Regular(Regular),
    Directory(Directory),
    Fifo(Attachment),
    Other,
}

/// What a regular file has.
pub(super) struct Regular {
    pub text: DenyWrite,
    /// Somebody has its blocks for himself: see [`pinned`](super::pinned).
    pub pinned: AtomicBool,
}

/// Where an inode hangs: of a file with several names, where it was found first.
#[derive(Clone)]
pub(super) enum Hangs {
    /// The root, and what has no name that is known.
    Nowhere,
    In(Arc<Node>, Arc<[u8]>),
    /// Its last name was removed from there.
    Removed(Arc<Node>, Arc<[u8]>),
}

impl State {
    /// Of an inode that has just come into memory.
    pub fn new(kind: Kind) -> State {
        State {
            mount_point: MountPoint::new(),
            place: SpinLock::new(Rank::Leaf, Hangs::Nowhere),
            unnamed: AtomicBool::new(false),
            body: match kind {
                Kind::Regular => Body::Regular(Regular {
                    text: DenyWrite::new(),
                    pinned: AtomicBool::new(false),
                }),
                Kind::Directory => Body::Directory(Directory::new()),
                Kind::Fifo => Body::Fifo(Attachment::new()),
                _ => Body::Other,
            },
        }
    }

    /// Takes the directory in which it hangs or hung, which it keeps from its end.
    fn take_above(&mut self) -> Option<Arc<Node>> {
        match core::mem::replace(self.place.get_mut(), Hangs::Nowhere) {
            Hangs::Nowhere => None,
            Hangs::In(above, _) | Hangs::Removed(above, _) => Some(above),
        }
    }
}

impl Drop for State {
    /// Lets go of the directories above, however many there are, one after the other and not one inside the other.
    fn drop(&mut self) {
        let mut above = self.take_above();
        while let Some(node) = above {
            let inode = Arc::into_inner(node).map(|node| node.inode().clone());
            let last = inode.and_then(Arc::into_inner);
            above = last.and_then(|mut inode| inode.state.take_above());
        }
    }
}
