//! Handles that are given up together.

use core::ops::Range;
use core::sync::atomic::{Ordering, fence};

use super::counts::is_one_handle;
use super::owned::give_up_owned;
use super::record::record;
use super::{Frame, Owned, RUN_FRAMES, block, cache, held, is_last_handle, make_free};
use crate::hw::machine;

/// Handles that are given up one after the other: as dropping each, but neighbours that become free
/// in this order go back to the allocator together. What a program fills in order lies in frames in
/// order mostly, and in a large page always.
pub struct Bundle {
    /// Frames that are free and have not been given back: at most [`RUN_FRAMES`].
    run: Range<u32>,
}

impl Bundle {
    /// None yet.
    pub const fn new() -> Bundle {
        Bundle { run: 0..0 }
    }

    /// Gives up one more.
    #[inline]
    pub fn add(&mut self, frame: Frame) {
        machine::point();
        let index = frame.into_index();
        // As in `Frame::drop`.
        if is_last_handle(index) {
            fence(Ordering::Acquire);
            self.free(index);
        }
    }

    /// Gives up one more, and its ownership. Returns whether the frame has other owners.
    #[inline]
    pub fn add_owned(&mut self, owned: Owned) -> bool {
        machine::point();
        let index = owned.into_index();
        let at = record(index).counts();
        let counts = at.load(Ordering::Acquire);
        // As in `Owned::drop`.
        match is_one_handle(counts) {
            true => {
                self.free(index);
                false
            }
            false => give_up_owned(index, at, counts),
        }
    }

    /// Adds a frame without other handles.
    #[inline(always)]
    fn free(&mut self, index: u32) {
        if held::is_held(index) {
            return;
        }
        let order = record(index).order();
        if order > 0 {
            return block::free(index, order);
        }
        make_free(index);
        if index != self.run.end || index.is_multiple_of(RUN_FRAMES as u32) {
            give_back(self.run.clone());
            self.run.start = index;
        }
        self.run.end = index + 1;
    }
}

/// By value, so that a loop that fills a bundle has the run in registers.
#[inline(never)]
fn give_back(run: Range<u32>) {
    cache::give_run(run);
}

impl Default for Bundle {
    fn default() -> Bundle {
        Bundle::new()
    }
}

impl Drop for Bundle {
    #[inline]
    fn drop(&mut self) {
        if !self.run.is_empty() {
            give_back(self.run.clone());
        }
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    use super::*;
    use crate::frame::{Contents, Run, usage};
    use crate::sim::{below, on_machines_with, random_u64};
    use crate::task;

    /// All runs that there are.
    fn runs() -> Vec<Run> {
        core::iter::from_fn(|| Run::alloc(Contents::Stale).ok()).collect()
    }

    /// Frames in any order, some of which others hold as well, go as if each were dropped: those
    /// that are held stay what they are, and when these have gone, too, there are as many large
    /// runs as before.
    #[test]
    fn bundles_are_frames() {
        on_machines_with("bundles are frames", [1, 2], 4 * 1024, 20, bundles);
    }

    fn bundles() {
        let before = usage();
        let count = runs().len();
        assert!(count >= 5, "{count} runs");
        let mut kept: Vec<Frame> = Vec::new();
        for _ in 0..10 {
            let mut bundle = Bundle::new();
            let mut frames: Vec<Frame> = match below(2) {
                0 => runs().into_iter().flat_map(Run::into_frames).collect(),
                _ => (0..below(700))
                    .map_while(|_| Frame::alloc(Contents::Stale).ok())
                    .collect(),
            };
            match below(4) {
                0 => frames.reverse(),
                1 => frames.sort_by_cached_key(|_| random_u64()),
                _ => {}
            }
            let keep = [0, 1, 30, 400][below(4)];
            for frame in frames {
                if below(1000) < keep {
                    kept.push(frame.clone());
                }
                bundle.add(frame);
                if below(100) == 0 {
                    task::yield_now();
                }
            }
            drop(bundle);
            assert!(kept.iter().all(|frame| frame.handles() == 1));
            assert_eq!(usage().data, before.data + kept.len());
            assert_eq!(usage().free, before.free - kept.len());
            kept.truncate(below(kept.len() + 1));
        }
        drop(kept);
        assert_eq!(usage(), before);
        while cache::drain() {}
        assert_eq!(runs().len(), count);
    }
}
