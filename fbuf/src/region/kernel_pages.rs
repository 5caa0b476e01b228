//! The pages of a run that the kernel originates: which are free, which a device or a slice in the
//! kernel may have, and which a receiver was given.
//!
//! | place | | leaves it |
//! |---|---|---|
//! | free | no handle of its frame but the run's own | to be filled |
//! | out | it is being filled, or slices show it | given, or filled again once no handle is left |
//! | held | the receiver has it, or messages include it | freed by all of them |
//!
//! A page's bytes change only while it is out and no slice shows it. So what a receiver was given
//! is secured, and costs nothing to secure.

use alloc::{collections::VecDeque, vec::Vec};
use core::ops::Range;

use nucleus::{
    Frame, OutOfMemory,
    frame::{self, Contents},
    sync::{Rank, SpinLock},
    try_vec,
};
use vm::{Object, PagerError};

/// The handles of a page that only its run has: that of its object, and that of this table.
const OWN: u64 = 2;

/// Pages that are out at which one attempt looks, so that a hoarder's do not keep a card busy.
const LOOKS: usize = 8;

/// No page: the end of the list.
const NONE: u32 = u32::MAX;

/// A part of what came for a receiver: bytes of one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The page of the run.
    pub page: u32,
    /// Bytes before it in the page, and of it.
    pub offset: u16,
    /// Bytes.
    pub len: u16,
    /// More parts of the same packet follow.
    pub has_more: bool,
}

/// The pages.
pub(super) struct KernelPages {
    /// The pages by their frames' numbers.
    by_frame: Vec<(u64, u32)>,
    state: SpinLock<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Free,
    Out,
    Held,
}

#[derive(Clone, Copy)]
struct Page {
    place: Place,
    /// The receiver was given it, or is to get it.
    is_given: bool,
    /// Messages that include it.
    messages: u16,
    /// The neighbours in the list of those that are out.
    before: u32,
    after: u32,
}

struct State {
    pages: Vec<Page>,
    /// By page; `None` for those that the ended path does not need.
    frames: Vec<Option<Frame>>,
    /// The last one freed comes first.
    free: Vec<u32>,
    /// The list of those that are out, the oldest first.
    first: u32,
    last: u32,
    out: usize,
    /// Parts that wait for the receiver. Each has a page of its own.
    waiting: VecDeque<Part>,
    has_ended: bool,
}

impl KernelPages {
    /// Makes the pages, and puts them into the object of their run, where they stay.
    ///
    /// # Errors
    /// [`OutOfMemory`], also for a caller that is to end.
    pub fn new(object: &Object, count: usize) -> Result<KernelPages, OutOfMemory> {
        let mut frames = try_vec(count)?;
        let mut by_frame = try_vec(count)?;
        let mut pages = try_vec(count)?;
        let mut free = try_vec(count)?;
        let mut waiting = VecDeque::new();
        waiting.try_reserve_exact(count).map_err(|_| OutOfMemory)?;
        object.keep(true);
        for page in 0..count {
            if frame::is_scarce() || vm::is_dying() {
                return Err(OutOfMemory);
            }
            let frame = Frame::alloc(Contents::Zeroed)?;
            let put = object.get_or_insert(page as u64, || Ok::<_, PagerError>(frame.clone()));
            put.map_err(|_| OutOfMemory)?;
            by_frame.push((frame.number(), page as u32));
            frames.push(Some(frame));
            pages.push(Page {
                place: Place::Free,
                is_given: false,
                messages: 0,
                before: NONE,
                after: NONE,
            });
        }
        // The first ones come first.
        free.extend((0..count as u32).rev());
        by_frame.sort_unstable();
        Ok(KernelPages {
            by_frame,
            state: SpinLock::new(
                Rank::Leaf,
                State {
                    pages,
                    frames,
                    free,
                    first: NONE,
                    last: NONE,
                    out: 0,
                    waiting,
                    has_ended: false,
                },
            ),
        })
    }

    /// Takes a page to be filled. Only the caller, and who gets a handle of it, may write it, until
    /// all these handles are gone. `None` if all are in use. Any context but interrupts.
    pub fn take(&self) -> Option<Frame> {
        self.take_page(&mut self.state.lock()).map(|it| it.1)
    }

    fn take_page(&self, state: &mut State) -> Option<(u32, Frame)> {
        if state.has_ended {
            return None;
        }
        if let Some(page) = state.free.pop() {
            return state.filled(page);
        }
        for _ in 0..LOOKS.min(state.out) {
            let page = state.first;
            state.unlink(page);
            if state.is_unused(page) {
                return state.filled(page);
            }
            state.push_out(page);
        }
        None
    }

    /// Gives the receiver these parts, pages of which slices show; `frames` has each once. Gives
    /// none if one of them is none of these pages, or is given already.
    pub fn give<'a>(&self, parts: impl Iterator<Item = (&'a Frame, usize, usize)> + Clone) -> bool {
        let mut state = self.state.lock();
        if state.has_ended {
            return false;
        }
        let count = parts.clone().count();
        for (done, (frame, offset, len)) in parts.clone().enumerate() {
            let page = self.find(frame);
            let page = page.filter(|&page| state.page(page).place == Place::Out);
            let Some(page) = page else {
                for _ in 0..done {
                    if let Some(part) = state.waiting.pop_back() {
                        let it = state.page(part.page);
                        it.is_given = false;
                        state.push_out(part.page);
                    }
                }
                return false;
            };
            state.unlink(page);
            state.give(Part {
                page,
                offset: offset as u16,
                len: len as u16,
                has_more: done + 1 < count,
            });
        }
        true
    }

    /// Gives the receiver a packet of `len` bytes, more than none, that `fill` puts into pages: it
    /// gets each frame with the place of its first byte in the packet, and how many they are. False
    /// if there are not enough pages.
    pub fn give_copy(&self, len: usize, mut fill: impl FnMut(&Frame, usize, usize)) -> bool {
        let count = len.div_ceil(nucleus::PAGE_SIZE);
        let mut taken = [NONE; LONGEST_PACKET];
        let Some(taken) = taken.get_mut(..count) else {
            return false;
        };
        for at in 0..count {
            let page = {
                let mut state = self.state.lock();
                let found = self.take_page(&mut state);
                match &found {
                    // Nothing else fills it, though no slice shows it yet.
                    Some((page, _)) => state.unlink(*page),
                    None => taken.iter().take(at).for_each(|&page| state.put_free(page)),
                }
                found
            };
            let Some((page, frame)) = page else {
                return false;
            };
            taken[at] = page;
            let start = at * nucleus::PAGE_SIZE;
            fill(&frame, start, (len - start).min(nucleus::PAGE_SIZE));
        }
        let mut state = self.state.lock();
        if state.has_ended {
            return false;
        }
        for (at, &mut page) in taken.iter_mut().enumerate() {
            let start = at * nucleus::PAGE_SIZE;
            state.give(Part {
                page,
                offset: 0,
                len: (len - start).min(nucleus::PAGE_SIZE) as u16,
                has_more: at + 1 < count,
            });
        }
        true
    }

    fn find(&self, frame: &Frame) -> Option<u32> {
        let at = self
            .by_frame
            .binary_search_by_key(&frame.number(), |it| it.0);
        Some(self.by_frame.get(at.ok()?)?.1)
    }

    /// Moves parts that wait to `to`, whole packets only; returns how many there are.
    pub fn take_parts(&self, to: &mut [Part]) -> usize {
        let mut state = self.state.lock();
        let (mut taken, mut whole) = (0, 0);
        for (to, part) in to.iter_mut().zip(&state.waiting) {
            *to = *part;
            taken += 1;
            if !part.has_more {
                whole = taken;
            }
        }
        state.waiting.drain(..whole);
        whole
    }

    /// Whether parts wait.
    pub fn has_parts(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    /// The receiver is done with a page that it was given; false if it was not.
    pub fn free(&self, page: usize) -> bool {
        let mut state = self.state.lock();
        let Some(it) = state.pages.get_mut(page).filter(|it| it.is_given) else {
            return false;
        };
        it.is_given = false;
        let gone = state.settle(page as u32);
        drop(state);
        drop(gone);
        true
    }

    /// Counts a message that includes these pages; false, and counts none, unless the receiver has
    /// all of them, or messages do.
    pub fn refer(&self, pages: Range<usize>) -> bool {
        let mut state = self.state.lock();
        let Some(pages) = state.pages.get_mut(pages) else {
            return false;
        };
        let is_held = |it: &Page| it.is_given || it.messages > 0;
        if !pages.iter().all(|it| is_held(it) && it.messages < u16::MAX) {
            return false;
        }
        for page in pages {
            page.messages += 1;
        }
        true
    }

    /// A message that included these pages is gone.
    pub fn unrefer(&self, pages: Range<usize>) {
        for page in pages {
            let mut state = self.state.lock();
            if let Some(it) = state.pages.get_mut(page) {
                it.messages = it.messages.saturating_sub(1);
                let gone = state.settle(page as u32);
                drop(state);
                drop(gone);
            }
        }
    }

    /// Ends the path: parts that wait are dropped, and frames of pages without a holder leave the
    /// table; the others leave it when they are freed. The object keeps those and is charged for
    /// them.
    pub fn end(&self) {
        self.state.lock().has_ended = true;
        while self.forget_part() {}
        let count = self.by_frame.len() as u32;
        for page in 0..count {
            // Not dropped under the lock: it may be the last handle.
            let gone = self.state.lock().take_unheld(page);
            drop(gone);
        }
    }

    /// Forgets the part that waits longest; false without one.
    fn forget_part(&self) -> bool {
        let mut state = self.state.lock();
        let Some(part) = state.waiting.pop_front() else {
            return false;
        };
        state.page(part.page).is_given = false;
        let gone = state.settle(part.page);
        drop(state);
        drop(gone);
        true
    }

    /// Whether the receiver or a message has the page, so that its bytes stay.
    pub fn is_held(&self, page: usize) -> bool {
        let state = self.state.lock();
        let page = state.pages.get(page);
        page.is_some_and(|it| it.is_given || it.messages > 0)
    }

    /// Returns how many pages are free and out.
    pub fn counts(&self) -> [usize; 2] {
        let state = self.state.lock();
        [state.free.len(), state.out]
    }

    /// Returns the bytes that the table of so many pages takes.
    pub fn bytes_for(pages: usize) -> usize {
        let each = size_of::<Option<Frame>>()
            + size_of::<(u64, u32)>()
            + size_of::<Page>()
            + size_of::<u32>()
            + size_of::<Part>();
        size_of::<KernelPages>() + pages * each
    }
}

/// The most pages of a packet that is copied: 64 KiB, and a page for headers.
pub const LONGEST_PACKET: usize = 17;

impl State {
    fn page(&mut self, page: u32) -> &mut Page {
        &mut self.pages[page as usize]
    }

    fn filled(&mut self, page: u32) -> Option<(u32, Frame)> {
        self.push_out(page);
        let frame = self.frames.get(page as usize)?.clone()?;
        Some((page, frame))
    }

    fn is_unused(&self, page: u32) -> bool {
        let frame = self.frames.get(page as usize).and_then(Option::as_ref);
        frame.is_some_and(|it| it.unmapped_handles() == OWN)
    }

    /// Makes a held page free if nothing has it any more, or out; after the end, returns the frame
    /// that the table no longer needs, to be dropped without the lock.
    fn settle(&mut self, page: u32) -> Option<Frame> {
        let it = *self.page(page);
        if it.is_given || it.messages > 0 || it.place != Place::Held {
            return None;
        }
        match self.is_unused(page) {
            true => self.put_free(page),
            false => self.push_out(page),
        }
        match self.has_ended {
            true => self.take_unheld(page),
            false => None,
        }
    }

    /// Takes the frame of a page without a holder out of the table.
    fn take_unheld(&mut self, page: u32) -> Option<Frame> {
        let it = self.page(page);
        match it.is_given || it.messages > 0 {
            true => None,
            false => self.frames.get_mut(page as usize)?.take(),
        }
    }

    fn give(&mut self, part: Part) {
        let it = self.page(part.page);
        it.is_given = true;
        it.place = Place::Held;
        // There is room for one part of each page.
        self.waiting.push_back(part);
    }

    fn put_free(&mut self, page: u32) {
        self.page(page).place = Place::Free;
        self.free.push(page);
    }

    /// Puts a page at the end of the list of those that are out.
    fn push_out(&mut self, page: u32) {
        let before = core::mem::replace(&mut self.last, page);
        *self.page(page) = Page {
            place: Place::Out,
            before,
            after: NONE,
            ..*self.page(page)
        };
        match before {
            NONE => self.first = page,
            before => self.page(before).after = page,
        }
        self.out += 1;
    }

    /// Takes a page off that list.
    fn unlink(&mut self, page: u32) {
        let Page { before, after, .. } = *self.page(page);
        match before {
            NONE => self.first = after,
            before => self.page(before).after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.page(after).before = before,
        }
        self.out -= 1;
        self.page(page).place = Place::Held;
    }
}
