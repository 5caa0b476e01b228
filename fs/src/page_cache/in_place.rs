//! Files in place: their pages are pages of the medium, which is memory (execute-in-place, DAX).
//!
//! The object has the medium's own frames. So a mapping shows and changes the medium, `read` and
//! `write` copy from and to it, and there is no second copy. The rest of the page cache treats
//! these frames like others, with three exceptions:
//!
//! - *A hole* has no page on the medium. A reader gets a frame of zeros; the first writer
//!   [places](PageCache::place) a cleared block there, and every mapping of the zeros goes.
//! - *No page is lent*: a reader that keeps pages gets copies, since the block may become another
//!   file's ([`Frame::is_of_medium`]). A device's transfer may have a handle of a frame whose block
//!   was freed: the file system does not reuse such a block before the transfer ends.
//! - *Writeback* moves no bytes: it write-protects the mappings, so that later stores are noticed,
//!   and makes the pages durable ([`Disk::persist`](crate::block::Disk::persist)).
//!
//! `WriteBack::end` is held from the look-up of the block until its page is in the object, and by
//! truncation until the blocks are free, so no page of a freed block becomes resident.

use core::ops::Range;

use abi::{Errno, Result};
use fbuf::Source;
use nucleus::{Frame, PAGE_SIZE, ephemeral, frame};
use vm::PagerError;

use super::{
    backing_store::{BackingStore, Mapping},
    block_backed::WriteBack,
    block_store::BlockStore,
    cache::{PAGE, PageCache, errno, new_page, pager_error},
    readahead::MOST,
};

impl<B: BlockStore> PageCache<WriteBack<B>> {
    /// As [`BackingStore::place`]. [end]
    pub(super) fn place(&self, index: u64, end: u64) -> Result<Frame> {
        self.object.make_place(index).map_err(errno)?;
        if !self.store.backed.contains(index) {
            self.reserve_page(index, self.size().max(end))?;
        }
        let frame = self.store.blocks.in_place(index)?.ok_or(Errno::EIO)?;
        // Otherwise it is a hole's zeros, maybe mapped, or evicted; the block has zeros as well.
        if self.object.resident(index).as_ref() != Some(&frame) {
            self.object
                .replace(index, frame.clone(), || true)
                .map_err(errno)?;
        }
        Ok(frame)
    }

    /// Makes page `index` resident, and up to [`MOST`] pages of `window` on each side of it while
    /// memory is not short: nothing is read.
    pub(super) fn bring_in_place(&self, index: u64, window: Range<u64>) -> Mapping<()> {
        let _turn = self.store.end.lock();
        if index >= self.pages() {
            return Err(PagerError::BeyondEnd);
        }
        self.insert_in_place(index)?;
        let first = window.start.max(index.saturating_sub(MOST));
        let end = window.end.min(index.saturating_add(MOST)).min(self.pages());
        for near in first..end {
            // A page of a hole takes a frame.
            if frame::is_scarce() || self.insert_in_place(near).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Makes one page resident, of the medium or of zeros. [end]
    fn insert_in_place(&self, index: u64) -> Mapping<()> {
        if self.object.resident(index).is_some() {
            return Ok(());
        }
        let frame = match self.store.blocks.in_place(index).map_err(pager_error)? {
            Some(frame) => frame,
            None => {
                // Unlike pages of the medium, these can be evicted.
                self.store.listing.note_resident();
                let zeros = new_page().map_err(pager_error)?;
                ephemeral::map(&zeros).fill(0, PAGE_SIZE, 0);
                zeros
            }
        };
        self.object.get_or_insert(index, || Ok(frame)).map(drop)
    }
}

impl<S: BackingStore> PageCache<S> {
    /// As `write_once`, into the medium.
    pub(super) fn write_in_place(&self, at: u64, n: usize, from: &mut dyn Source) -> Result<usize> {
        Self::throttle();
        let (index, in_page) = (at / PAGE, (at % PAGE) as usize);
        let frame = S::place(self, index, at + n as u64)?;
        let n = from.take_into(&frame, in_page, n)?;
        if n > 0 {
            self.mark_modified(index, &frame);
        }
        Ok(n)
    }
}
