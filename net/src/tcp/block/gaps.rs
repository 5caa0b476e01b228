//! Bytes that have arrived behind a gap.

use alloc::{boxed::Box, collections::VecDeque};

use fbuf::Aggregate;
use nucleus::try_box;

use super::sent::split;
use crate::tcp::segment::{MAX_SACKS, Sacks, Seq};

/// The most ranges that are kept: more need more gaps than a path makes.
const MOST_RANGES: usize = 64;
/// Bytes that a frame counts for at least, however few of them a slice shows.
const FRAME_BYTES: usize = 2048;

/// Bytes behind gaps. Without any it is a word, as is most of the time.
#[derive(Default, Debug)]
pub(super) struct Gaps(Option<Box<Ranges>>);

/// Ranges of bytes in order, with a gap before each.
#[derive(Default, Debug)]
struct Ranges {
    ranges: VecDeque<(Seq, Aggregate)>,
    /// The sum of what the ranges' slices keep.
    frames: usize,
    /// Numbers inside the ranges that were changed last, the latest first.
    recent: [Option<Seq>; MAX_SACKS],
}

fn end((seq, data): &(Seq, Aggregate)) -> Seq {
    *seq + data.len() as u32
}

impl Gaps {
    /// Returns how many frames are kept.
    pub fn frames(&self) -> usize {
        self.0.as_ref().map_or(0, |ranges| ranges.frames)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Keeps `data`, whose first byte is number `seq`, as far as there is room: `window` bytes, and
    /// frames in proportion. Bytes that are there already stay. Returns whether all numbers were
    /// there before.
    pub fn insert(&mut self, seq: Seq, data: Aggregate, window: usize) -> bool {
        if self.0.is_none() {
            self.0 = try_box(Ranges::default()).ok();
        }
        // Without memory the bytes count as lost.
        let Some(ranges) = &mut self.0 else {
            return false;
        };
        let is_known = ranges.insert(seq, data, window);
        self.free_if_empty();
        is_known
    }

    /// Adds the ranges that are reported to the sender.
    pub fn report(&self, sacks: &mut Sacks) {
        if let Some(ranges) = &self.0 {
            ranges.report(sacks);
        }
    }

    /// Takes off the bytes that follow `next`, the number that is due.
    pub fn take(&mut self, next: Seq) -> Option<Aggregate> {
        let taken = self.0.as_mut()?.take(next);
        self.free_if_empty();
        taken
    }

    fn free_if_empty(&mut self) {
        self.0.take_if(|ranges| ranges.ranges.is_empty());
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.0 = None;
    }
}

impl Ranges {
    /// See [`Gaps::insert`].
    fn insert(&mut self, mut seq: Seq, mut data: Aggregate, window: usize) -> bool {
        let first = seq;
        let mut is_known = true;
        while !data.is_empty() {
            let at = self.ranges.partition_point(|range| end(range) <= seq);
            if let Some(range) = self.ranges.get(at)
                && range.0 <= seq
            {
                let n = end(range).since(seq).min(data.len() as u32);
                data.clip_front(n as usize);
                seq += n;
                continue;
            }
            is_known = false;
            let next = self.ranges.get(at).map(|range| range.0);
            let n = next.map_or(data.len(), |next| data.len().min(next.since(seq) as usize));
            let Ok(part) = split(&mut data, n) else {
                break;
            };
            if !self.add(at, seq, part, window) {
                break;
            }
            seq += n as u32;
        }
        self.note_recent(first);
        is_known
    }

    /// Adds a range that overlaps no other before range `at`; false without room.
    fn add(&mut self, at: usize, seq: Seq, mut part: Aggregate, window: usize) -> bool {
        if (self.frames + part.frame_count()) * FRAME_BYTES > 2 * window {
            return false;
        }
        let continues = at > 0 && end(&self.ranges[at - 1]) == seq;
        let mut place = at;
        if continues {
            let range = &mut self.ranges[at - 1].1;
            let before = range.frame_count();
            if range.join(&mut part).is_err() {
                return false;
            }
            self.frames += range.frame_count() - before;
            place = at - 1;
        } else {
            if self.ranges.len() >= MOST_RANGES || self.ranges.try_reserve(1).is_err() {
                return false;
            }
            self.frames += part.frame_count();
            self.ranges.insert(at, (seq, part));
        }
        // The gap behind it may be closed.
        if let Some(next) = self.ranges.get(place + 1)
            && next.0 == end(&self.ranges[place])
            && let Some((seq, mut next)) = self.ranges.remove(place + 1)
        {
            let range = &mut self.ranges[place].1;
            let before = range.frame_count() + next.frame_count();
            match range.join(&mut next) {
                Ok(()) => self.frames -= before - range.frame_count(),
                Err(_) => self.ranges.insert(place + 1, (seq, next)),
            }
        }
        true
    }

    fn note_recent(&mut self, seq: Seq) {
        let same = self.range_with(seq);
        let others = self.recent;
        let kept = others
            .into_iter()
            .flatten()
            .filter(|other| self.range_with(*other) != same);
        let mut all = core::iter::once(seq).chain(kept);
        self.recent = [(); MAX_SACKS].map(|()| all.next());
    }

    fn range_with(&self, seq: Seq) -> Option<(Seq, Seq)> {
        let at = self.ranges.partition_point(|range| end(range) <= seq);
        let range = self.ranges.get(at).filter(|range| range.0 <= seq)?;
        Some((range.0, end(range)))
    }

    /// See [`Gaps::report`].
    fn report(&self, sacks: &mut Sacks) {
        for seq in self.recent.iter().flatten() {
            if let Some((left, right)) = self.range_with(*seq) {
                sacks.push(left, right);
            }
        }
    }

    /// See [`Gaps::take`].
    fn take(&mut self, next: Seq) -> Option<Aggregate> {
        self.ranges.front().filter(|range| range.0 <= next)?;
        let (seq, mut data) = self.ranges.pop_front()?;
        self.frames -= data.frame_count();
        let known = next.since(seq) as usize;
        data.clip_front(known.min(data.len()));
        Some(data)
    }
}

#[cfg(all(test, not(target_os = "none")))]
mod tests {
    extern crate std;

    use super::*;
    use fbuf::Slice;
    use nucleus::{
        Frame,
        frame::{Contents, LARGEST_BLOCK},
        sim::{below, on_machines_with},
    };

    /// Ranges come in any order, as parts of frames and of blocks; what they keep is known, and no
    /// more than the window allows.
    #[test]
    fn ranges_count_by_the_frames_that_they_keep() {
        on_machines_with("gaps", [1], 4096, 20, || {
            const WINDOW: usize = 128 << 10;
            let mut gaps = Gaps::default();
            let mut most = 0;
            for _ in 0..500 {
                let mut data = Aggregate::new();
                for _ in 0..1 + below(3) {
                    let order = below(LARGEST_BLOCK + 1);
                    let block = Frame::alloc_block(order, Contents::Zeroed);
                    let frame = block.or_else(|_| Frame::alloc(Contents::Zeroed)).unwrap();
                    let len = 1 + below(200);
                    let at = below(frame.size() - len);
                    data.append(Slice::part(&frame, at, len)).unwrap();
                }
                match below(10) {
                    0 => drop(gaps.take(Seq(below(20_000) as u32))),
                    _ => drop(gaps.insert(Seq(1 + below(20_000) as u32), data, WINDOW)),
                }
                let ranges = gaps.0.iter().flat_map(|ranges| &ranges.ranges);
                let kept = ranges.map(|range| range.1.frame_count());
                assert_eq!(gaps.frames(), kept.sum::<usize>());
                assert!(gaps.frames() * FRAME_BYTES <= 2 * WINDOW);
                most = most.max(gaps.frames());
            }
            assert!(most * FRAME_BYTES > WINDOW, "no more than {most} frames");
        });
    }
}
