//! Bringing pages in, in clusters, and reading.

use alloc::{boxed::Box, sync::Arc};
use core::{ops::Range, sync::atomic::Ordering};

use abi::{Errno, Result};
use fbuf::{Sink, moved};
use nucleus::{
    PAGE_SIZE,
    counters::Counter,
    ephemeral, frame, pmap,
    sync::{Rank, SpinLock},
    task::{Sleep, WaitQueue},
};
use vm::{BusyPages, PagerError};

use super::{
    BackingStore, PageCache,
    cache::{PAGE, errno, pager_error},
    readahead::Access,
    reclaim,
};

/// How a read ended, for who waits for it.
struct Outcome {
    result: SpinLock<Option<Result<()>>>,
    told: WaitQueue,
}

impl Outcome {
    fn new() -> Arc<Outcome> {
        Arc::new(Outcome {
            result: SpinLock::new(Rank::Leaf, None),
            told: WaitQueue::new(),
        })
    }

    fn tell(&self, result: Result<()>) {
        *self.result.lock() = Some(result);
        self.told.wake_all();
    }

    fn wait(&self) -> Result<()> {
        let told = self.told.wait(Sleep::SOUND, || *self.result.lock());
        // Nothing else ends such a sleep.
        told.unwrap_or(Err(Errno::EINTR))
    }
}

impl<S: BackingStore> PageCache<S> {
    /// As [`Vnode::read`](crate::Vnode::read).
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`, and those of the sink, if nothing was read before.
    pub fn read(&self, offset: u64, to: &mut dyn Sink) -> Result<usize> {
        let keeps = to.keeps();
        // Such a sink does not fault; while the lock is held no page that it keeps is being written.
        let _turn = keeps.then(|| self.writers.lock());
        let may_keep = keeps && {
            // Before the look at the mappings: one that becomes writable meanwhile sees this.
            self.passed.store(true, Ordering::SeqCst);
            self.writable_mappings.load(Ordering::SeqCst) == 0
        };
        let left = self.size().saturating_sub(offset);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(to.room());
        if len == 0 {
            return Ok(0);
        }
        let pages = offset / PAGE..(offset + len as u64).div_ceil(PAGE);
        if let Some(next) = self.streams.touched(&pages, self.pages()) {
            self.read_ahead(next);
        }
        let mut done = 0;
        // The page that was just read in: this is its first use.
        let mut fresh = u64::MAX;
        while done < len {
            let at = offset + done as u64;
            let (index, in_page) = (at / PAGE, (at % PAGE) as usize);
            let n = (PAGE_SIZE - in_page).min(len - done);
            let Some(frame) = self.object.resident(index) else {
                // On its way already: no miss that its stream should know of.
                if self.object.wait_unbusy(index) {
                    fresh = index;
                    continue;
                }
                let window = self.streams.missed(index..pages.end, self.pages());
                match self.bring_in(index, window) {
                    Ok(()) => {
                        fresh = index;
                        continue;
                    }
                    // It was cut off meanwhile.
                    Err(PagerError::BeyondEnd) => break,
                    Err(error) => return moved(done, Err(errno(error))),
                }
            };
            if in_page == 0 && index != fresh && !self.streams.is(Access::Once) {
                // Its mappings, if it has any, don't show it.
                pmap::set_referenced(&frame);
            }
            let put = match keeps && !may_keep {
                true => to.put_frame_copy(&frame, in_page, n),
                false => to.put_frame(&frame, in_page, n),
            };
            match put {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) => return moved(done, Err(error)),
            }
        }
        self.streams.ended(pages.end);
        Ok(done)
    }

    /// Makes page `index` resident, with those of `window` around it that are not. It may be gone again when this
    /// returns.
    pub(super) fn bring_in(
        &self,
        index: u64,
        window: Range<u64>,
    ) -> core::result::Result<(), PagerError> {
        let window =
            window.start.min(index)..window.end.clamp(index + 1, self.pages().max(index + 1));
        match self.bring_in_once(index, window.clone()) {
            // An error, an end that has moved or a lack of memory may concern others of the cluster.
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
        let me = self.shared().ok_or(PagerError::Io)?;
        let busy = loop {
            match BusyPages::wait_and_take(me.clone(), index, window.clone()) {
                Err(PagerError::OutOfMemory)
                    if reclaim::reclaim_clean(reclaim::SHORTAGE) > 0
                        || vm::wait_for_memory() == vm::Supply::Some => {}
                busy => break busy?,
            }
        };
        let Some(busy) = busy else {
            return Ok(());
        };
        Counter::file_page_ins.add(busy.frames().len() as u64);
        let outcome = Outcome::new();
        self.begin_to_read(busy, Some(outcome.clone()))?;
        outcome.wait().map_err(pager_error)
    }

    /// Begins to read those of `pages` that are neither in memory nor being read. Who wants one meanwhile waits for this read.
    pub(super) fn read_ahead(&self, pages: Range<u64>) {
        let mut at = pages.start;
        let end = pages.end.min(self.pages());
        while at < end && !frame::is_scarce() {
            if self.object.resident(at).is_some() {
                at += 1;
                continue;
            }
            let Some(me) = self.shared() else { return };
            match BusyPages::take(me, at, at..end) {
                Ok(Some(busy)) => {
                    let count = busy.frames().len() as u64;
                    Counter::file_read_ahead.add(count);
                    at += count;
                    // Who wants the pages will try for himself.
                    let _ = self.begin_to_read(busy, None);
                }
                Ok(None) => at += 1,
                Err(_) => return,
            }
        }
    }

    /// Begins to read what was claimed; the end of the read publishes it.
    fn begin_to_read(
        &self,
        busy: BusyPages<Arc<PageCache<S>>>,
        outcome: Option<Arc<Outcome>>,
    ) -> core::result::Result<(), PagerError> {
        let mut frames = alloc::vec::Vec::new();
        frames
            .try_reserve_exact(busy.frames().len())
            .map_err(|_| PagerError::OutOfMemory)?;
        frames.extend_from_slice(busy.frames());
        let (first, size) = (busy.first(), self.size());
        // Truncation sets the size before it takes claims away: whoever claims behind the new end after that sees it here.
        if first + busy.frames().len() as u64 > size.div_ceil(PAGE) {
            return Err(PagerError::BeyondEnd);
        }
        self.note_resident();
        let done = Box::new(move |result: Result<()>| {
            if result.is_ok() {
                // What lies behind the end reads as zeros, should the file become longer.
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
            if let Some(outcome) = outcome {
                outcome.tell(result);
            }
        });
        self.store().read(first, &frames, done);
        Ok(())
    }
}
