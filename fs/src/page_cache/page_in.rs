//! Pages of a disk come in, in clusters, without the reader or ahead of it.

use alloc::{boxed::Box, sync::Arc};
use core::ops::Range;

use crate::counters::Counter;
use abi::Result;
use nucleus::{PAGE_SIZE, ephemeral, frame};
use vm::{BusyPages, PagerError};

use super::{
    backing_store::BackingStore,
    block_backed::WriteBack,
    block_store::BlockStore,
    cache::{PAGE, PageCache, pager_error},
    reclaim,
};
use crate::block::Sleeper;

/// The pages that one call reads ahead at most, 32 MiB: programs ask for any range of a file, which
/// may be a hole of terabytes, and the call can't be interrupted. Linux reads a few MiB.
const MOST_ADVISED: u64 = 8192;

impl<B: BlockStore> PageCache<WriteBack<B>> {
    /// Makes page `index` resident, with those of `window` around it that are not. It may be
    /// evicted again when this returns.
    pub(super) fn bring_in(
        &self,
        index: u64,
        window: Range<u64>,
    ) -> core::result::Result<(), PagerError> {
        let window =
            window.start.min(index)..window.end.clamp(index + 1, self.pages().max(index + 1));
        match self.bring_in_once(index, window.clone()) {
            // An error, a new end or a lack of memory may concern other pages of the cluster only.
            Err(_) if window.end - window.start > 1 => self.bring_in_once(index, index..index + 1),
            result => result,
        }
    }

    fn bring_in_once(
        &self,
        index: u64,
        window: Range<u64>,
    ) -> core::result::Result<(), PagerError> {
        if index >= self.pages() {
            return Err(PagerError::BeyondEnd);
        }
        if self.store.is_in_place() {
            return self.bring_in_place(index, window);
        }
        let me = self.me().ok_or(PagerError::Io)?;
        let busy = loop {
            match BusyPages::wait_and_take(me.clone(), index, window.clone()) {
                Err(PagerError::OutOfMemory)
                    if reclaim::reclaim_clean(reclaim::SHORTAGE) > 0
                        || vm::wait_for_memory() == vm::MemoryWait::Retry => {}
                busy => break busy?,
            }
        };
        let Some(busy) = busy else {
            return Ok(());
        };
        Counter::file_page_ins.add(busy.frames().len() as u64);
        let sleeper = Sleeper::new();
        self.begin_to_read(busy, Some(sleeper.clone()))?;
        sleeper.wait().map_err(pager_error)
    }

    /// Starts to read those of `pages` that are neither in memory nor busy, the first
    /// [`MOST_ADVISED`] of them at most. A thread that needs one meanwhile waits for this read.
    pub(super) fn read_ahead(&self, pages: Range<u64>) {
        let mut at = pages.start;
        let end = pages.end.min(at.saturating_add(MOST_ADVISED));
        let end = end.min(self.pages());
        if self.store.is_in_place() {
            if at < end {
                // A thread that needs the pages gets the error.
                let _ = self.bring_in_place(at, at..end);
            }
            return;
        }
        while at < end && !frame::is_scarce() {
            if self.object.resident(at).is_some() {
                at += 1;
                continue;
            }
            let Some(me) = self.me() else { return };
            match BusyPages::take(me, at, at..end) {
                Ok(Some(busy)) => {
                    let count = busy.frames().len() as u64;
                    Counter::file_read_ahead.add(count);
                    at += count;
                    // A thread that needs the pages retries and gets the error.
                    let _ = self.begin_to_read(busy, None);
                }
                Ok(None) => at += 1,
                Err(_) => return,
            }
        }
    }

    /// Starts to read busy pages; the completion publishes them.
    fn begin_to_read(
        &self,
        busy: BusyPages<Arc<PageCache<WriteBack<B>>>>,
        sleeper: Option<Arc<Sleeper>>,
    ) -> core::result::Result<(), PagerError> {
        let mut frames = alloc::vec::Vec::new();
        frames
            .try_reserve_exact(busy.frames().len())
            .map_err(|_| PagerError::OutOfMemory)?;
        frames.extend_from_slice(busy.frames());
        let (first, size) = (busy.first(), self.size());
        // Truncation sets the size before it removes busy pages: pages beyond the new end that
        // become busy after that are found here.
        if first + busy.frames().len() as u64 > size.div_ceil(PAGE) {
            return Err(PagerError::BeyondEnd);
        }
        self.store.listing.note_resident();
        let done = Box::new(move |result: Result<()>| {
            if result.is_ok() {
                // Bytes beyond the end are zeros in memory, in case the file grows.
                let behind = size.saturating_sub(first * PAGE);
                let whole = (behind / PAGE) as usize;
                if let Some(last) = busy.frames().get(whole) {
                    let used = (behind % PAGE) as usize;
                    ephemeral::map(last).fill(used, PAGE_SIZE - used, 0);
                }
                let count = busy.frames().len();
                busy.publish(count);
            } else {
                drop(busy);
            }
            if let Some(sleeper) = sleeper {
                sleeper.tell(result);
            }
        });
        self.store.blocks.read(first, &frames, done);
        Ok(())
    }
}
