//! The vnode layer's state of an inode in memory: its place in the tree, and state by file type.

use alloc::sync::Arc;
use core::sync::atomic::AtomicBool;

use nucleus::sync::{Rank, SpinLock};

use super::{directory::Directory, inode::Node};
use crate::{
    DenyWrite, Kind,
    device::Attachment,
    vnode::{MountPoint, Place},
};

/// The vnode layer's state of an inode.
pub(super) struct State {
    pub mount_point: MountPoint,
    /// The place in the tree: for several names, where it was found first. `None` for the root, and
    /// where no name is known.
    pub place: SpinLock<Option<Place<Node>>>,
    /// Created without a name: may get its first one.
    pub unnamed: AtomicBool,
    pub body: Body,
}

/// State by file type.
pub(super) enum Body {
    Regular(DenyWrite),
    Directory(Directory),
    Fifo(Attachment),
    Other,
}

impl State {
    /// Returns the state of an inode that was just read.
    pub fn new(kind: Kind) -> State {
        State {
            mount_point: MountPoint::new(),
            place: SpinLock::new(Rank::Leaf, None),
            unnamed: AtomicBool::new(false),
            body: match kind {
                Kind::Regular => Body::Regular(DenyWrite::new()),
                Kind::Directory => Body::Directory(Directory::new()),
                Kind::Fifo => Body::Fifo(Attachment::new()),
                _ => Body::Other,
            },
        }
    }

    /// Takes the reference to its parent directory.
    fn take_parent(&mut self) -> Option<Arc<Node>> {
        self.place.get_mut().take().map(|place| place.parent)
    }
}

impl Drop for State {
    /// Drops the parent directories iteratively, so that deep trees do not overflow the stack.
    fn drop(&mut self) {
        let mut parent = self.take_parent();
        while let Some(node) = parent {
            let inode = Arc::into_inner(node).map(|node| node.inode().clone());
            let last = inode.and_then(Arc::into_inner);
            parent = last.and_then(|mut inode| inode.state.take_parent());
        }
    }
}
