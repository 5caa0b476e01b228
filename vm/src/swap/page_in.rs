//! Page-in: pages come back from swap (`uvm.txt` 5.4, 6).
//!
//! What is read together are pages of one chunk that stand in neighbouring slots: pages that went out together mostly do. No
//! lock is held while they are read, and nothing is noted of the read but that the slots are busy: who wants one of
//! the pages meanwhile waits for that. A page that has left its slot by then finds its frame unused.

use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU8, Ordering};
use nucleus::{
    Frame, OutOfMemory,
    counters::Counter,
    frame::{self, Contents},
    task::{Sleep, WaitQueue},
};

use super::slot::SlotNumber;
use super::store::StoreFailed;
use super::swap_state::{Home, Paged};
use super::table;
use super::table::Run;
use crate::chunks::{Chunk, SLOTS};

/// Why a page could not be read from swap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageInError {
    OutOfMemory,
    /// The device failed.
    Io,
}

impl From<OutOfMemory> for PageInError {
    fn from(_: OutOfMemory) -> PageInError {
        PageInError::OutOfMemory
    }
}

/// Brings page `index` of `chunk` back if it is in swap, and up to `before` pages of the chunk in front of it and `behind` pages behind it
/// as far as they stand in slots beside its own. Nothing promises that it is still there afterwards. No lock is held.
///
/// # Errors
/// [`PageInError::OutOfMemory`], [`PageInError::Io`].
pub(crate) fn bring_in<T: Paged>(
    chunk: Arc<Chunk<T>>,
    index: usize,
    (before, behind): (usize, usize),
) -> Result<(), PageInError> {
    let first = index.saturating_sub(before);
    let last = index.saturating_add(behind).min(SLOTS - 1);
    let mut alone = false;
    loop {
        let Some((wanted, before, behind)) = neighbours(&*chunk, index, first..=last) else {
            return Ok(());
        };
        let (before, behind) = if alone { (0, 0) } else { (before, behind) };
        let Ok(mut run) = Run::claim(wanted, before, behind) else {
            table::wait(wanted);
            continue;
        };
        let frames = frames_for(&mut run, wanted)?;
        match read(&run, &frames) {
            Ok(()) => {
                publish(&*chunk, &run, frames);
                return Ok(());
            }
            Err(StoreFailed) => {
                Counter::swap_failures.add(1);
                // What can't be read may be another's page.
                if run.len() == 1 {
                    return Err(PageInError::Io);
                }
                alone = true;
            }
        }
    }
}

/// The slot of page `index`, and how many slots right in front of it and behind it are those of other pages in `window`. `None` if the page is
/// not in swap only.
fn neighbours(
    home: &dyn Home,
    index: usize,
    window: core::ops::RangeInclusive<usize>,
) -> Option<(SlotNumber, usize, usize)> {
    let mut wanted = None;
    let mut numbers: [Option<SlotNumber>; SLOTS] = [None; SLOTS];
    let which = window.fold(0, |which, i| which | 1 << i);
    home.visit(which, &mut |i, location| {
        if let Some(slot) = location.slot().filter(|_| location.is_swapped()) {
            numbers[i] = Some(slot.number());
            if i == index {
                wanted = numbers[i];
            }
        }
    });
    let wanted = wanted?;
    // A bit for each slot up to 32 away on either side.
    let (mut in_front, mut behind) = (0u32, 0u32);
    for number in numbers.iter().flatten() {
        match number.distance(wanted) {
            Some(distance @ 1..=32) => behind |= 1 << (distance - 1),
            Some(distance @ -32..=-1) => in_front |= 1 << (-distance - 1),
            _ => {}
        }
    }
    let (before, behind) = (in_front.trailing_ones(), behind.trailing_ones());
    Some((wanted, before as usize, behind as usize))
}

/// Frames for the slots of the run, which is cut to those around `wanted` for which there is memory.
fn frames_for(run: &mut Run, wanted: SlotNumber) -> Result<Vec<Frame>, PageInError> {
    let mut frames = Vec::new();
    frames
        .try_reserve_exact(run.len())
        .map_err(|_| PageInError::OutOfMemory)?;
    frames.push(Frame::alloc(Contents::Stale)?);
    while frames.len() < run.len() && !frame::is_scarce() {
        match Frame::alloc(Contents::Stale) {
            Ok(frame) => frames.push(frame),
            Err(_) => break,
        }
    }
    run.keep_around(wanted, frames.len());
    Ok(frames)
}

/// The end of a read, for the one who waits for it.
struct Completion {
    state: AtomicU8,
    ended: WaitQueue,
}

const UNDER_WAY: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;

fn read(run: &Run, frames: &[Frame]) -> Result<(), StoreFailed> {
    let completion = Arc::new(Completion {
        state: AtomicU8::new(UNDER_WAY),
        ended: WaitQueue::new(),
    });
    let theirs = completion.clone();
    let (store, slot) = run.store();
    Counter::swap_reads.add(1);
    store.read(
        slot,
        frames,
        Box::new(move |result| {
            let state = if result.is_ok() { DONE } else { FAILED };
            theirs.state.store(state, Ordering::Release);
            theirs.ended.wake_all();
        }),
    );
    let ended = || match completion.state.load(Ordering::Acquire) {
        UNDER_WAY => None,
        state => Some(state),
    };
    match completion.ended.wait(Sleep::SOUND, ended) {
        Ok(DONE) => Ok(()),
        _ => Err(StoreFailed),
    }
}

/// Gives the frames to the pages that are still in the run's slots. They keep the slots while more than half of all are free.
fn publish(home: &dyn Home, run: &Run, frames: Vec<Frame>) {
    let mut left: Vec<Option<Frame>> = frames.into_iter().map(Some).collect();
    let mut count = 0;
    // A slot that nothing has to be written to again is worth less than room for a page that has none.
    let usage = table::usage();
    let short = usage.used > usage.total / 2;
    home.visit(u32::MAX, &mut |_, location| {
        let slot = location.slot().filter(|_| location.is_swapped());
        let place = slot.and_then(|slot| run.index(slot.number()));
        if let Some(frame) = place.and_then(|i| left[i].take()) {
            location.arrive(frame);
            count += 1;
            if short {
                location.dirty();
            }
        }
    });
    Counter::swap_pages_in.add(count);
}
