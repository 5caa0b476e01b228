//! The table of the region: the path that owns each address, the run at each address, and all
//! paths. Addresses that a path was given stay its own until it is over, whatever becomes of its
//! runs: an address that a receiver has checked never leads to another path's memory.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};

use abi::{Errno, Result};
use nucleus::{
    VirtAddr, VirtRange,
    sync::{Mutex, MutexGuard},
};
use vm::account::Charge;

use super::{CHUNK, REGION_SIZE, REGION_START, path::Path, run::Run};

/// The region's table.
pub(super) struct Table {
    /// By address. Each lies in addresses of its path.
    runs: Vec<Arc<Run>>,
    /// By address.
    owned: Vec<Owned>,
    paths: Vec<Weak<Path>>,
    next_path: u64,
}

/// Addresses of a path.
struct Owned {
    range: VirtRange,
    path: Weak<Path>,
    /// The path's number.
    id: u64,
    /// The chunks, for the originator.
    _charge: Option<Charge>,
}

static TABLE: Mutex<Table> = Mutex::new(
    crate::rank::FBUF_REGION,
    Table {
        runs: Vec::new(),
        owned: Vec::new(),
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

    /// Enters the run that `make` makes of `chunks` contiguous chunks, at addresses of its path
    /// that no run has, or else at the lowest that no path owns, for which `charge` charges.
    ///
    /// # Errors
    /// `ENOSPC` if there are none, `ENOMEM`; those of `charge` and `make`.
    pub fn add_run(
        &mut self,
        path: &Arc<Path>,
        chunks: usize,
        charge: impl FnOnce() -> Result<Option<Charge>>,
        make: impl FnOnce(VirtAddr) -> Result<Arc<Run>>,
    ) -> Result<Arc<Run>> {
        self.runs.try_reserve(1)?;
        let len = chunks * CHUNK;
        let start = match self.unused(path.id(), len) {
            Some(start) => start,
            None => self.add_owned(path, len, charge()?)?,
        };
        let run = make(start)?;
        let place = self.runs.partition_point(|it| it.range().start < start);
        self.runs.insert(place, run.clone());
        Ok(run)
    }

    /// Returns the lowest addresses that a path owns and no run has.
    fn unused(&self, id: u64, len: usize) -> Option<VirtAddr> {
        let (mut start, mut end) = (REGION_START, REGION_START);
        for owned in self.owned.iter().filter(|it| it.id == id) {
            let mut at = owned.range.start;
            let first = self.runs.partition_point(|it| it.range().end <= at);
            let runs = self.runs.get(first..).unwrap_or_default().iter();
            let runs = runs.map(|it| it.range());
            let after = VirtRange::new(owned.range.end, owned.range.end);
            // The gap before each run, and that behind the last one.
            for run in runs
                .take_while(|it| it.start < owned.range.end)
                .chain([after])
            {
                if run.start > at {
                    if at != end {
                        start = at;
                    }
                    end = run.start;
                    if end.0 - start.0 >= len {
                        return Some(start);
                    }
                }
                at = at.max(run.end);
            }
        }
        None
    }

    /// Gives a path the lowest addresses that no path owns.
    fn add_owned(
        &mut self,
        path: &Arc<Path>,
        len: usize,
        charge: Option<Charge>,
    ) -> Result<VirtAddr> {
        let mut start = REGION_START;
        let mut place = self.owned.len();
        for (i, owned) in self.owned.iter().enumerate() {
            if owned.range.start.0 - start.0 >= len {
                place = i;
                break;
            }
            start = owned.range.end;
        }
        if (REGION_START + REGION_SIZE).0 - start.0 < len {
            return Err(Errno::ENOSPC);
        }
        self.owned.try_reserve(1)?;
        let owned = Owned {
            range: VirtRange::new(start, start + len),
            path: Arc::downgrade(path),
            id: path.id(),
            _charge: charge,
        };
        self.owned.insert(place, owned);
        Ok(start)
    }

    /// Frees the addresses of a path that is over. No run of it is left.
    pub fn disown(&mut self, path: &Path) {
        self.owned.retain(|it| it.id != path.id());
    }

    /// Returns the path that owns an address, and the neighbouring addresses that it owns. The
    /// table must not be locked when the path is dropped.
    pub fn owner_at(&self, address: u64) -> Option<(Arc<Path>, VirtRange)> {
        let after = self
            .owned
            .partition_point(|it| it.range.start.0 as u64 <= address);
        let at = after.checked_sub(1)?;
        let owned = self.owned.get(at)?;
        if owned.range.end.0 as u64 <= address {
            return None;
        }
        let mut range = owned.range;
        let is_own = |it: &&Owned| it.id == owned.id;
        for before in self.owned.get(..at)?.iter().rev().take_while(is_own) {
            if before.range.end != range.start {
                break;
            }
            range.start = before.range.start;
        }
        for after in self.owned.get(after..)?.iter().take_while(is_own) {
            if after.range.start != range.end {
                break;
            }
            range.end = after.range.end;
        }
        let path = owned.path.upgrade()?;
        Some((path, range))
    }

    /// Removes a run, of which no mapping is left. Its addresses stay its path's.
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
