//! A file's pages as the rest of the kernel sees them, whatever the file system.

use core::{ops::Range, sync::atomic::Ordering};

use abi::Result;
use nucleus::Frame;
use vm::{Fate, Pager, Scan};

use super::{Access, BackingStore, ErrorCount, PageCache};

/// What the rest of the kernel asks of a file's pages, whatever its file system.
pub trait Cached: Pager {
    /// Bytes.
    fn size(&self) -> u64;

    /// As [`BackingStore::is_device`].
    fn is_device(&self) -> bool;

    /// What went wrong when pages were written back.
    fn errors(&self) -> &ErrorCount;

    /// Begins to write the dirty ones of `pages`, in clusters, several at a time. What is being written already and is dirty again
    /// is left alone, or with `again` waited for and written once more.
    ///
    /// # Errors
    /// `ENOMEM`; what could not be written is told by [`errors`](Cached::errors).
    fn write_out(&self, pages: Range<u64>, again: bool) -> Result<()>;

    /// Waits until none of `pages` is being written.
    fn wait_written(&self, pages: Range<u64>);

    /// Writes all that is dirty, inode included, onto the medium, and waits for it.
    ///
    /// # Errors
    /// Those of the device. That pages could not be written is told by [`errors`](Cached::errors).
    fn sync(&self, pages: Range<u64>, data_only: bool) -> Result<()>;

    /// Begins to read those of `pages` that are not in memory.
    fn prefetch(&self, pages: Range<u64>);

    /// Gives up those of `pages` that nobody uses and that can be read again, `most` at most; returns how many.
    fn give_up(&self, pages: Range<u64>, most: usize) -> usize;

    /// How programs are going to read it.
    fn set_access(&self, access: Access);

    /// Resident, dirty and being written, in pages.
    fn counts(&self) -> Counts;

    /// When its oldest dirty page became so, in centiseconds since boot; 0 if none is dirty.
    fn dirty_since(&self) -> u64;

    /// [Settles](BackingStore::settle) the file and begins to write up to `most` of its dirty pages; returns how many.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn flush(&self, most: usize) -> Result<usize>;

    /// Gives up to `most` pages up, from where it stopped the last time on; returns how many.
    fn give_back(&self, most: usize) -> usize;

    /// Looks at its pages as `scan` wants, from where it stopped the last time on to the end: those that were not used and are clean
    /// go, even if they are mapped.
    fn age(&self, scan: &mut Scan);
}

/// Pages of a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    pub resident: usize,
    pub dirty: usize,
    pub writing: usize,
}

impl<S: BackingStore> Cached for PageCache<S> {
    fn size(&self) -> u64 {
        PageCache::size(self)
    }

    fn is_device(&self) -> bool {
        self.store.is_device()
    }

    fn errors(&self) -> &ErrorCount {
        &self.errors
    }

    fn write_out(&self, pages: Range<u64>, again: bool) -> Result<()> {
        self.write_out_pages(pages, again)
    }

    fn wait_written(&self, pages: Range<u64>) {
        self.wait_for_written(pages);
    }

    fn sync(&self, pages: Range<u64>, data_only: bool) -> Result<()> {
        self.write_through(pages)?;
        self.store.sync(data_only)
    }

    fn prefetch(&self, pages: Range<u64>) {
        self.read_ahead(pages);
    }

    fn give_up(&self, pages: Range<u64>, most: usize) -> usize {
        self.evict(pages, most).0
    }

    fn set_access(&self, access: Access) {
        self.streams.set_access(access);
    }

    fn counts(&self) -> Counts {
        Counts {
            resident: self.object.resident_count(),
            dirty: self.dirty_count.load(Ordering::Relaxed),
            writing: self.writing_count.load(Ordering::Relaxed),
        }
    }

    fn dirty_since(&self) -> u64 {
        self.dirty_since.load(Ordering::Acquire)
    }

    fn flush(&self, most: usize) -> Result<usize> {
        self.flush_some(most)
    }

    fn age(&self, scan: &mut Scan) {
        let from = self.give_from.load(Ordering::Relaxed);
        let mut fate = |index: u64, _: &Frame, modified: bool| {
            // In this order: what could not be written is dirty before it is in `writing` no more.
            let is_dirty = modified || self.writing.contains(index) || self.dirty.contains(index);
            match is_dirty {
                true => Fate::Keep,
                false => Fate::Drop,
            }
        };
        let stopped = self.object.age(from, scan, &mut fate);
        self.give_from
            .store(stopped.unwrap_or(0), Ordering::Relaxed);
    }

    fn give_back(&self, most: usize) -> usize {
        let from = self.give_from.load(Ordering::Relaxed);
        let (mut given, stopped) = self.evict(from..u64::MAX, most);
        self.give_from
            .store(stopped.unwrap_or(0), Ordering::Relaxed);
        if stopped.is_none() && from > 0 {
            given += self.evict(0..from, most - given).0;
        }
        given
    }
}
