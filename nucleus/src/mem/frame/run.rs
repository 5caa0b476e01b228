//! Frames in a row that one large page-table entry can map.

use core::mem::ManuallyDrop;

use super::record::{Type, bytes, record};
use super::{
    Bundle, Contents, Frame, OutOfMemory, buddy, check_junk, counts, directmap, fails,
    refuses_blocks, targets, zero,
};
use crate::PAGE_SIZE;
use crate::counters::Counter;

/// Frames in a [`Run`]: 2 MiB, what one table of level 1 maps.
pub const RUN_FRAMES: usize = 1 << RUN_ORDER;
const RUN_ORDER: usize = 9;

/// A handle to each of [`RUN_FRAMES`] neighbouring data frames, the first of which lies at a
/// multiple of their size. They are frames like all others: each is counted by itself, and free
/// when its own last handle goes.
pub struct Run {
    first: u32,
}

impl Run {
    /// Takes frames from the buddy allocator. Neither page tables kept ready nor what CPUs keep for
    /// themselves is given up for it.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there are no such frames in a row, or the kernel's own reserve would be
    /// touched.
    pub fn alloc(contents: Contents) -> Result<Run, OutOfMemory> {
        if fails() || refuses_blocks() {
            return Err(OutOfMemory);
        }
        let take = || buddy::take(RUN_ORDER, buddy::Depth::Data);
        let first = take().or_else(|| directmap::hide().then(take)?);
        let first = first.ok_or(OutOfMemory)?;
        targets::look();
        for index in first..first + RUN_FRAMES as u32 {
            check_junk(index);
            record(index).set_kind(Type::Free, Type::Writable);
            counts::start(index);
        }
        if contents == Contents::Zeroed {
            zero_run(first);
            Counter::pages_zeroed.add(RUN_FRAMES as u64);
        }
        Ok(Run { first })
    }

    /// Whether these may be the first and the last frame of a run.
    pub fn may_have_ends(first: &Frame, last: &Frame) -> bool {
        first.index().is_multiple_of(RUN_FRAMES as u32)
            && last.index() == first.index() + RUN_FRAMES as u32 - 1
    }

    /// Another handle to each of these frames, if they are such a run: [`RUN_FRAMES`] of them in
    /// this order.
    pub fn of<'a>(frames: impl Iterator<Item = &'a Frame>) -> Option<Run> {
        // Handles of a run that was not completed go with this.
        struct Part {
            first: u32,
            count: usize,
        }
        impl Drop for Part {
            fn drop(&mut self) {
                for index in self.first..self.first + self.count as u32 {
                    drop(Frame::from_index(index));
                }
            }
        }
        let mut part = Part { first: 0, count: 0 };
        for frame in frames {
            if part.count == 0 {
                part.first = frame.index();
            }
            let expected = part.first + part.count as u32;
            let fits = part.count < RUN_FRAMES
                && part.first.is_multiple_of(RUN_FRAMES as u32)
                && frame.index() == expected;
            if !fits {
                return None;
            }
            frame.clone().into_index();
            part.count += 1;
        }
        (part.count == RUN_FRAMES).then(|| Run {
            first: ManuallyDrop::new(part).first,
        })
    }

    /// The number of the first frame.
    pub(crate) fn first(&self) -> u32 {
        self.first
    }

    /// The handles, in order.
    pub fn into_frames(self) -> impl Iterator<Item = Frame> {
        let run = ManuallyDrop::new(self);
        Frames {
            next: run.first,
            end: run.first + RUN_FRAMES as u32,
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(Frames {
            next: self.first,
            end: self.first + RUN_FRAMES as u32,
        });
    }
}

/// Zeroes the frames of a run that the caller owns alone, all of which have the same place.
fn zero_run(first: u32) {
    if record(first).is_direct() {
        // SAFETY: the frames have just been taken from the free ones, so nothing else uses them;
        // they lie in a row, and so do their bytes in the direct map.
        return unsafe { core::ptr::write_bytes(bytes(first), 0, RUN_FRAMES * PAGE_SIZE) };
    }
    (first..first + RUN_FRAMES as u32).for_each(zero);
}

/// The handles of the frames from `next` on.
struct Frames {
    next: u32,
    end: u32,
}

impl Iterator for Frames {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        (self.next < self.end).then(|| {
            self.next += 1;
            Frame::from_index(self.next - 1)
        })
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let mut bundle = Bundle::new();
        self.for_each(|frame| bundle.add(frame));
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::*;
    use crate::frame::usage;
    use crate::sim::on_machines_with;

    /// Runs are taken until there are none, handed out singly, found again, and all frames come
    /// back.
    #[test]
    fn runs_are_frames() {
        on_machines_with("runs are frames", [2], 3 * 1024, 20, || {
            let before = usage();
            let runs: Vec<Run> =
                core::iter::from_fn(|| Run::alloc(Contents::Zeroed).ok()).collect();
            assert!(runs.len() >= 4, "{} runs", runs.len());
            assert_eq!(usage().data, before.data + runs.len() * RUN_FRAMES);
            for run in runs {
                assert!((run.first as usize).is_multiple_of(RUN_FRAMES));
                let mut frames: Vec<Frame> = run.into_frames().collect();
                assert!(frames.iter().all(|frame| frame.handles() == 1));
                let again = Run::of(frames.iter()).unwrap();
                assert!(frames.iter().all(|frame| frame.handles() == 2));
                assert!(
                    Run::of(frames[1..].iter()).is_none(),
                    "too few, and not aligned"
                );
                assert!(
                    Run::of(frames.iter().chain(&frames[..1])).is_none(),
                    "too many"
                );
                drop(again);
                frames.swap(3, 4);
                assert!(Run::of(frames.iter()).is_none(), "not in order");
                assert!(frames.iter().all(|frame| frame.handles() == 1));
            }
            assert_eq!(usage().data, before.data);
            assert_eq!(usage().free, before.free);
        });
    }
}
