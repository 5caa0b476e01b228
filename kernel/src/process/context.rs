//! Working directory, root directory and umask.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use fs::Location;
use nucleus::sync::BiasedRwLock;

use super::sharers::Sharers;
use crate::rank;

/// Shared by the threads of a process, or by processes with `CLONE_FS`.
pub struct FsContext {
    umask: AtomicU32,
    sharers: Sharers,
    /// One record per process: a child gets a copy, so that its CPU counts references in a line of
    /// its own.
    places: BiasedRwLock<Arc<Places>>,
}

/// Where walks begin. Immutable; a change makes a new one.
#[derive(Clone)]
pub struct Places {
    pub cwd: Location,
    pub root: Location,
}

impl FsContext {
    /// Both places at `root`, umask 022.
    pub fn new(root: Location) -> Arc<FsContext> {
        let cwd = root.clone();
        FsContext::with(0o022, Places { cwd, root })
    }

    fn with(umask: u32, places: Places) -> Arc<FsContext> {
        Arc::new(FsContext {
            umask: AtomicU32::new(umask),
            sharers: Sharers::default(),
            places: BiasedRwLock::biased(rank::PLACES, Arc::new(places)),
        })
    }

    /// A copy that changes by itself.
    pub fn duplicate(&self) -> Arc<FsContext> {
        FsContext::with(self.umask(), Places::clone(&self.places()))
    }

    /// The threads that have it.
    pub(super) fn sharers(&self) -> &Sharers {
        &self.sharers
    }

    /// Both places, as they are now.
    pub fn places(&self) -> Arc<Places> {
        self.places.read_with(Arc::clone)
    }

    pub fn cwd(&self) -> Location {
        self.places().cwd.clone()
    }

    pub fn root(&self) -> Location {
        self.places().root.clone()
    }

    /// Changes the working directory; checks were made by the caller.
    pub fn set_cwd(&self, cwd: Location) {
        self.change(|old| Places {
            cwd,
            root: old.root.clone(),
        });
    }

    /// Changes the root directory; checks were made by the caller.
    pub fn set_root(&self, root: Location) {
        self.change(|old| Places {
            cwd: old.cwd.clone(),
            root,
        });
    }

    fn change(&self, new: impl FnOnce(&Places) -> Places) {
        let mut places = self.places.write();
        let new = Arc::new(new(&places));
        let old = core::mem::replace(&mut *places, new);
        // The old place is dropped after the lock: the last reference to a vnode may free pages.
        drop(places);
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
