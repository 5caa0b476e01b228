//! The pager of a mapped file, with what the mapping keeps in use.

use alloc::sync::Arc;
use core::{any::Any, ops::Range};

use abi::{
    Errno,
    raw::general::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE},
};
use nucleus::{Frame, PAGE_SIZE, frame::Owned};
use vm::{Description, Lookup, Object, Pager, PagerError};

use super::Location;
use crate::page_cache::{Cached, ErrorMark};

/// Forwards all operations to a file's pager.
pub(crate) struct Mapped {
    pager: Arc<dyn Pager>,
    /// Where the file was opened, for its path; the vnode and the mount stay in use.
    location: Option<Location>,
    /// Something else that stays in use.
    _keeps: Option<Arc<dyn Any + Send + Sync>>,
    /// The pages, and the writeback errors that the mapping has reported.
    told: Option<(Arc<dyn Cached>, ErrorMark)>,
}

impl Mapped {
    /// Returns a pager that keeps `user` in use.
    pub(crate) fn keeping(pager: Arc<dyn Pager>, user: Arc<dyn Any + Send + Sync>) -> Arc<Mapped> {
        Arc::new(Mapped {
            pager,
            location: None,
            _keeps: Some(user),
            told: None,
        })
    }
}

impl Location {
    /// Returns the pager for mappings of the file here; it shows this location's path.
    pub fn pager(&self) -> Option<Arc<dyn Pager>> {
        let vnode = self.vnode();
        let pager = vnode.clone().pager()?;
        let told = vnode.cached().map(|pages| {
            let mark = pages.errors().mark();
            (pages, mark)
        });
        Some(Arc::new(Mapped {
            pager,
            location: Some(self.clone()),
            _keeps: None,
            told,
        }))
    }
}

impl Pager for Mapped {
    fn object(&self) -> &Object {
        self.pager.object()
    }

    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        self.pager.lookup(index)
    }

    fn page_in(&self, index: u64, window: Range<u64>) -> Result<(), PagerError> {
        self.pager.page_in(index, window)
    }

    fn prefetch(&self, pages: Range<u64>) {
        self.pager.prefetch(pages);
    }

    fn touched(&self, pages: Range<u64>) -> Option<Range<u64>> {
        self.pager.touched(pages)
    }

    fn evict(&self, pages: Range<u64>) {
        self.pager.evict(pages);
    }

    fn punch_hole(&self, pages: Range<u64>) -> Option<Result<(), PagerError>> {
        let mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        let page = PAGE_SIZE as u64;
        let len = pages.end.saturating_sub(pages.start) * page;
        let vnode = self.location.as_ref()?.vnode();
        match vnode.allocate(mode, pages.start * page, len) {
            Err(Errno::EOPNOTSUPP) => None,
            Err(Errno::ENOMEM) => Some(Err(PagerError::OutOfMemory)),
            Err(_) => Some(Err(PagerError::Io)),
            Ok(()) => Some(Ok(())),
        }
    }

    fn writeback(&self, pages: Range<u64>, wait: bool) -> Result<(), PagerError> {
        let written = self.pager.writeback(pages, wait);
        match &self.told {
            Some((pages, mark)) if wait && pages.errors().tell(mark).is_err() => {
                Err(PagerError::Io)
            }
            _ => written,
        }
    }

    fn reference(&self, writable: bool) {
        self.pager.reference(writable);
    }

    fn detach(&self, writable: bool) {
        self.pager.detach(writable);
    }

    fn reserve(&self, index: u64) -> Result<(), PagerError> {
        self.pager.reserve(index)
    }

    fn lend(&self, index: u64) -> Option<Owned> {
        self.pager.lend(index)
    }

    fn mark_dirty(&self, index: u64, entering: Option<&Frame>) -> bool {
        self.pager.mark_dirty(index, entering)
    }

    fn admit(&self, pages: Range<u64>, enter: &mut dyn FnMut() -> bool) {
        self.pager.admit(pages, enter);
    }

    fn describe(&self) -> Description {
        let description = self.pager.describe();
        match &self.location {
            Some(location) => Description {
                name: location.path_without_locks(),
                ..description
            },
            None => description,
        }
    }
}
