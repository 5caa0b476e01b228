//! Busy pages: pages of an object that are being read in (`uvm.txt` 6).

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use nucleus::{Frame, frame::Contents, task::WaitQueue};

use super::pager::{Pager, PagerError};
use super::{Object, Page};
use crate::chunks::SLOTS;

/// Threads that need a busy page wait here; an object's queue follows from its address.
static WAITERS: [WaitQueue; 32] = [const { WaitQueue::new() }; 32];
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Neighbouring pages of an object that the holder is to read, with frames for them that no other
/// thread has seen. Dropped before they are [published](BusyPages::publish), they are absent again.
///
/// `O` leads to the object: a reference to it, or an `Arc` of its pager, so that the completion of
/// a read can own the pages.
pub struct BusyPages<O: HasObject> {
    object: O,
    number: u32,
    first: u64,
    frames: Vec<Frame>,
}

/// A reference that keeps an object alive.
pub trait HasObject {
    /// The object; always the same one.
    fn object(&self) -> &Object;
}

impl HasObject for &Object {
    fn object(&self) -> &Object {
        self
    }
}

impl<P: Pager + ?Sized> HasObject for Arc<P> {
    fn object(&self) -> &Object {
        Pager::object(&**self)
    }
}

impl Object {
    fn waiters(&self) -> &'static WaitQueue {
        &WAITERS[core::ptr::from_ref(self) as usize / align_of::<Object>() % WAITERS.len()]
    }

    /// Makes page `index` busy and those of `window` beside it, without a gap, that are absent, as
    /// far as there is memory. Waits while another thread reads `index`; `None` if it is resident
    /// then. The caller holds no lock that reading the page takes.
    ///
    /// # Errors
    /// [`PagerError::OutOfMemory`]; [`PagerError::BeyondEnd`] for an index beyond 2^51 pages.
    pub fn set_busy(
        &self,
        index: u64,
        window: Range<u64>,
    ) -> Result<Option<BusyPages<&Object>>, PagerError> {
        BusyPages::wait_and_take(self, index, window)
    }

    /// Sleeps while page `index` is busy; returns whether it was. The read may have failed: the
    /// page need not be resident then.
    pub fn wait_unbusy(&self, index: u64) -> bool {
        let other = self.lock(index).and_then(|pages| pages.busy(index));
        if let Some(other) = other {
            self.wait_for(index, other);
        }
        other.is_some()
    }

    /// Sleeps while `other` has the page.
    fn wait_for(&self, index: u64, other: u32) {
        // No signal ends the sleep: the holder of busy pages ends in any case.
        self.waiters().wait_soundly(|| {
            let pages = self.chunk(index).ok()?.lock();
            let same = matches!(pages[index as usize % SLOTS], Page::Busy(it) if it == other);
            (!same).then_some(())
        });
    }
}

/// The largest number of pages.
const MOST: u64 = 512;

/// The number of pages that may be busy for `window`.
fn most(window: &Range<u64>) -> u64 {
    window.end.saturating_sub(window.start).clamp(1, MOST)
}

/// The outcome of making a page busy.
enum Marked {
    Yes,
    Resident,
    /// It is busy already, by this number.
    By(u32),
}

impl<O: HasObject> BusyPages<O> {
    /// As [`Object::set_busy`], of the object that `object` leads to.
    ///
    /// # Errors
    /// As there.
    pub fn wait_and_take(
        object: O,
        index: u64,
        window: Range<u64>,
    ) -> Result<Option<BusyPages<O>>, PagerError> {
        let mut busy = BusyPages::none(object, index, &window)?;
        loop {
            match busy.mark(index)? {
                Marked::Yes => break,
                Marked::Resident => return Ok(None),
                Marked::By(other) => busy.object.object().wait_for(index, other),
            }
        }
        busy.widen(window);
        Ok(Some(busy))
    }

    /// As [`wait_and_take`](BusyPages::wait_and_take), but does not wait: `None` also if `index` is
    /// busy.
    ///
    /// # Errors
    /// As there.
    pub fn take(
        object: O,
        index: u64,
        window: Range<u64>,
    ) -> Result<Option<BusyPages<O>>, PagerError> {
        let mut busy = BusyPages::none(object, index, &window)?;
        match busy.mark(index)? {
            Marked::Yes => {
                busy.widen(window);
                Ok(Some(busy))
            }
            Marked::Resident | Marked::By(_) => Ok(None),
        }
    }

    fn none(object: O, index: u64, window: &Range<u64>) -> Result<BusyPages<O>, PagerError> {
        let frames = nucleus::try_vec(most(window) as usize)?;
        Ok(BusyPages {
            object,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            first: index,
            frames,
        })
    }

    /// Makes the neighbours of its one page busy, too.
    fn widen(&mut self, window: Range<u64>) {
        let most = most(&window) as usize;
        let index = self.first;
        // Those in front come the wrong way round.
        while self.frames.len() < most
            && self.first > window.start
            && matches!(self.mark(self.first - 1), Ok(Marked::Yes))
        {
            self.first -= 1;
        }
        self.frames.reverse();
        let mut next = index + 1;
        while self.frames.len() < most
            && next < window.end
            && matches!(self.mark(next), Ok(Marked::Yes))
        {
            next += 1;
        }
    }

    /// Makes one more page busy, with a frame at the end of the list.
    fn mark(&mut self, index: u64) -> Result<Marked, PagerError> {
        let mut pages = self.object.object().chunk(index)?.lock();
        let page = &mut pages[index as usize % SLOTS];
        match page {
            Page::At(_) => Ok(Marked::Resident),
            Page::Busy(other) => Ok(Marked::By(*other)),
            Page::Absent => {
                self.frames.push(Frame::alloc(Contents::Stale)?);
                *page = Page::Busy(self.number);
                Ok(Marked::Yes)
            }
        }
    }

    /// The first page.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The frames of the pages, in order; their bytes are stale.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Makes the first `count` pages, whose frames were filled, resident, except those that were
    /// removed meanwhile. The others are absent again. Returns how many became resident.
    pub fn publish(mut self, count: usize) -> usize {
        self.finish(count)
    }

    fn finish(&mut self, count: usize) -> usize {
        if self.frames.is_empty() {
            return 0;
        }
        let mut published = 0;
        // Counted before any thread sees one and may remove it again.
        let most = count.min(self.frames.len());
        self.object.object().count_more(most);
        for (i, frame) in self.frames.drain(..).enumerate() {
            let index = self.first + i as u64;
            // It was made when the page became busy.
            let Ok(chunk) = self.object.object().chunk(index) else {
                continue;
            };
            let mut pages = chunk.lock();
            let page = &mut pages[index as usize % SLOTS];
            if !matches!(page, Page::Busy(number) if *number == self.number) {
                continue;
            }
            *page = if i < count {
                published += 1;
                Page::resident(frame)
            } else {
                Page::Absent
            };
        }
        self.object.object().count_less(most - published);
        self.object.object().waiters().wake_all();
        published
    }
}

impl<O: HasObject> Drop for BusyPages<O> {
    fn drop(&mut self) {
        self.finish(0);
    }
}
