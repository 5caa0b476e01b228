//! Credentials: the users, groups and capabilities by which access is checked.

use alloc::{boxed::Box, vec::Vec};

use abi::raw::general::{
    CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_FSETID, CAP_LAST_CAP, CAP_SYS_ADMIN,
    S_ISGID, S_ISVTX,
};

use nucleus::sync::OnceBox;

use super::{Attributes, Kind};

/// Permission to read.
pub const READ: u32 = 4;
/// Permission to write, or to create and remove entries.
pub const WRITE: u32 = 2;
/// Permission to execute, or to search.
pub const EXECUTE: u32 = 1;

/// Calls a function with the credentials of the current task; not at all in a kernel task, which
/// has none.
pub type Actor = fn(&mut dyn FnMut(&Credentials));

static ACTOR: OnceBox<Actor> = OnceBox::new();

/// Registers how the credentials of the current task are found. The first one stays.
pub fn set_actor(actor: Actor) {
    ACTOR.get_or_insert(|| Box::new(actor));
}

/// Tells whether the current task's credentials pass `may`. A kernel task's always do.
pub(crate) fn current_may(may: impl Fn(&Credentials) -> bool) -> bool {
    let mut result = true;
    if let Some(actor) = ACTOR.get() {
        actor(&mut |who| result = may(who));
    }
    result
}

/// A set of capabilities, a bit for each `CAP_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CapabilitySet(pub u64);

impl CapabilitySet {
    /// The empty set.
    pub const EMPTY: CapabilitySet = CapabilitySet(0);
    /// All capabilities.
    pub const ALL: CapabilitySet = CapabilitySet((2 << CAP_LAST_CAP) - 1);

    /// The set of these capabilities.
    pub const fn of(capabilities: &[u32]) -> CapabilitySet {
        let mut set = 0;
        let mut at = 0;
        while at < capabilities.len() {
            set |= 1 << capabilities[at];
            at += 1;
        }
        CapabilitySet(set)
    }

    /// Tells whether `capability` (`CAP_*`) is in it.
    pub const fn has(self, capability: u32) -> bool {
        capability < 64 && self.0 >> capability & 1 != 0
    }

    /// Returns the union.
    pub const fn union(self, other: CapabilitySet) -> CapabilitySet {
        CapabilitySet(self.0 | other.0)
    }

    /// Returns the intersection.
    pub const fn and(self, other: CapabilitySet) -> CapabilitySet {
        CapabilitySet(self.0 & other.0)
    }

    /// Returns the difference.
    pub const fn without(self, other: CapabilitySet) -> CapabilitySet {
        CapabilitySet(self.0 & !other.0)
    }

    /// Tells whether it is a subset of the other.
    pub const fn is_within(self, other: CapabilitySet) -> bool {
        self.0 & !other.0 == 0
    }
}

/// The credentials of a task.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    /// The effective capabilities.
    pub capabilities: CapabilitySet,
}

impl Default for Credentials {
    /// The credentials of root.
    fn default() -> Credentials {
        Credentials {
            uid: 0,
            gid: 0,
            groups: Vec::new(),
            capabilities: CapabilitySet::ALL,
        }
    }
}

impl Credentials {
    /// Returns the credentials of an ordinary user of one group, without capabilities.
    pub fn user(uid: u32, gid: u32) -> Credentials {
        Credentials {
            uid,
            gid,
            groups: Vec::new(),
            capabilities: CapabilitySet::EMPTY,
        }
    }

    /// Tells whether a capability (`CAP_*`) is in effect.
    #[inline]
    pub fn may_use(&self, capability: u32) -> bool {
        self.capabilities.has(capability)
    }

    /// Tells whether it may administer the system as a whole (`CAP_SYS_ADMIN`).
    pub fn is_root(&self) -> bool {
        self.may_use(CAP_SYS_ADMIN)
    }

    /// Tells whether `gid` is one of its groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Tells whether `want` (4 read, 2 write, 1 execute or search, added up) is allowed.
    pub fn may(&self, attributes: &Attributes, want: u32) -> bool {
        let Attributes { kind, mode, .. } = *attributes;
        self.may_by(kind, mode, attributes.uid, attributes.gid, want)
    }

    /// As [`may`](Credentials::may) for a file of this kind, mode and owner.
    pub fn may_by(&self, kind: Kind, mode: u32, uid: u32, gid: u32, want: u32) -> bool {
        // Capabilities replace permission bits, but a file without any execute bit is never
        // executable.
        let passes = if self.may_use(CAP_DAC_OVERRIDE) {
            want & EXECUTE == 0 || kind == Kind::Directory || mode & 0o111 != 0
        } else {
            self.may_use(CAP_DAC_READ_SEARCH)
                && want & WRITE == 0
                && (want & EXECUTE == 0 || kind == Kind::Directory)
        };
        if passes {
            return true;
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

    /// Tells whether it may act as the owner of a file (`chmod`, `utimes`).
    pub fn owns(&self, attributes: &Attributes) -> bool {
        self.may_use(CAP_FOWNER) || self.uid == attributes.uid
    }

    /// Tells whether the sticky bit of `directory` lets it remove or rename `entry`.
    pub fn may_remove(&self, directory: &Attributes, entry: &Attributes) -> bool {
        directory.mode & S_ISVTX == 0
            || self.may_use(CAP_FOWNER)
            || self.uid == directory.uid
            || self.uid == entry.uid
    }

    /// Returns the mode that a file of `gid` gets when its owner asks for `mode`: the set-gid bit
    /// only for one of the owner's groups.
    pub fn allowed_mode(&self, mode: u32, gid: u32) -> u32 {
        if self.may_use(CAP_FSETID) || self.in_group(gid) {
            mode
        } else {
            mode & !S_ISGID
        }
    }
}
