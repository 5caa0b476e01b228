//! Claims: pages of an object that somebody is reading in (the busy pages of `uvm.txt` 6).

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use nucleus::{
    Frame,
    frame::Contents,
    task::{Sleep, WaitQueue},
};

use crate::chunks::SLOTS;
use crate::object::{Object, Page};
use crate::pager::PagerError;

/// Where those wait who want a page that is claimed; an object's queue follows from its address.
static WAITERS: [WaitQueue; 32] = [const { WaitQueue::new() }; 32];
static NEXT: AtomicU32 = AtomicU32::new(1);

/// Neighbouring pages of an object that its holder is to read, with frames for them that nobody else has seen. Dropped
/// before they are [published](Claim::publish), they are as absent as before.
pub struct Claim<'a> {
    object: &'a Object,
    number: u32,
    first: u64,
    frames: Vec<Frame>,
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
    pub fn claim(&self, index: u64, window: Range<u64>) -> Result<Option<Claim<'_>>, PagerError> {
        let mut claim = Claim {
            object: self,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            first: index,
            frames: Vec::new(),
        };
        let most = window.end.saturating_sub(window.start).clamp(1, MOST);
        claim
            .frames
            .try_reserve_exact(most as usize)
            .map_err(|_| PagerError::OutOfMemory)?;
        loop {
            match claim.mark(index)? {
                Marked::Yes => break,
                Marked::Resident => return Ok(None),
                Marked::By(other) => self.wait_for(index, other),
            }
        }
        // Those in front come the wrong way round.
        while claim.frames.len() < most as usize
            && claim.first > window.start
            && matches!(claim.mark(claim.first - 1), Ok(Marked::Yes))
        {
            claim.first -= 1;
        }
        claim.frames.reverse();
        let mut next = index + 1;
        while claim.frames.len() < most as usize
            && next < window.end
            && matches!(claim.mark(next), Ok(Marked::Yes))
        {
            next += 1;
        }
        Ok(Some(claim))
    }

    /// Sleeps while claim `other` has the page.
    fn wait_for(&self, index: u64, other: u32) {
        // Its end is the only one: a claim's holder ends it in whatever way.
        let _ = self.waiters().wait(Sleep::SOUND, || {
            let pages = self.chunk(index).ok()?.lock();
            let same = matches!(pages[index as usize % SLOTS], Page::Claimed(it) if it == other);
            (!same).then_some(())
        });
    }
}

/// Pages of one claim, at most.
const MOST: u64 = 512;

/// What became of the wish to claim a page.
enum Marked {
    Yes,
    Resident,
    /// Another claim has it.
    By(u32),
}

impl<'a> Claim<'a> {
    /// Claims one more page, with a frame behind the others.
    fn mark(&mut self, index: u64) -> Result<Marked, PagerError> {
        let mut pages = self.object.chunk(index)?.lock();
        let page = &mut pages[index as usize % SLOTS];
        match page {
            Page::Resident(_) => Ok(Marked::Resident),
            Page::Claimed(other) => Ok(Marked::By(*other)),
            Page::Absent => {
                self.frames.push(Frame::alloc(Contents::Stale)?);
                *page = Page::Claimed(self.number);
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
        for (i, frame) in self.frames.drain(..).enumerate() {
            let index = self.first + i as u64;
            // It was made when the page was claimed.
            let Ok(chunk) = self.object.chunk(index) else {
                continue;
            };
            let mut pages = chunk.lock();
            let page = &mut pages[index as usize % SLOTS];
            if !matches!(page, Page::Claimed(number) if *number == self.number) {
                continue;
            }
            *page = if i < count {
                published += 1;
                Page::Resident(frame)
            } else {
                Page::Absent
            };
        }
        self.object.count_more(published);
        self.object.waiters().wake_all();
        published
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.finish(0);
    }
}
