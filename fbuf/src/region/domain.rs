//! Protection domains: address spaces that have entered the region.

use alloc::{
    sync::{Arc, Weak},
    vec::Vec,
};
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use abi::{Errno, Result};
use nucleus::{
    PAGE_SIZE, Prot, VirtRange,
    frame::check_not_scarce,
    pmap::Pending,
    sync::{OnceArc, Rank, SpinLock, lock_field_with_room},
};
use vm::{Backing, LargeAdvice, Map, MapError, MapRequest, Pager, Place, ShownPages};

use super::{REGION_SIZE, REGION_START, path::Path, run::Run};
use crate::counters::Counter;

/// The most paths that a domain belongs to.
const MOST_PATHS: usize = 1024;

/// The most attempts to map pages around mappings of the program's own.
const MOST_PARTS: usize = 128;

/// The name of the region's mappings in `/proc/PID/maps`.
const LABEL: &str = "[fbuf]";

/// An address space that has entered the region. It belongs to paths as their originator or as a
/// receiver until it [ends](Domain::end).
pub struct Domain {
    id: u64,
    /// The process that entered it, for listings.
    owner: u32,
    map: Arc<Map>,
    paths: SpinLock<Paths>,
    /// Pages of its paths whose notices it has not fetched.
    notices: AtomicUsize,
}

#[derive(Default)]
struct Paths {
    list: Vec<Weak<Path>>,
    has_ended: bool,
}

impl Domain {
    /// Makes the address space `map` a domain unless `place`, which is its own, has one already:
    /// maps the empty region into it, which reads as zeros, empty leaves (`fbufs.txt` 3.2.4).
    ///
    /// # Errors
    /// `EEXIST` if something else is mapped there, `EINVAL` for a space of 32 bits, `ENOMEM`.
    pub fn enter(map: &Arc<Map>, owner: u32, place: &OnceArc<Domain>) -> Result<Arc<Domain>> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        if let Some(domain) = place.get_arc() {
            return Ok(domain);
        }
        check_not_scarce()?;
        if map.layout().is_32_bits() {
            return Err(Errno::EINVAL);
        }
        let request = empty(VirtRange::new(REGION_START, REGION_START + REGION_SIZE));
        let place_of = Place::FixedNoReplace(REGION_START);
        // No lock of the region is held: a program may have its map locked for long.
        let mapped = map.map(MapRequest {
            place: place_of,
            ..request
        });
        match mapped {
            Ok(_) => {}
            // Another thread has mapped it just now.
            Err(MapError::Exists) if is_region(map) => {}
            Err(error) => return Err(errno(error)),
        }
        let domain = Arc::new(Domain {
            id: IDS.fetch_add(1, Relaxed),
            owner,
            map: map.clone(),
            paths: SpinLock::new(Rank::Leaf, Paths::default()),
            notices: AtomicUsize::new(0),
        });
        place.get_or_insert(|| domain);
        place.get_arc().ok_or(Errno::ENOMEM)
    }

    /// Returns its number, which no other domain has had.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the process that entered the region.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Returns how many pages there are notices for, over all paths that it originates.
    pub fn notices(&self) -> usize {
        self.notices.load(Relaxed)
    }

    /// The address space goes away: it leaves all its paths, as if it had freed every message
    /// (`fbufs.txt` 3.3). Its own mappings are left to the address space. May sleep.
    pub fn end(self: &Arc<Domain>) {
        let paths = {
            let mut paths = self.paths.lock();
            paths.has_ended = true;
            core::mem::take(&mut paths.list)
        };
        for path in paths.iter().filter_map(Weak::upgrade) {
            path.remove_domain(self, false);
        }
    }

    /// Notes that it belongs to a path.
    ///
    /// # Errors
    /// `EMFILE` for too many paths, `ENOMEM`, `EPIPE` after its end.
    pub(super) fn join(&self, path: &Arc<Path>) -> Result<()> {
        let lock = || self.paths.lock();
        let mut paths = lock_field_with_room(lock, |it| &it.list, |it| &mut it.list)?;
        if paths.has_ended {
            return Err(Errno::EPIPE);
        }
        if paths.list.len() >= MOST_PATHS {
            return Err(Errno::EMFILE);
        }
        paths.list.push(Arc::downgrade(path));
        Ok(())
    }

    /// Notes that it has left a path.
    pub(super) fn leave(&self, path: &Path) {
        let mut paths = self.paths.lock();
        let is_it = |other: &Weak<Path>| core::ptr::eq(other.as_ptr(), path);
        if let Some(at) = paths.list.iter().position(is_it) {
            paths.list.swap_remove(at);
        }
    }

    pub(super) fn count_notices(&self, more: usize) {
        self.notices.fetch_add(more, Relaxed);
    }

    pub(super) fn count_fetched(&self, fewer: usize) {
        self.notices.fetch_sub(fewer, Relaxed);
    }

    /// Maps a run at its place. Where the program has mappings of its own, it keeps them.
    ///
    /// # Errors
    /// `ENOMEM`; nothing of it is mapped then.
    pub(super) fn map(&self, run: &Arc<Run>, writable: bool) -> Result<()> {
        let rights = match writable {
            true => Prot::READ | Prot::WRITE,
            false => Prot::READ,
        };
        self.map_pager(run, run.clone(), rights, LargeAdvice::None)
    }

    /// As [`map`](Domain::map), so that only the pages that `view` shows can be read.
    ///
    /// # Errors
    /// As [`map`](Domain::map).
    pub(super) fn map_view(&self, run: &Run, view: &Arc<ShownPages>) -> Result<()> {
        self.map_pager(run, view.clone(), Prot::READ, LargeAdvice::Refused)
    }

    fn map_pager(
        &self,
        run: &Run,
        pager: Arc<dyn Pager>,
        rights: Prot,
        large: LargeAdvice,
    ) -> Result<()> {
        let request = |range: VirtRange| MapRequest {
            max_prot: rights,
            backing: Backing::Object {
                pager: pager.clone(),
                offset: (range.start - run.range().start) as u64,
            },
            shared: true,
            prot: rights,
            large,
            ..empty(range)
        };
        let mut attempts = MOST_PARTS;
        match self.map_around(run.range(), &request, &mut attempts) {
            Ok(()) | Err(MapError::Exists) => Ok(()),
            Err(_) => {
                // The parts before the one that failed.
                self.unmap(run);
                Err(Errno::ENOMEM)
            }
        }
    }

    /// Replaces the mappings of a run by the empty region. They are gone on return, also where
    /// memory is missing for the empty region.
    pub(super) fn unmap(&self, run: &Run) {
        let mut attempts = MOST_PARTS;
        if self.map_around(run.range(), &empty, &mut attempts).is_err() {
            self.map.unmap_staying(run.range());
        }
    }

    /// Shows more pages of a run, for which the view is prepared, in its mappings of the view.
    pub(super) fn show(&self, run: &Run, view: &ShownPages, pages: Range<usize>) {
        let start = run.addresses(pages.clone()).start;
        Counter::fbuf_grants.add(pages.len() as u64);
        let pages = pages.start as u64..pages.end as u64;
        self.map.show_pages(view, pages, start);
    }

    /// Shows pages of a run no longer in its mappings of the view, once `pending` was flushed.
    pub(super) fn hide(
        &self,
        run: &Run,
        view: &ShownPages,
        pages: Range<usize>,
        pending: &mut Pending,
    ) {
        let start = run.addresses(pages.clone()).start;
        Counter::fbuf_revocations.add(pages.len() as u64);
        let pages = pages.start as u64..pages.end as u64;
        self.map.hide_pages(view, pages, start, pending);
    }

    /// Removes the right to write pages of a run that it originates from its mappings, once
    /// `pending` was flushed. Returns false if a device may be writing them.
    pub(super) fn write_protect(
        &self,
        run: &Run,
        pages: Range<usize>,
        pending: &mut Pending,
    ) -> bool {
        let start = run.addresses(pages.clone()).start;
        let pages = pages.start as u64..pages.end as u64;
        self.map.write_protect(run.object(), pages, start, pending)
    }

    /// Gives its mappings of pages of a run that it originates the right to write back.
    pub(super) fn widen(&self, run: &Run, pages: Range<usize>) {
        let start = run.addresses(pages.clone()).start;
        self.map
            .widen(run, pages.start as u64..pages.end as u64, start);
    }

    /// Maps what `request` says for `range`; in parts where the program has mappings of its own,
    /// which stay.
    ///
    /// # Errors
    /// [`MapError::Exists`] if there are too many of these; those of [`Map::map`].
    fn map_around(
        &self,
        range: VirtRange,
        request: &dyn Fn(VirtRange) -> MapRequest,
        attempts: &mut usize,
    ) -> core::result::Result<(), MapError> {
        *attempts = attempts.checked_sub(1).ok_or(MapError::Exists)?;
        match self.map.map(request(range)) {
            Ok(_) => Ok(()),
            Err(MapError::Exists) if range.len() > PAGE_SIZE => {
                let middle = range.start + range.len() / 2 / PAGE_SIZE * PAGE_SIZE;
                let parts = [
                    VirtRange::new(range.start, middle),
                    VirtRange::new(middle, range.end),
                ];
                for part in parts {
                    self.map_around(part, request, attempts)?;
                }
                Ok(())
            }
            Err(MapError::Exists) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Whether the address space has the region.
fn is_region(map: &Map) -> bool {
    let entry = map.entry_at(REGION_START);
    entry.is_some_and(|entry| entry.label == LABEL)
}

/// Returns a request for the empty region at `range`.
fn empty(range: VirtRange) -> MapRequest {
    MapRequest {
        place: Place::FixedOverStaying(range.start),
        max_prot: Prot::READ,
        no_reserve: true,
        stays: true,
        large: LargeAdvice::Refused,
        label: LABEL,
        ..MapRequest::zero(range.len(), Prot::READ)
    }
}

fn errno(error: MapError) -> Errno {
    match error {
        MapError::Exists => Errno::EEXIST,
        MapError::NoMemory | MapError::Again => Errno::ENOMEM,
        _ => Errno::EINVAL,
    }
}
