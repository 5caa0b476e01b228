//! Who asks for a file.

use alloc::vec::Vec;

use abi::raw::general::{S_ISGID, S_ISVTX};

use crate::{Attributes, Kind};

/// May read.
pub const READ: u32 = 4;
/// May write, or make and remove entries.
pub const WRITE: u32 = 2;
/// May execute, or search.
pub const EXECUTE: u32 = 1;

/// Who asks.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Uid 0: passes every check but execution of a file that nobody may execute.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether `gid` is one of its groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether `want` (4 read, 2 write, 1 execute or search, added up) is allowed.
    pub fn may(&self, attributes: &Attributes, want: u32) -> bool {
        let Attributes { kind, mode, .. } = *attributes;
        self.may_by(kind, mode, attributes.uid, attributes.gid, want)
    }

    /// As [`may`](Credentials::may) for a file of this kind, mode and owner.
    pub fn may_by(&self, kind: Kind, mode: u32, uid: u32, gid: u32, want: u32) -> bool {
        if self.is_root() {
            return want & EXECUTE == 0 || kind == Kind::Directory || mode & 0o111 != 0;
        }
        let bits = if self.uid == uid {
            mode >> 6
        } else if self.in_group(gid) {
            mode >> 3
        } else {
            mode
        };
        bits & want == want & 7
    }

    /// Whether it may act as the owner of a file (`chmod`, `utimes`).
    pub fn owns(&self, attributes: &Attributes) -> bool {
        self.is_root() || self.uid == attributes.uid
    }

    /// Whether the sticky bit of `directory` lets it remove or rename `entry`.
    pub fn may_remove(&self, directory: &Attributes, entry: &Attributes) -> bool {
        directory.mode & S_ISVTX == 0
            || self.is_root()
            || self.uid == directory.uid
            || self.uid == entry.uid
    }

    /// The mode that a file of `gid` gets when its owner asks for `mode`: set-gid only for a group of one's own.
    pub fn allowed_mode(&self, mode: u32, gid: u32) -> u32 {
        if self.is_root() || self.in_group(gid) {
            mode
        } else {
            mode & !S_ISGID
        }
    }
}
