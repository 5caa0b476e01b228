//! Persistent memory: RAM whose bytes outlive the machine. Its frames have records like all others,
//! so that programs can map them, but the allocator never has one.

use alloc::vec::Vec;
use core::ops::Range;

use super::frame::{Frame, adopt_persistent, flush_adopted};
use crate::hw::machine;
use crate::lock::{Rank, SpinLock};
use crate::{OutOfMemory, PAGE_SIZE};

/// Ranges that are kept.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
const MOST: usize = 4;

/// Frames of each range that the firmware reported, until they are taken.
static FOUND: SpinLock<Vec<Range<u64>>> = SpinLock::new(Rank::Leaf, Vec::new());

/// Frames of a piece of [`take`]'s list: a few pages of the kernel's heap.
const PIECE: usize = 4096;

/// Notes a range of frames that have records, which nothing uses.
///
/// # Safety
/// The frames were regions in use, and persistent ones, at `frame::init`; each is noted once.
#[cfg_attr(not(target_os = "none"), allow(dead_code))]
pub(crate) unsafe fn found(frames: Range<u64>) {
    let mut found = FOUND.lock();
    let has_room = found.len() < MOST && found.try_reserve(1).is_ok();
    if has_room {
        found.push(frames.clone());
    }
    drop(found);
    if !has_room {
        crate::log!("persistent memory: frames {frames:#x?} are too many ranges: not used");
    }
}

/// Takes a range of persistent memory that was not taken before: its frames in order, in pieces,
/// with the bytes that they have. The caller keeps a handle of each for ever, since a frame that is
/// given up becomes ordinary memory. `None` if there is no more.
///
/// # Errors
/// [`OutOfMemory`] for the list: the range is not used, and keeps its bytes.
pub fn take() -> Result<Option<Vec<Vec<Frame>>>, OutOfMemory> {
    let taken = FOUND.lock().pop();
    let Some(frames) = taken else {
        return Ok(None);
    };
    let count = (frames.end - frames.start) as usize;
    // Room for all handles before there is one: a handle that is dropped frees its frame.
    let mut pieces = crate::try_vec(count.div_ceil(PIECE))?;
    for at in (0..count).step_by(PIECE) {
        pieces.push(crate::try_vec(PIECE.min(count - at))?);
    }
    for (first, piece) in frames.clone().step_by(PIECE).zip(&mut pieces) {
        for number in first..frames.end.min(first + PIECE as u64) {
            // SAFETY: `found`'s caller promises that the frame has no user, and it was taken out of
            // the list, so this is the only time.
            let frame = unsafe { adopt_persistent(number) };
            piece.extend(frame);
        }
    }
    flush_adopted();
    Ok(Some(pieces))
}

/// Makes what was stored into a frame until now survive a loss of power, if it is of persistent
/// memory: nothing of it is in a processor's cache when this returns.
pub fn persist(frame: &Frame) {
    frame.with_bytes(|bytes| machine::write_back_caches(bytes, PAGE_SIZE));
}
