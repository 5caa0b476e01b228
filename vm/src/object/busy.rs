//! Claims: pages of an object that somebody is reading in (the busy pages of `uvm.txt` 6).

use alloc::{sync::Arc, vec::Vec};
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use nucleus::{
    Frame,
    frame::Contents,
    task::{Sleep, WaitQueue},
};

use super::pager::{Pager, PagerError};
use super::{Object, Page};
use crate::chunks::SLOTS;

/// Where those wait who want a page that is claimed; an object's queue follows from its address.
static WAITERS: [WaitQueue; 32] = [const { WaitQueue::new() }; 32];
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Neighbouring pages of an object that its holder is to read, with frames for them that nobody else has seen. Dropped
/// before they are [published](BusyPages::publish), they are as absent as before.
///
/// `O` leads to the object: a reference to it, or an `Arc` of its pager, which makes a claim that the end of a read may own.
pub struct BusyPages<O: HasObject> {
    object: O,
    number: u32,
    first: u64,
    frames: Vec<Frame>,
}

/// What leads to an object for as long as it lives.
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

    /// Claims page `index` and those of `window` beside it, without a gap, that are neither resident nor claimed, as far as
    /// there is memory. Waits while somebody else reads `index`; `None` if it is resident then. A page may be claimed
    /// while no lock is held that reading it takes.
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

    /// Sleeps while somebody reads page `index`; whether anybody did. He may have failed: the page need not be resident then.
    pub fn wait_unbusy(&self, index: u64) -> bool {
        let other = self.lock(index).and_then(|pages| pages.busy(index));
        if let Some(other) = other {
            self.wait_for(index, other);
        }
        other.is_some()
    }

    /// Sleeps while claim `other` has the page.
    fn wait_for(&self, index: u64, other: u32) {
        // Its end is the only one: a claim's holder ends it in whatever way.
        let _ = self.waiters().wait(Sleep::SOUND, || {
            let pages = self.chunk(index).ok()?.lock();
            let same = matches!(pages[index as usize % SLOTS], Page::Busy(it) if it == other);
            (!same).then_some(())
        });
    }
}

/// Pages of one claim, at most.
const MOST: u64 = 512;

/// Pages that a claim of `window` may have.
fn most(window: &Range<u64>) -> u64 {
    window.end.saturating_sub(window.start).clamp(1, MOST)
}

/// What became of the wish to claim a page.
enum Marked {
    Yes,
    Resident,
    /// Another claim has it.
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

    /// As [`wait_and_take`](BusyPages::wait_and_take), but without waiting: `None` also if somebody else reads `index`.
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
        let mut frames = Vec::new();
        frames
            .try_reserve_exact(most(window) as usize)
            .map_err(|_| PagerError::OutOfMemory)?;
        Ok(BusyPages {
            object,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            first: index,
            frames,
        })
    }

    /// Claims the neighbours of its one page, too.
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

    /// Claims one more page, with a frame behind the others.
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

    /// Makes the first `count` pages resident, whose frames were filled, except those that are not wanted any more.
    /// The others are as absent as before. Returns how many became resident.
    pub fn publish(mut self, count: usize) -> usize {
        self.finish(count)
    }

    fn finish(&mut self, count: usize) -> usize {
        if self.frames.is_empty() {
            return 0;
        }
        let mut published = 0;
        // Before anybody sees one, who may take it out again.
        let most = count.min(self.frames.len());
        self.object.object().count_more(most);
        for (i, frame) in self.frames.drain(..).enumerate() {
            let index = self.first + i as u64;
            // It was made when the page was claimed.
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
