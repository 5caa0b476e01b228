//! A run: neighbouring chunks that a path has got together, and their pages.

use alloc::sync::Arc;
use core::{
    ops::Range,
    sync::atomic::{
        AtomicBool, AtomicUsize,
        Ordering::{Relaxed, SeqCst},
    },
};

use abi::Errno;
use nucleus::{
    Frame, OutOfMemory, PAGE_SIZE, VirtAddr, VirtRange,
    frame::{Contents, Owned},
    pmap::Pending,
    sync::OnceBox,
};
use vm::{
    Description, Lookup, Object, Pager, PagerError,
    account::{Charge, Kind, Stock},
    alloc_frame,
    page_bits::PageBits,
};

use super::{CHUNK, domain::Domain, kernel_pages::KernelPages, path::Path};
use crate::counters::Counter;

/// Idle pages of all runs.
pub(super) static IDLE_PAGES: AtomicUsize = AtomicUsize::new(0);

/// The memory of neighbouring chunks. Its pages are swap-backed and charged to the account of the
/// originator. Mappings of it are made and removed under the lock of its path.
pub struct Run {
    /// Its path; the path drops its handles when the run ends.
    pub(super) path: Arc<Path>,
    start: VirtAddr,
    pages: usize,
    object: Object,
    /// Pages that no domain may write now, one bit each. [changed with the path locked]
    secured: PageBits,
    /// Pages whose contents are not needed, one bit each: they are dropped when memory is short. No
    /// mapping of one can be written. [set with the path locked, cleared with the page locked]
    idle: PageBits,
    /// No page comes into it any more.
    has_ended: AtomicBool,
    /// What the kernel knows of the pages if it is the originator. No program may write them.
    kernels: OnceBox<KernelPages>,
    /// Its records, for the originator.
    _charge: Option<Charge>,
}

impl Run {
    pub(super) fn new(
        path: Arc<Path>,
        start: VirtAddr,
        chunks: usize,
        charge: Option<Charge>,
    ) -> Result<Run, OutOfMemory> {
        let pages = chunks * (CHUNK / PAGE_SIZE);
        let account = charge.as_ref().map(|charge| charge.account().clone());
        Ok(Run {
            path,
            start,
            pages,
            object: Object::of_zeros(pages as u64, Stock::new(account, Kind::SharedMemory)),
            secured: PageBits::new(pages)?,
            idle: PageBits::new(pages)?,
            has_ended: AtomicBool::new(false),
            kernels: OnceBox::new(),
            _charge: charge,
        })
    }

    /// Makes all pages of a run of the kernel, before it is mapped anywhere.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn fill_for_kernel(&self) -> Result<(), Errno> {
        let pages = nucleus::try_box(KernelPages::new(&self.object, self.pages)?)?;
        self.kernels.get_or_insert(|| pages);
        Ok(())
    }

    /// Returns what is known of the pages of a run of the kernel; `None` for others.
    pub(super) fn kernel_pages(&self) -> Option<&KernelPages> {
        self.kernels.get()
    }

    /// The kernel ends its path: pages whose bytes may change leave all address spaces.
    pub(super) fn end_kernel(&self) {
        if let Some(kernels) = self.kernels.get() {
            kernels.end();
            let goes = |page: u64| !kernels.is_held(page as usize);
            self.object.remove_those(0..self.pages as u64, goes);
        }
    }

    /// Returns the addresses.
    pub fn range(&self) -> VirtRange {
        VirtRange::new(self.start, self.start + self.pages * PAGE_SIZE)
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.pages / (CHUNK / PAGE_SIZE)
    }

    /// Returns the page with this address, counted from the start of the run.
    pub(super) fn page_at(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address).ok()?.checked_sub(self.start.0)?;
        Some(offset / PAGE_SIZE).filter(|&page| page < self.pages)
    }

    /// Returns the addresses of these pages.
    pub(super) fn addresses(&self, pages: Range<usize>) -> VirtRange {
        let at = |page: usize| self.start + page * PAGE_SIZE;
        VirtRange::new(at(pages.start), at(pages.end))
    }

    /// Whether the page is secured: no domain may write it.
    pub(super) fn is_secured(&self, page: usize) -> bool {
        self.kernels.get().is_some() || self.secured.contains(page)
    }

    /// Sets whether pages may be written; returns for how many that changed. Mappings keep the
    /// right that they have.
    pub(super) fn set_secured(&self, pages: Range<usize>, secured: bool) -> usize {
        match self.kernels.get() {
            // They always are.
            Some(_) => 0,
            None => self.secured.set(pages, secured),
        }
    }

    /// Returns the first range of neighbouring pages within `within` that are secured, or that are
    /// not.
    pub(super) fn next_secured(&self, within: Range<usize>, secured: bool) -> Option<Range<usize>> {
        match self.kernels.get() {
            Some(_) => (secured && !within.is_empty()).then_some(within),
            None => self.secured.next_range(within, secured),
        }
    }

    /// Returns how many pages are secured.
    pub fn secured_count(&self) -> usize {
        self.secured.count()
    }

    /// The contents of these pages are not needed any more, unless the originator writes them
    /// again. Returns false, and changes nothing, if a device may be writing them.
    pub(super) fn set_idle(&self, pages: Range<usize>, originator: Option<&Domain>) -> bool {
        let more = self.idle.set(pages.clone(), true);
        IDLE_PAGES.fetch_add(more, Relaxed);
        let mut pending = Pending::new();
        let protected = self.protect(pages.clone(), originator, &mut pending);
        pending.flush();
        if !protected {
            self.wake(pages);
        }
        protected
    }

    /// Pages are used again. Returns how many were idle.
    pub(super) fn wake(&self, pages: Range<usize>) -> usize {
        let woken = self.idle.set(pages, false);
        if woken > 0 {
            IDLE_PAGES.fetch_sub(woken, Relaxed);
        }
        woken
    }

    /// Drops up to `most` idle pages; returns how many.
    pub(super) fn drop_idle(&self, most: usize) -> usize {
        if self.idle.is_empty() {
            return 0;
        }
        let mut left = most;
        let dropped = self.object.remove_those(0..self.pages as u64, |page| {
            let page = page as usize;
            let goes = left > 0 && self.wake(page..page + 1) > 0;
            left -= usize::from(goes);
            goes
        });
        Counter::fbuf_pages_dropped.add(dropped as u64);
        dropped
    }

    /// Removes the right to write these pages, which are secured or idle, from the mappings of the
    /// originator, if it is there: it is gone once `pending` was flushed. Returns false if a device
    /// may be writing them.
    pub(super) fn protect(
        &self,
        pages: Range<usize>,
        originator: Option<&Domain>,
        pending: &mut Pending,
    ) -> bool {
        match originator {
            Some(domain) => domain.write_protect(self, pages, pending),
            None => {
                let pages = pages.start as u64..pages.end as u64;
                self.object.write_protect(pages)
            }
        }
    }

    /// Ends the run: frees its pages, removes every mapping of them, and lets none come any more.
    pub(super) fn end(&self) {
        // A fault that makes a page looks at this with the page locked.
        self.has_ended.store(true, SeqCst);
        self.object.remove_pages(0, self.pages as u64);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.wake(0..self.pages);
    }
}

impl Pager for Run {
    fn object(&self) -> &Object {
        &self.object
    }

    fn lookup(&self, index: u64) -> Result<Lookup, PagerError> {
        if index >= self.pages as u64 {
            return Err(PagerError::BeyondEnd);
        }
        self.object
            .get_or_insert(index, || match self.has_ended.load(SeqCst) {
                true => Err(PagerError::BeyondEnd),
                false => Ok(Frame::alloc(Contents::Zeroed)?),
            })
    }

    fn punch_hole(&self, pages: Range<u64>) -> Option<Result<(), PagerError>> {
        let end = pages.end.min(self.pages as u64);
        let all = pages.start as usize..end as usize;
        if self.next_secured(all, true).is_some() {
            return Some(Err(PagerError::Protected));
        }
        // Those that are secured meanwhile stay: securing sets a page's bit, then locks the page to
        // take rights from it.
        let mut is_secured = false;
        let dropped = self
            .object
            .remove_those(pages.start..end.max(pages.start), |page| {
                let stays = self.is_secured(page as usize);
                is_secured |= stays;
                !stays
            });
        Counter::fbuf_pages_dropped.add(dropped as u64);
        Some(match is_secured {
            true => Err(PagerError::Protected),
            false => Ok(()),
        })
    }

    fn reserve(&self, index: u64) -> Result<(), PagerError> {
        if self.is_secured(index as usize) {
            return Err(PagerError::Protected);
        }
        match self.object.bring_in_to_write(index)? {
            Some(page) => {
                let made = self
                    .object
                    .own(index, page, || alloc_frame(Contents::Stale));
                made.map(drop).map_err(PagerError::from)
            }
            None => Ok(()),
        }
    }

    fn mark_dirty(&self, index: u64, entering: Option<&Frame>) -> bool {
        let Some(page) = entering else { return true };
        let index = index as usize;
        let may_write = !page.is_lent() && !self.is_secured(index);
        if may_write && self.idle.contains(index) {
            self.wake(index..index + 1);
        }
        may_write
    }

    fn lend(&self, index: u64) -> Option<Owned> {
        let lent = self.object.lend(index, || true)?;
        // Once the page has one more owner: from here on it is not written if it is held.
        let kernels = self.kernels.get();
        let stays = kernels.is_none_or(|it| it.is_held(index as usize));
        stays.then_some(lent)
    }

    fn admit(&self, pages: Range<u64>, enter: &mut dyn FnMut() -> bool) {
        let is_within = pages.end <= self.pages as u64;
        let pages = pages.start as usize..pages.end as usize;
        let is_writable = is_within && self.next_secured(pages.clone(), true).is_none();
        if is_writable && !self.has_ended.load(SeqCst) {
            self.wake(pages);
            enter();
        }
    }

    fn describe(&self) -> Description {
        Description {
            name: b"/dev/fbuf (deleted)".to_vec(),
            ..Description::default()
        }
    }
}
