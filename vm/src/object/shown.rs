//! The pager of mappings that show single pages of another pager's object.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

use nucleus::{
    Frame, OutOfMemory,
    frame::{self, Contents, Owned},
    sync::{Rank, SpinLock},
};

use super::pager::{Description, Lookup, Pager, PagerError};
use super::{Object, Pages};
use crate::account::{self, Charge, Kind};
use crate::chunks::SLOTS;
use crate::page_bits::PageBits;

/// Pages of another pager's object that one address space may read, mapped read-only: those that
/// [`Map::show_pages`](crate::Map::show_pages) has chosen, until
/// [`Map::hide_pages`](crate::Map::hide_pages). All others read as zeros. So a page comes and goes
/// by one page-table entry, and the map stays as it is.
///
/// A fault enters a page with the source's chunk locked, and looks whether it is shown then.
pub struct ShownPages {
    /// Without pages, so that each fault asks.
    object: Object,
    source: Arc<dyn Pager>,
    /// [pages are added before their chunk of the source is locked, and removed as well]
    shown: PageBits,
    /// What the other pages read as, made by the first such read.
    zeros: SpinLock<Option<Zeros>>,
    /// Zeros may be mapped. [set with the page's chunk of the source locked]
    has_zeros: AtomicBool,
}

/// A frame of zeros, for the process that read it first.
struct Zeros {
    frame: Frame,
    _charge: Option<Charge>,
}

impl ShownPages {
    /// Returns a pager of `source`'s first `pages` pages, of which it shows none.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(source: Arc<dyn Pager>, pages: usize) -> Result<Arc<ShownPages>, OutOfMemory> {
        frame::check_not_scarce()?;
        Ok(Arc::new(ShownPages {
            object: Object::new(),
            source,
            shown: PageBits::new(pages)?,
            zeros: SpinLock::new(Rank::Leaf, None),
            has_zeros: AtomicBool::new(false),
        }))
    }

    /// Returns the bytes of memory that one for so many pages takes.
    pub const fn bytes_for(pages: usize) -> usize {
        size_of::<ShownPages>() + pages.div_ceil(64) * size_of::<u64>()
    }

    /// Sees to it that `pages` can be shown.
    ///
    /// # Errors
    /// [`PagerError::OutOfMemory`].
    pub fn prepare(&self, pages: Range<usize>) -> Result<(), PagerError> {
        let mut index = pages.start;
        while index < pages.end {
            // A fault finds the chunk, and locks it, before it looks at what is shown.
            self.source.object().make_place(index as u64)?;
            index = (index / SLOTS + 1) * SLOTS;
        }
        Ok(())
    }

    /// Returns the pages that may be read.
    pub fn shown(&self) -> &PageBits {
        &self.shown
    }

    pub(crate) fn set(&self, pages: &Range<u64>, is_shown: bool) {
        let pages = pages.start as usize..pages.end as usize;
        self.shown.set(pages, is_shown);
    }

    /// The pager whose pages these are.
    pub(crate) fn source(&self) -> &dyn Pager {
        &*self.source
    }

    /// Whether zeros may be mapped in the place of pages of a chunk, which is locked.
    pub(crate) fn has_zeros(&self) -> bool {
        self.has_zeros.load(SeqCst)
    }

    fn is_shown(&self, index: u64) -> bool {
        usize::try_from(index).is_ok_and(|index| self.shown.contains(index))
    }

    /// Returns the frame of zeros. A page's chunk is locked.
    fn zeros(&self) -> Result<Frame, OutOfMemory> {
        self.has_zeros.store(true, SeqCst);
        if let Some(zeros) = &*self.zeros.lock() {
            return Ok(zeros.frame.clone());
        }
        let frame = Frame::alloc(Contents::Zeroed)?;
        let account = account::current();
        let charge = account.map(|it| it.charge(Kind::SharedMemory, 0, nucleus::PAGE_SIZE));
        let made = Zeros {
            frame,
            _charge: charge,
        };
        // Of two that make one, the second takes the first one's.
        let mut zeros = self.zeros.lock();
        let kept = zeros.get_or_insert(made);
        Ok(kept.frame.clone())
    }
}

impl Pager for ShownPages {
    fn object(&self) -> &Object {
        &self.object
    }

    fn shown_object(&self) -> &Object {
        self.source.shown_object()
    }

    fn lookup(&self, _: u64) -> Result<Lookup, PagerError> {
        Ok(Lookup::Shown)
    }

    fn show(
        &self,
        index: u64,
        enter: &mut dyn FnMut(&Frame) -> Result<(), OutOfMemory>,
    ) -> Result<bool, PagerError> {
        loop {
            let pages = Pages {
                pages: self.source.object().chunk(index)?.lock(),
            };
            if !self.is_shown(index) {
                enter(&self.zeros()?)?;
                return Ok(true);
            }
            if let Some(frame) = pages.get(index) {
                enter(frame)?;
                return Ok(true);
            }
            drop(pages);
            match self.source.lookup(index)? {
                Lookup::Resident(_) => {}
                Lookup::Absent => return Ok(false),
                Lookup::Device(_) | Lookup::Shown => return Err(PagerError::Io),
            }
        }
    }

    fn page_in(&self, index: u64, window: Range<u64>) -> Result<(), PagerError> {
        match self.is_shown(index) {
            true => self.source.page_in(index, window),
            false => Ok(()),
        }
    }

    fn prefetch(&self, _: Range<u64>) {}

    fn lend(&self, index: u64) -> Option<Owned> {
        let page = self.source.lend(index)?;
        // Its bytes stay from here on.
        self.is_shown(index).then_some(page)
    }

    fn describe(&self) -> Description {
        self.source.describe()
    }
}
