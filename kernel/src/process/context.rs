//! Working directory, root directory and umask.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use fs::Location;
use nucleus::sync::{Rank, SpinLock};

use super::sharers::Sharers;

/// Shared by the threads of a process, or by processes with `CLONE_FS`.
pub struct FsContext {
    umask: AtomicU32,
    sharers: Sharers,
    places: SpinLock<Places>,
}

#[derive(Clone)]
struct Places {
    cwd: Location,
    root: Location,
}

impl FsContext {
    /// Both places at `root`, umask 022.
    pub fn new(root: Location) -> Arc<FsContext> {
        Arc::new(FsContext {
            umask: AtomicU32::new(0o022),
            sharers: Sharers::default(),
            places: SpinLock::new(
                Rank::Leaf,
                Places {
                    cwd: root.clone(),
                    root,
                },
            ),
        })
    }

    /// A copy that changes by itself.
    pub fn duplicate(&self) -> Arc<FsContext> {
        let places = self.places.lock().clone();
        Arc::new(FsContext {
            umask: AtomicU32::new(self.umask()),
            sharers: Sharers::default(),
            places: SpinLock::new(Rank::Leaf, places),
        })
    }

    /// The threads that have it.
    pub(super) fn sharers(&self) -> &Sharers {
        &self.sharers
    }

    pub fn cwd(&self) -> Location {
        self.places.lock().cwd.clone()
    }

    pub fn root(&self) -> Location {
        self.places.lock().root.clone()
    }

    /// Changes the working directory; checks were made by the caller.
    pub fn set_cwd(&self, cwd: Location) {
        // The old place is dropped after the lock: the last reference to a vnode may free pages.
        let old = core::mem::replace(&mut self.places.lock().cwd, cwd);
        drop(old);
    }

    /// Changes the root directory; checks were made by the caller.
    pub fn set_root(&self, root: Location) {
        let old = core::mem::replace(&mut self.places.lock().root, root);
        drop(old);
    }

    /// Permission bits that new files don't get.
    pub fn umask(&self) -> u32 {
        self.umask.load(Relaxed)
    }

    /// Sets the umask and returns the old one.
    pub fn set_umask(&self, umask: u32) -> u32 {
        self.umask.swap(umask & 0o777, Relaxed)
    }
}
