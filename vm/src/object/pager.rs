//! Pagers: how the virtual-memory system reaches what an object represents (`uvm.txt` 6).

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;
use nucleus::{
    DevicePage, Frame, OutOfMemory,
    frame::{self, Contents, Owned},
};

use super::Object;
use crate::{
    account::{Kind, Stock},
    memory_wait::alloc_frame,
    swap::PageInError,
};

/// Why a pager could not give a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagerError {
    /// The page lies wholly beyond the end of the object: SIGBUS.
    BeyondEnd,
    /// The backing store failed: SIGBUS.
    Io,
    /// No memory.
    OutOfMemory,
    /// The page may not be written now, although the mapping would permit it: SIGSEGV.
    Protected,
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

/// What a pager has of a page that lies within its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The page is resident in the object now.
    Resident(Frame),
    /// [`Pager::page_in`] brings it, and sleeps.
    Absent,
    /// The page is a device's, and never in the object (`uvm.txt` 6: the pager has full control of
    /// what is mapped). Shared mappings map it with all their rights at once, since no store needs
    /// to be noticed; a private mapping can read it and gets no copy.
    Device(DevicePage),
    /// [`Pager::show`] enters the page or zeros: the pager shows pages of another one's object.
    Shown,
}

impl Lookup {
    /// The frame, if the page is resident.
    pub fn resident(self) -> Option<Frame> {
        match self {
            Lookup::Resident(frame) => Some(frame),
            Lookup::Absent | Lookup::Device(_) | Lookup::Shown => None,
        }
    }
}

/// The operations through which the virtual-memory system uses an object. References are
/// [`Arc`]s: `reference` and `detach` are called for each map entry that comes and goes. The
/// defaults are right for shared memory ([`Object::of_zeros`]), whose pages are in swap at most.
///
/// ```text
///                    resident ────────────────────────────> enter
///   read, absent:    lookup ── Resident ─> (look again)       ^
///                       ├───── Device ────────────────────────┤
///                       ├───── Shown ─────> show ─────────────┤
///                       └───── Absent ───> page_in ─> start again
///   write, resident: mark_dirty ── true ──────────────────────┘
///                       └───────── false ──> reserve ─> start again
/// ```
///
/// | operation | locks of the caller | may sleep |
/// |---|---|---|
/// | `lookup`, `show`, `reference` | map, an amap's chunk | no: `rank::OBJECT` and later |
/// | `touched` | map | no: leaf locks |
/// | `lend` | map | no |
/// | `mark_dirty`, `admit` | map, the page's chunk | no |
/// | all others | none | yes |
pub trait Pager: Send + Sync {
    /// The embedded object.
    fn object(&self) -> &Object;

    /// The object whose pages its mappings show: mostly the embedded one.
    fn shown_object(&self) -> &Object {
        self.object()
    }

    /// Answers for page `index`, which was just seen not to be in memory: makes it resident in
    /// [`object`](Pager::object), if that needs no I/O (the pager allocates the frame itself,
    /// `uvm.txt` 6), or says that it is absent.
    ///
    /// # Errors
    /// [`PagerError::BeyondEnd`]; those of making it.
    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        let object = self.object();
        if index >= object.zeros {
            return Err(PagerError::BeyondEnd);
        }
        object.get_or_insert(index, || Ok(Frame::alloc(Contents::Zeroed)?))
    }

    /// Calls `enter` with the page that a mapping is to show at `index`, which cannot change before
    /// it returns. Returns false if the page must be [brought in](Pager::page_in) first. Called
    /// when [`lookup`](Pager::lookup) was [`Lookup::Shown`].
    ///
    /// # Errors
    /// As [`lookup`](Pager::lookup); those of `enter`.
    fn show(
        &self,
        index: u64,
        enter: &mut dyn FnMut(&Frame) -> Result<(), OutOfMemory>,
    ) -> Result<bool, PagerError> {
        let _ = (index, enter);
        Err(PagerError::BeyondEnd)
    }

    /// Makes page `index` resident, and those pages of `window` around it that it costs little to
    /// bring along (`uvm.txt` 6: the fault routine unlocks for I/O). The page may be evicted again
    /// when this returns; the caller looks then. See [`Object::set_busy`]. The default brings pages
    /// back from swap.
    ///
    /// # Errors
    /// [`PagerError`].
    fn page_in(&self, index: u64, window: Range<u64>) -> Result<(), PagerError> {
        self.object().bring_in_around(index, window)
    }

    /// Begins to bring in those of `pages` that are not resident, as far as memory is not short.
    /// Errors are reported when a page is asked for. Pages in swap are resident when this returns.
    fn prefetch(&self, pages: Range<u64>) {
        self.object().bring_back(pages);
    }

    /// Notes that a mapping has come to `pages`, resident or not, and returns the pages that are
    /// worth a [`prefetch`](Pager::prefetch) now, so that the mapping never waits for them. Each
    /// fault calls it once its page is mapped, so it allocates nothing and, unless it returns
    /// pages, writes no memory that other CPUs use.
    fn touched(&self, pages: Range<u64>) -> Option<Range<u64>> {
        let _ = pages;
        None
    }

    /// Evicts those of `pages` that are not mapped and can be read again.
    fn evict(&self, pages: Range<u64>) {
        let _ = pages;
    }

    /// Makes `pages` a hole, which reads as zeros from now on. `None` if the object can't have
    /// holes.
    fn punch_hole(&self, pages: Range<u64>) -> Option<Result<(), PagerError>> {
        let object = self.object();
        let count = pages.end.saturating_sub(pages.start);
        (object.zeros > 0).then(|| {
            object.remove_pages(pages.start, count);
            Ok(())
        })
    }

    /// Starts to write dirty ones of `pages` to where they survive the machine, if there is such a
    /// place; with `wait` returns when they are there (`uvm.txt` 6, `msync`). See
    /// [`Object::write_back`].
    ///
    /// # Errors
    /// [`PagerError::Io`] and [`PagerError::OutOfMemory`]; without `wait` maybe reported later.
    fn writeback(&self, pages: Range<u64>, wait: bool) -> Result<(), PagerError> {
        let _ = (pages, wait);
        Ok(())
    }

    /// Prepares a shared mapping's write to page `index` as far as that may sleep: blocks on a
    /// disk, a copy of a [lent page](Object::own), a wait while too many pages are dirty. Called
    /// when [`mark_dirty`](Pager::mark_dirty) was false.
    ///
    /// # Errors
    /// [`PagerError::Io`] also where there is no room for the page, or the file is sealed: SIGBUS.
    fn reserve(&self, index: u64) -> Result<(), PagerError> {
        let object = self.object();
        match object.bring_in_to_write(index)? {
            Some(page) => {
                let made = object.own(index, page, || alloc_frame(Contents::Stale));
                made.map(drop).map_err(PagerError::from)
            }
            None => Ok(()),
        }
    }

    /// Marks page `index` dirty. With a frame, that of the resident page, a shared mapping is about
    /// to make it writable; false, and nothing has changed, if it needs [`reserve`](Pager::reserve)
    /// first. Without one, a mapping that may write the page has just written it, and it is dirty
    /// even if it was written back since.
    fn mark_dirty(&self, index: u64, entering: Option<&Frame>) -> bool {
        let _ = index;
        !entering.is_some_and(Frame::is_lent)
    }

    /// Lends page `index` ([`Object::lend`]), if it is resident and may be lent now. The default
    /// lends none.
    fn lend(&self, index: u64) -> Option<Owned> {
        let _ = index;
        None
    }

    /// Calls `enter` if all of `pages`, of which the object has none, may come into it at once as
    /// zeros: they lie within its end and there is room for them, which is taken unless `enter`
    /// returns false.
    fn admit(&self, pages: Range<u64>, enter: &mut dyn FnMut() -> bool) {
        if pages.end <= self.object().zeros {
            enter();
        }
    }

    /// A map entry now refers to the object; `writable` if it is shared and may be written.
    fn reference(&self, writable: bool) {
        let _ = writable;
    }

    /// A map entry no longer refers to the object.
    fn detach(&self, writable: bool) {
        let _ = writable;
    }

    /// Whether its mappings are private and read-only, with pages that a call
    /// [gives](crate::Map::show) them and no others.
    fn shows_given_pages(&self) -> bool {
        false
    }

    /// Returns the columns of `/proc/PID/maps`.
    fn describe(&self) -> Description {
        Description::default()
    }
}

/// The file columns of `/proc/PID/maps`.
#[derive(Clone, Default, Debug)]
#[allow(missing_docs)]
pub struct Description {
    pub device: u64,
    pub inode: u64,
    pub name: Vec<u8>,
}

/// Anonymous shared memory: `MAP_SHARED | MAP_ANONYMOUS`.
pub struct Anonymous {
    object: Object,
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
            object: Object::of_zeros(pages, Stock::of_current(Kind::SharedMemory)),
        }))
    }
}

impl Pager for Anonymous {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lend(&self, index: u64) -> Option<Owned> {
        self.object.lend(index, || true)
    }

    fn describe(&self) -> Description {
        Description {
            name: b"/dev/zero (deleted)".to_vec(),
            ..Description::default()
        }
    }
}
