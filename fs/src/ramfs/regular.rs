//! The bytes of regular files: a page cache whose backing store is the swap space.
//!
//! A page that the file does not have is a hole. Pages are charged to the file system's quota.

use alloc::sync::Arc;
use core::{
    ops::Range,
    sync::atomic::{AtomicU32, Ordering},
};

use abi::{
    Errno, Result,
    raw::general::{F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE},
};
use nucleus::{
    Frame,
    frame::{Contents, Owned},
};
use vm::{
    Description, Lookup, Object, Pager, PagerError,
    account::{Kind, Stock},
};

use super::{
    Payer, Ramfs,
    node::{Body, Node},
};
use crate::{
    DenyWrite, Vnode,
    page_cache::{BackingStore, Mapping, PAGE, PageCache, errno},
    vnode::Sealable,
};

/// A regular file.
pub(super) struct Regular {
    pub(super) pages: PageCache<Swapped>,
    pub(super) text: DenyWrite,
}

/// The swap space as a file's backing store, with seals and the file system's quota.
pub(super) struct Swapped {
    fs: Arc<Ramfs>,
    /// `F_SEAL_*`. Grow under the cache's `writers`.
    seals: AtomicU32,
}

/// Seals against writing.
const NO_WRITE: u32 = F_SEAL_WRITE | F_SEAL_FUTURE_WRITE;

/// The object of a node that is no regular file; no map entry refers to it.
static NO_OBJECT: Object = Object::new();

impl Regular {
    /// Returns an empty file that can't be sealed.
    pub(super) fn new(fs: &Arc<Ramfs>, payer: Payer) -> Regular {
        Regular::with(fs, F_SEAL_SEAL, Stock::new(payer, Kind::Files))
    }

    /// Returns an empty file without a name, with these seals.
    pub(super) fn with_seals(fs: &Arc<Ramfs>, seals: u32) -> Regular {
        Regular::with(fs, seals, Stock::of_current(Kind::SharedMemory))
    }

    fn with(fs: &Arc<Ramfs>, seals: u32, stock: Stock) -> Regular {
        let store = Swapped {
            fs: fs.clone(),
            seals: AtomicU32::new(seals),
        };
        Regular {
            pages: PageCache::in_memory(store, stock),
            text: DenyWrite::new(),
        }
    }
}

impl Sealable for Regular {
    fn seals(&self) -> u32 {
        self.pages.store.seals()
    }

    /// A mapping that comes at the same time either is seen here, or its first write sees the seal.
    fn add_seals(&self, seals: u32) -> Result<()> {
        let _turn = self.pages.writers.write();
        let all = &self.pages.store.seals;
        let old = self.seals();
        if old & F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        all.store(old | seals, Ordering::SeqCst);
        let sealed_now = seals & F_SEAL_WRITE & !old != 0;
        // Devices may write pages whose mapping has gone.
        let is_written = || self.pages.is_mapped_writable() || self.pages.object.is_pinned();
        if sealed_now && is_written() {
            all.store(old, Ordering::SeqCst);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }
}

impl Swapped {
    fn seals(&self) -> u32 {
        self.seals.load(Ordering::SeqCst)
    }

    /// Returns page `index`, or inserts zeros if `wanted` still holds with the object's lock held.
    fn make_resident(
        cache: &PageCache<Swapped>,
        index: u64,
        wanted: impl FnOnce() -> bool,
    ) -> Mapping<Lookup> {
        let fs = &cache.store.fs;
        let mut charged = false;
        let page = cache.object.get_or_insert(index, || {
            if !wanted() {
                return Err(PagerError::BeyondEnd);
            }
            Swapped::charge(cache, 1).map_err(|_| PagerError::Io)?;
            charged = true;
            Ok(Frame::alloc(Contents::Zeroed)?)
        });
        if page.is_err() && charged {
            fs.give_pages(1);
        }
        page
    }
}

impl BackingStore for Swapped {
    const SWAP_BACKED: bool = true;

    #[inline]
    fn may_write(cache: &PageCache<Self>, end: u64) -> Result<()> {
        let seals = cache.store.seals();
        if seals & NO_WRITE != 0 || seals & F_SEAL_GROW != 0 && end > cache.size() {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    fn may_resize(cache: &PageCache<Self>, size: u64) -> Result<()> {
        let seal = match size.cmp(&cache.size()) {
            core::cmp::Ordering::Less => F_SEAL_SHRINK,
            core::cmp::Ordering::Equal => 0,
            core::cmp::Ordering::Greater => F_SEAL_GROW,
        };
        match cache.store.seals() & seal {
            0 => Ok(()),
            _ => Err(Errno::EPERM),
        }
    }

    #[inline]
    fn charge(cache: &PageCache<Self>, pages: usize) -> Result<()> {
        if !cache.object.may_grow(pages) {
            return Err(Errno::ENOSPC);
        }
        cache.store.fs.take_pages(pages as u64)
    }

    #[inline]
    fn uncharge(&self, pages: usize) {
        self.fs.give_pages(pages);
    }

    fn fill_holes(cache: &PageCache<Self>, mut pages: Range<u64>, _: u64) -> Result<()> {
        let own = cache.object.resident_count() as u64;
        let wanted = pages.end.saturating_sub(pages.start);
        Errno::ENOSPC.unless(wanted <= cache.store.fs.free_pages() + own)?;
        pages.try_for_each(|index| {
            match vm::retry_for_memory(|| Swapped::make_resident(cache, index, || true)) {
                Err(PagerError::Io) => Err(Errno::ENOSPC),
                made => made.map(drop).map_err(errno),
            }
        })
    }

    fn seek(cache: &PageCache<Self>, mut pages: Range<u64>, hole: bool) -> Result<Option<u64>> {
        Ok(match hole {
            true => pages.find(|&index| !cache.object.has(index)),
            false => {
                let next = cache.object.next_resident(pages.start);
                next.filter(|index| pages.contains(index))
            }
        })
    }

    fn lookup(cache: &PageCache<Self>, index: u64) -> Mapping<Lookup> {
        let is_inside = || index < cache.pages();
        match is_inside() {
            true => Swapped::make_resident(cache, index, is_inside),
            false => Err(PagerError::BeyondEnd),
        }
    }

    fn prepare(cache: &PageCache<Self>, _: u64) -> Mapping<()> {
        match cache.store.seals() & F_SEAL_WRITE {
            0 => Ok(()),
            _ => Err(PagerError::Io),
        }
    }

    #[inline]
    fn may_enter(cache: &PageCache<Self>, _: u64) -> bool {
        cache.store.seals() & F_SEAL_WRITE == 0
    }
}

impl Node {
    fn file(&self) -> Option<&PageCache<Swapped>> {
        match &self.body {
            Body::Regular(file) => Some(&file.pages),
            _ => None,
        }
    }
}

impl Pager for Node {
    fn object(&self) -> &Object {
        self.file().map_or(&NO_OBJECT, |file| &file.object)
    }

    fn lookup(&self, index: u64) -> Mapping<Lookup> {
        self.file().ok_or(PagerError::Io)?.lookup(index)
    }

    fn admit(&self, pages: Range<u64>, enter: &mut dyn FnMut() -> bool) {
        let count = pages.end - pages.start;
        let may_enter = self.file().is_some_and(|file| {
            pages.end <= file.size() / PAGE
                && Swapped::may_enter(file, pages.start)
                && Swapped::charge(file, count as usize).is_ok()
        });
        if !may_enter {
            return;
        }
        self.touch_modified();
        if !enter() {
            self.fs.give_pages(count as usize);
        }
    }

    fn reference(&self, writable: bool) {
        if let Some(file) = self.file() {
            file.reference(writable);
        }
    }

    fn detach(&self, writable: bool) {
        if let Some(file) = self.file() {
            file.detach(writable);
        }
    }

    fn reserve(&self, index: u64) -> Mapping<()> {
        self.file().map_or(Ok(()), |file| file.reserve(index))
    }

    fn lend(&self, index: u64) -> Option<Owned> {
        self.file()?.lend(index)
    }

    fn mark_dirty(&self, index: u64, entering: Option<&Frame>) -> bool {
        let marked = self
            .file()
            .is_none_or(|file| file.mark_dirty(index, entering));
        if marked && entering.is_some() {
            self.touch_modified();
        }
        marked
    }

    fn describe(&self) -> Description {
        let attributes = self.attributes().ok();
        Description {
            device: attributes.map_or(0, |a| a.device),
            inode: attributes.map_or(0, |a| a.inode),
            name: alloc::vec::Vec::new(),
        }
    }
}
