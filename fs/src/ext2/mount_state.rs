//! The state of a mounted file system, and the locks that order changes against unmounting.

use core::sync::atomic::{AtomicBool, AtomicUsize};

use nucleus::{
    OutOfMemory, random,
    sync::{CpuReadGuard, CpuRwLock, Mutex, Rank, SpinLock},
};

use crate::block::Claim;

/// A guard of a change of the file system.
pub(super) type Change<'a> = CpuReadGuard<'a, ()>;

/// What is left to do for a file system that was detached while in use.
#[derive(Clone, Copy)]
pub(super) enum Step {
    /// Ending it, once no inode is in use.
    Finish,
    /// Freeing the device, once no transfer has its blocks.
    FreeDevice,
}

/// The state of a mounted file system.
pub(super) struct MountState {
    /// Held while a directory gets another parent, so that ancestors do not change.
    pub rename: Mutex<()>,
    /// The seed for hashes of names, which makes collisions unpredictable.
    pub seed: u64,
    /// Read-held by changes, so that unmounting does not interrupt one.
    pub changes: CpuRwLock<()>,
    /// Held while removed files are freed, and while changes are being forbidden. Separate from
    /// `changes`, since a change may wait for the freeing.
    pub ends: Mutex<()>,
    pub mounts: AtomicUsize,
    pub claim: SpinLock<Option<Claim>>,
    /// It was mounted, and has no mount left.
    pub ending: AtomicBool,
    /// A step of its end for which no task could be started.
    pub left: SpinLock<Option<Step>>,
}

impl MountState {
    /// Of a file system that is not mounted.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new() -> Result<MountState, OutOfMemory> {
        Ok(MountState {
            rename: Mutex::new(crate::rank::RENAME, ()),
            seed: random::u64(),
            changes: CpuRwLock::new(crate::rank::CHANGING, ())?,
            ends: Mutex::new(crate::rank::ENDING, ()),
            mounts: AtomicUsize::new(0),
            claim: SpinLock::new(Rank::Leaf, None),
            ending: AtomicBool::new(false),
            left: SpinLock::new(Rank::Leaf, None),
        })
    }
}
