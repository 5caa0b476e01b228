//! The upper half of an inode: what names and mounts need of it.

use crate::{Kind, vnode::MountPoint};

/// What the upper half knows of an inode.
pub(super) struct State {
    pub mount_point: MountPoint,
}

impl State {
    /// Of an inode that has just come into memory.
    pub fn new(kind: Kind) -> State {
        let _ = kind;
        State {
            mount_point: MountPoint::new(),
        }
    }
}
