//! Page-in from swap (`uvm.txt` 5.4, 6).
//!
//! Pages of one chunk that own neighbouring slots are read together; pages that were written in one
//! cluster mostly do. No lock is held during the read, and the only trace of it is that the slots
//! are busy: a second fault on one of the pages waits for the slot. The frame of a page that has
//! given its slot up meanwhile is dropped.

use crate::counters::Counter;
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::sync::atomic::{AtomicU8, Ordering};
use nucleus::{
    Frame, OutOfMemory,
    frame::{self, Contents},
    task::WaitQueue,
};

use super::slot::SlotNumber;
use super::store::StoreFailed;
use super::swap_state::{Home, Paged};
use super::table;
use super::table::Run;
use crate::chunks::{Chunk, SLOTS, bits_of};

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

/// Reads page `index` of `chunk` if it is in swap only, and with it up to `before` pages before it
/// and `behind` pages after it in the chunk, as far as they own neighbouring slots. The page may
/// have left memory again when this returns. No lock is held.
///
/// # Errors
/// [`PageInError::OutOfMemory`], [`PageInError::Io`].
pub(crate) fn page_in<T: Paged>(
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
                // The failure may be due to a neighbour.
                if run.len() == 1 {
                    return Err(PageInError::Io);
                }
                alone = true;
            }
        }
    }
}

/// Returns the slot of page `index`, and how many slots directly before and after it belong to
/// other pages in `window`; `None` unless the page is in swap only.
fn neighbours(
    home: &dyn Home,
    index: usize,
    window: core::ops::RangeInclusive<usize>,
) -> Option<(SlotNumber, usize, usize)> {
    let mut wanted = None;
    let mut numbers: [Option<SlotNumber>; SLOTS] = [None; SLOTS];
    home.visit(bits_of(window), &mut |i, location| {
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

/// Allocates frames for the slots of the run, which is cut to those around `wanted` for which there
/// is memory.
fn frames_for(run: &mut Run, wanted: SlotNumber) -> Result<Vec<Frame>, PageInError> {
    let mut frames = nucleus::try_vec(run.len())?;
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

/// The end of a read.
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
    match completion.ended.wait_soundly(ended) {
        DONE => Ok(()),
        _ => Err(StoreFailed),
    }
}

/// Gives the frames to the pages that still own the run's slots. They keep the slots while more
/// than half of all slots are free.
fn publish(home: &dyn Home, run: &Run, frames: Vec<Frame>) {
    let mut left: Vec<Option<Frame>> = frames.into_iter().map(Some).collect();
    let mut count = 0;
    // A valid slot saves a later write, but free slots matter more to pages that own none.
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
