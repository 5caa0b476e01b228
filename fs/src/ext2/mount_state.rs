//! What a file system keeps for its mounts, and the locks that order changes against its end.

use core::sync::atomic::{AtomicBool, AtomicUsize};

use nucleus::{
    random,
    sync::{CpuReadGuard, CpuRwLock, CpuWriteGuard, Mutex, MutexGuard, Rank, SpinLock},
};

use crate::block::Claim;

/// A change of the file system is under way.
pub(super) type Change<'a> = CpuReadGuard<'a, ()>;

/// What a file system keeps for its mounts and changes.
pub(super) struct MountState {
    /// Held while a directory gets another parent, so that what is above what stays.
    pub rename: Mutex<()>,
    /// For the hashes of names: nobody outside can make names collide.
    pub seed: u64,
    /// Held by who changes something, so that the end comes between changes.
    changes: CpuRwLock<()>,
    /// Held by who ends removed files, and by who lets nothing be changed any more. Not `changes`: who makes a change may wait for such ends.
    ends: Mutex<()>,
    pub mounts: AtomicUsize,
    pub claim: SpinLock<Option<Claim>>,
    /// It was mounted, and has no mount any more.
    pub ending: AtomicBool,
}

impl MountState {
    /// Of a file system that is not mounted.
    pub fn new() -> MountState {
        MountState {
            rename: Mutex::new(Rank::Rename, ()),
            seed: random::u64(),
            changes: CpuRwLock::new(Rank::Changing, ()),
            ends: Mutex::new(Rank::Ending, ()),
            mounts: AtomicUsize::new(0),
            claim: SpinLock::new(Rank::Leaf, None),
            ending: AtomicBool::new(false),
        }
    }

    /// Enters a change; the end waits for it.
    pub fn change(&self) -> Change<'_> {
        self.changes.read()
    }

    /// Waits for all changes, and holds others off.
    pub fn no_changes(&self) -> CpuWriteGuard<'_, ()> {
        self.changes.write()
    }

    /// Whose turn it is to end removed files.
    pub fn ends(&self) -> MutexGuard<'_, ()> {
        self.ends.lock()
    }
}
