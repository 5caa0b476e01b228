//! Pagers: how the virtual-memory system reaches what an object represents (`uvm.txt` 6).

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;
use nucleus::{
    Frame, OutOfMemory,
    frame::{self, Contents},
};

use super::Object;
use crate::swap::PageInError;

/// Why a pager could not give a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagerError {
    /// The page lies wholly beyond the end of what the object represents: SIGBUS.
    BeyondEnd,
    /// The backing store failed: SIGBUS.
    Io,
    /// No memory.
    OutOfMemory,
    /// The page is not resident, and to bring it in takes [`Pager::read_in`].
    Sleeps,
}

impl From<OutOfMemory> for PagerError {
    fn from(_: OutOfMemory) -> PagerError {
        PagerError::OutOfMemory
    }
}

impl From<PageInError> for PagerError {
    fn from(error: PageInError) -> PagerError {
        match error {
            PageInError::OutOfMemory => PagerError::OutOfMemory,
            PageInError::Io => PagerError::Io,
        }
    }
}

/// The operations through which the virtual-memory system uses an object. References are
/// [`Arc`]s: `reference` and `detach` are called for each map entry that comes and goes.
///
/// `get`, `about_to_write` and `reference` may be called with a map and a part of an amap locked,
/// so they may take locks of [`Rank::Object`](nucleus::sync::Rank::Object) and later only.
pub trait Pager: Send + Sync {
    /// The embedded object.
    fn object(&self) -> &Object;

    /// Makes page `index` resident in [`object`](Pager::object) and returns it. The pager
    /// allocates the frame itself (`uvm.txt` 6). It is not the place for I/O: a pager that would have to wait says
    /// [`PagerError::Sleeps`], and is asked again after [`read_in`](Pager::read_in).
    fn get(&self, index: u64) -> Result<Frame, PagerError>;

    /// Makes page `index` resident, and those of `window` around it that it costs little to bring along. No lock is held,
    /// and it may take as long as it takes (`uvm.txt` 6: the fault routine unlocks for I/O). Nothing promises that the page is still
    /// there when the caller has its locks again; it looks then. See [`Object::set_busy`]. A pager without a backing store of its own
    /// has its pages in swap.
    fn read_in(&self, index: u64, window: Range<u64>) -> Result<(), PagerError> {
        self.object().bring_in_around(index, window)
    }

    /// Begins to bring `pages` in that are not resident, as far as memory is not short. No lock is held; errors come up when a page is
    /// asked for. Of pages in swap those are here when this returns.
    fn will_need(&self, pages: Range<u64>) {
        self.object().bring_back(pages);
    }

    /// Has `pages` leave memory that nobody maps, and that can be read again. No lock is held.
    fn evict(&self, pages: Range<u64>) {
        let _ = pages;
    }

    /// Makes a hole in what the object represents: `pages` read zero from now on, for everybody. No lock is held. `None` if it can't
    /// have holes.
    fn punch_hole(&self, pages: Range<u64>) -> Option<Result<(), PagerError>> {
        let _ = pages;
        None
    }

    /// Writes what is dirty of `pages` back to where it survives the machine, if there is such a place, and waits for that (`uvm.txt` 6, `msync`). No map
    /// lock is held. See [`Object::write_back`].
    fn writeback(&self, pages: Range<u64>) -> Result<(), PagerError> {
        let _ = pages;
        Ok(())
    }

    /// Begins with it, where that is another thing; errors may be told later.
    fn start_writeback(&self, pages: Range<u64>) -> Result<(), PagerError> {
        self.writeback(pages)
    }

    /// A map entry now refers to the object; `writable` if it is shared and may be written.
    fn reference(&self, writable: bool) {
        let _ = writable;
    }

    /// A map entry no longer refers to the object. No map lock is held.
    fn detach(&self, writable: bool) {
        let _ = writable;
    }

    /// A shared mapping is about to make a page writable (time stamps, seals). It may
    /// [`replace`](Object::replace) the page, so the fault routine looks the page up after this. A pager that would have to wait,
    /// for blocks on a disk or because too many pages are dirty, says [`PagerError::Sleeps`], and is asked again after
    /// [`prepare_write`](Pager::prepare_write).
    fn about_to_write(&self, index: u64) -> Result<(), PagerError> {
        let _ = index;
        Ok(())
    }

    /// Whether all of `pages`, of which the object has none, may come into it at once, as zeros: they lie within what it represents, and
    /// there is room for them, which is taken. Called with their chunks locked; takes no sleeping lock.
    fn admit(&self, pages: Range<u64>) -> bool {
        let _ = pages;
        false
    }

    /// So many pages that were [admitted](Pager::admit) do not come.
    fn dismiss(&self, pages: usize) {
        let _ = pages;
    }

    /// Does what [`about_to_write`](Pager::about_to_write) would have to wait for. No map lock is held.
    ///
    /// # Errors
    /// [`PagerError::Io`] also where there is no room for the page: SIGBUS.
    fn prepare_write(&self, index: u64) -> Result<(), PagerError> {
        let _ = index;
        Ok(())
    }

    /// Whether what [`about_to_write`](Pager::about_to_write) said of page `index` still holds, which is resident: what it was said of may have been cut
    /// off, and another page be in its place. Called with the page's chunk locked; takes no sleeping lock.
    fn may_still_be_written(&self, index: u64) -> bool {
        let _ = index;
        true
    }

    /// A shared mapping may write page `index` from now on, or has just written it: it is dirty, even if it was written back
    /// since [`about_to_write`](Pager::about_to_write). Called with the page's chunk locked; takes no sleeping lock.
    fn may_be_written(&self, index: u64) {
        let _ = index;
    }

    /// What `/proc/PID/maps` shows.
    fn describe(&self) -> Description {
        Description::default()
    }
}

/// The file columns of `/proc/PID/maps`.
#[derive(Clone, Default, Debug)]
pub struct Description {
    pub device: u64,
    pub inode: u64,
    pub name: Vec<u8>,
}

/// Anonymous shared memory: `MAP_SHARED | MAP_ANONYMOUS`.
pub struct Anonymous {
    object: Object,
    pages: u64,
}

impl Anonymous {
    /// `pages` pages, zero-filled on demand.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the kernel's memory is scarce.
    pub fn new(pages: u64) -> Result<Arc<Anonymous>, OutOfMemory> {
        if frame::is_scarce() {
            return Err(OutOfMemory);
        }
        Ok(Arc::new(Anonymous {
            object: Object::swap_backed(),
            pages,
        }))
    }
}

impl Pager for Anonymous {
    fn object(&self) -> &Object {
        &self.object
    }

    fn get(&self, index: u64) -> Result<Frame, PagerError> {
        if index >= self.pages {
            return Err(PagerError::BeyondEnd);
        }
        self.object
            .get_or_insert(index, || Ok(Frame::alloc(Contents::Zeroed)?))
    }

    fn admit(&self, pages: Range<u64>) -> bool {
        pages.end <= self.pages
    }

    fn punch_hole(&self, pages: Range<u64>) -> Option<Result<(), PagerError>> {
        self.object
            .remove_pages(pages.start, pages.end.saturating_sub(pages.start));
        Some(Ok(()))
    }

    fn describe(&self) -> Description {
        Description {
            name: b"/dev/zero (deleted)".to_vec(),
            ..Description::default()
        }
    }
}
