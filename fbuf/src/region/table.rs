//! The table of the region: the run at each address, and all paths.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};

use abi::{Errno, Result};
use nucleus::{
    VirtAddr,
    sync::{Mutex, MutexGuard},
};

use super::{CHUNK, REGION_SIZE, REGION_START, path::Path, run::Run};

/// The region's table.
pub(super) struct Table {
    /// By address.
    runs: Vec<Arc<Run>>,
    paths: Vec<Weak<Path>>,
    next_path: u64,
}

static TABLE: Mutex<Table> = Mutex::new(
    crate::rank::FBUF_REGION,
    Table {
        runs: Vec::new(),
        paths: Vec::new(),
        next_path: 1,
    },
);

/// Locks the table.
pub(super) fn lock() -> MutexGuard<'static, Table> {
    TABLE.lock()
}

/// Locks the table unless it is locked.
pub(super) fn try_lock() -> Option<MutexGuard<'static, Table>> {
    TABLE.try_lock()
}

impl Table {
    /// Returns the runs, by address.
    pub fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.runs.iter()
    }

    /// Finds the lowest free addresses for `chunks` contiguous chunks and enters the run that
    /// `make` makes there.
    ///
    /// # Errors
    /// `ENOSPC` if there are none, `ENOMEM`; those of `make`.
    pub fn add_run(
        &mut self,
        chunks: usize,
        make: impl FnOnce(VirtAddr) -> Result<Arc<Run>>,
    ) -> Result<Arc<Run>> {
        let len = chunks * CHUNK;
        let mut start = REGION_START;
        let mut place = self.runs.len();
        for (i, run) in self.runs.iter().enumerate() {
            let taken = run.range();
            if taken.start.0 - start.0 >= len {
                place = i;
                break;
            }
            start = taken.end;
        }
        if (REGION_START + REGION_SIZE).0 - start.0 < len {
            return Err(Errno::ENOSPC);
        }
        self.runs.try_reserve(1)?;
        let run = make(start)?;
        self.runs.insert(place, run.clone());
        Ok(run)
    }

    /// Frees the addresses of a run, of which no mapping is left.
    pub fn remove_run(&mut self, run: &Run) {
        let found = self.find(run.range().start.0 as u64);
        if let Some(at) = found {
            self.runs.remove(at);
        }
    }

    /// Returns the run with this address.
    pub fn run_at(&self, address: u64) -> Option<&Arc<Run>> {
        self.find(address).and_then(|at| self.runs.get(at))
    }

    fn find(&self, address: u64) -> Option<usize> {
        let after = self
            .runs
            .partition_point(|run| run.range().start.0 as u64 <= address);
        let at = after.checked_sub(1)?;
        self.runs.get(at)?.page_at(address).map(|_| at)
    }

    /// Enters a path that `make` makes with its number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_path(&mut self, make: impl FnOnce(u64) -> Arc<Path>) -> Result<Arc<Path>> {
        self.paths.try_reserve(1)?;
        let path = make(self.next_path);
        self.next_path += 1;
        self.paths.push(Arc::downgrade(&path));
        Ok(path)
    }

    /// Removes a path.
    pub fn remove_path(&mut self, path: &Path) {
        let is_it = |other: &Weak<Path>| core::ptr::eq(other.as_ptr(), path);
        if let Some(at) = self.paths.iter().position(is_it) {
            self.paths.swap_remove(at);
        }
    }

    /// Returns the paths.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn paths(&self) -> Result<Vec<Arc<Path>>> {
        let mut paths = nucleus::try_vec(self.paths.len())?;
        paths.extend(self.paths.iter().filter_map(Weak::upgrade));
        Ok(paths)
    }
}
