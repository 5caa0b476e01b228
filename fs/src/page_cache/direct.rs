//! Direct files: their pages are pages of the medium, which is memory (execute-in-place, DAX).
//!
//! The object has the medium's own frames. So a mapping shows and changes the medium, `read` and
//! `write` copy from and to it, and there is no second copy. What the rest of the page cache does
//! with frames stays as it is, but for three things:
//!
//! - *A hole* has no page on the medium. A reader gets a frame of zeros; the first writer
//!   [places](PageCache::place) a cleared block there, and every mapping of the zeros goes.
//! - *Nothing is passed on*: a reader that keeps pages gets copies, since the block may become
//!   another file's. For the same reason a block is freed when nobody holds its frame any more.
//! - *Writeback* moves no bytes: it write-protects the mappings, so that later stores are noticed,
//!   and makes the pages durable ([`Disk::persist`](crate::block::Disk::persist)).
//!
//! `WriteBack::end` is held from the look at the block map until the page is in the object, and by
//! truncation until the blocks are free, so no page of a freed block becomes resident.

use core::{ops::Range, sync::atomic::Ordering, time::Duration};

use abi::{Errno, Result};
use fbuf::Source;
use nucleus::{
    Frame, PAGE_SIZE, ephemeral,
    sync::MutexGuard,
    task::{self, Sleep},
};
use vm::PagerError;

use super::{
    backing_store::{BackingStore, Mapping},
    block_backed::WriteBack,
    block_store::BlockStore,
    cache::{PAGE, PageCache, errno, new_page, pager_error},
};

/// Handles of a frame of the medium that is in no object: the disk's and the caller's.
const OWN_HANDLES: u64 = 2;
/// Frames that are taken out of the object before their other holders are waited for.
const BATCH: usize = 64;
/// How often a frame is looked at that another holder has; a transfer by a device takes as long.
const LOOK: Duration = Duration::from_millis(1);

impl<B: BlockStore> PageCache<WriteBack<B>> {
    /// As [`BackingStore::place`]. [end]
    pub(super) fn place(&self, index: u64, end: u64) -> Result<Frame> {
        self.object.make_place(index).map_err(errno)?;
        if !self.store.backed.contains(index) {
            self.reserve_page(index, self.size().max(end))?;
        }
        let frame = self.store.blocks.direct(index)?.ok_or(Errno::EIO)?;
        match self.object.resident(index) {
            Some(now) if now == frame => {}
            // The zeros of a hole, maybe mapped.
            Some(zeros) => {
                self.object.replace_by_copy(index, &zeros, frame.clone());
            }
            None => {
                let put = self.object.get_or_insert(index, || Ok(frame.clone()));
                put.map_err(errno)?;
            }
        }
        Ok(frame)
    }

    /// Makes page `index` and those of `window` around it resident: nothing is read.
    pub(super) fn bring_in_direct(&self, index: u64, window: Range<u64>) -> Mapping<()> {
        let _turn = self.store.end.lock();
        if index >= self.pages() {
            return Err(PagerError::BeyondEnd);
        }
        self.insert_direct(index)?;
        for near in window.start..window.end.min(self.pages()) {
            if self.insert_direct(near).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Makes one page resident, of the medium or of zeros. [end]
    fn insert_direct(&self, index: u64) -> Mapping<()> {
        if self.object.resident(index).is_some() {
            return Ok(());
        }
        let frame = match self.store.blocks.direct(index).map_err(pager_error)? {
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

    /// Takes `pages` out of the object, after the size was set if there is a new one, and waits
    /// until no one else holds a frame of theirs. Returns with [end] held, and none of them in the
    /// object. It is not held during the wait: a holder may fault on the file.
    pub(super) fn drop_direct(&self, pages: Range<u64>, size: Option<u64>) -> MutexGuard<'_, ()> {
        loop {
            let turn = self.store.end.lock();
            if let Some(size) = size {
                self.size.store(size, Ordering::SeqCst);
            }
            let first = self.object.next_resident(pages.start);
            let Some(first) = first.filter(|first| *first < pages.end) else {
                return turn;
            };
            let end = pages.end.min(first + BATCH as u64);
            let mut frames: [Option<Frame>; BATCH] = [const { None }; BATCH];
            for (at, slot) in (first..end).zip(&mut frames) {
                *slot = self.object.resident(at);
            }
            self.object.remove_pages(first, end - first);
            let is_held = |frame: &Frame| frame.handles() > OWN_HANDLES;
            if frames.iter().flatten().any(is_held) {
                drop(turn);
                for frame in frames.iter().flatten() {
                    while is_held(frame) {
                        task::sleep(Sleep::within(LOOK));
                    }
                }
            }
        }
    }
}

impl<S: BackingStore> PageCache<S> {
    /// As `write_once`, into the medium.
    pub(super) fn write_direct(&self, at: u64, n: usize, from: &mut dyn Source) -> Result<usize> {
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
