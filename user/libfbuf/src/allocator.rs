//! The allocator of a path (`fbufs.txt` 3.3): divides the kernel's runs of chunks into fbufs of
//! whole pages. Freed fbufs wait on LIFO lists by size, with their mappings, and their memory is
//! reused first.

use std::collections::BTreeMap;
use std::io;

use crate::region::{CHUNK, PAGE};

/// Where runs of chunks come from, and go when they are idle.
pub(crate) trait Runs {
    /// Returns the address of a run of so many contiguous chunks.
    fn grow(&mut self, chunks: usize) -> io::Result<usize>;

    /// Takes a run back; `false` while something refers to it.
    fn shrink(&mut self, start: usize, chunks: usize) -> bool;

    /// Says that the contents of so many free pages need not be kept when memory is short.
    fn set_idle(&mut self, start: usize, pages: usize);

    /// Drops the contents of so many pages, whose memory is free until they are written again.
    fn drop_contents(&mut self, start: usize, pages: usize);
}

/// A run that this allocator divides.
#[derive(Debug)]
struct Run {
    start: usize,
    pages: usize,
    /// Pages from here on were never handed out.
    fresh: usize,
    /// Pages that are handed out.
    live: usize,
    /// The allocator's clock when the last page came back.
    idle_since: u64,
}

impl Run {
    fn has(&self, address: usize) -> bool {
        (self.start..self.start + self.pages * PAGE).contains(&address)
    }
}

/// The free fbufs of one size, the one that came back last at the end.
#[derive(Debug, Default)]
struct FreeList {
    /// The address of each, and the allocator's clock when it came back.
    fbufs: Vec<(usize, u64)>,
    /// So many of the first were called idle.
    idle: usize,
}

impl FreeList {
    fn pop(&mut self) -> Option<usize> {
        let (at, _) = self.fbufs.pop()?;
        self.idle = self.idle.min(self.fbufs.len());
        Some(at)
    }

    /// Calls those idle that are free for long, once each.
    fn look_for_idle(&mut self, clock: u64, pages: usize, runs: &mut impl Runs) {
        // A program that frees all of a long list now and then uses all of it.
        let long = IDLE + 4 * self.fbufs.len() as u64;
        let kept = self.fbufs.iter().skip(self.idle);
        for (at, _) in kept.take_while(|(_, since)| since + long <= clock) {
            runs.set_idle(*at, pages);
            self.idle += 1;
        }
    }
}

/// The allocator.
#[derive(Debug, Default)]
pub(crate) struct Allocator {
    runs: Vec<Run>,
    /// Free fbufs by their number of pages.
    free: BTreeMap<usize, FreeList>,
    /// Counts what came back.
    clock: u64,
}

/// A run goes back, and a free fbuf is called idle, once so many others came back since its last
/// use.
const IDLE: u64 = 1024;

/// Idle runs and fbufs are looked for each time that so many fbufs came back.
const LOOK: u64 = 256;

impl Allocator {
    /// Hands out so many contiguous pages.
    ///
    /// # Errors
    /// Those of [`Runs::grow`], when no memory that is left is large enough.
    pub(crate) fn allocate(&mut self, pages: usize, runs: &mut impl Runs) -> io::Result<usize> {
        let at = match self.find(pages) {
            Some(at) => at,
            None => {
                self.merge();
                match self.find(pages) {
                    Some(at) => at,
                    None => self.grow(pages, runs)?,
                }
            }
        };
        if let Some(run) = self.runs.iter_mut().find(|run| run.has(at)) {
            run.live += pages;
        }
        Ok(at)
    }

    /// Takes pages back that were handed out together.
    pub(crate) fn free(&mut self, at: usize, pages: usize, runs: &mut impl Runs) {
        self.clock += 1;
        let Some(run) = self.runs.iter_mut().find(|run| run.has(at)) else {
            return;
        };
        run.live -= pages;
        run.idle_since = self.clock;
        self.put(at, pages);
        if self.clock % LOOK == 0 {
            let oldest = self.clock.saturating_sub(IDLE);
            self.give_back(runs, |run| run.idle_since <= oldest);
            for (&pages, list) in &mut self.free {
                list.look_for_idle(self.clock, pages, runs);
            }
        }
    }

    /// Returns whether one of the runs has this address.
    pub(crate) fn has(&self, address: usize) -> bool {
        self.runs.iter().any(|run| run.has(address))
    }

    /// Gives back all runs that are idle, and the memory of free fbufs in the others.
    pub(crate) fn trim(&mut self, runs: &mut impl Runs) {
        self.give_back(runs, |_| true);
        for (pages, list) in &self.free {
            for (at, _) in &list.fbufs {
                runs.drop_contents(*at, *pages);
            }
        }
    }

    fn give_back(&mut self, runs: &mut impl Runs, may: impl Fn(&Run) -> bool) {
        let mut gone = Vec::new();
        self.runs.retain(|run| {
            let is_idle = run.live == 0 && may(run);
            let goes = is_idle && runs.shrink(run.start, run.pages * PAGE / CHUNK);
            if goes {
                gone.push(run.start..run.start + run.pages * PAGE);
            }
            !goes
        });
        if !gone.is_empty() {
            for list in self.free.values_mut() {
                let stays = |at: &usize| !gone.iter().any(|range| range.contains(at));
                let idle = list.fbufs.iter().take(list.idle);
                list.idle = idle.filter(|(at, _)| stays(at)).count();
                list.fbufs.retain(|(at, _)| stays(at));
            }
            self.free.retain(|_, list| !list.fbufs.is_empty());
        }
    }

    /// Finds pages without the kernel: those that came back last, never used ones, or a part of
    /// a larger fbuf.
    fn find(&mut self, pages: usize) -> Option<usize> {
        if let Some(at) = self.free.get_mut(&pages).and_then(FreeList::pop) {
            return Some(at);
        }
        let fits = |run: &&mut Run| run.pages - run.fresh >= pages;
        if let Some(run) = self.runs.iter_mut().find(fits) {
            let at = run.start + run.fresh * PAGE;
            run.fresh += pages;
            return Some(at);
        }
        let larger = self.free.range_mut(pages + 1..);
        let (size, at) = larger
            .filter_map(|(&size, list)| list.pop().map(|at| (size, at)))
            .next()?;
        self.put(at + pages * PAGE, size - pages);
        Some(at)
    }

    /// Merges neighbours among the free fbufs.
    fn merge(&mut self) {
        let lists = std::mem::take(&mut self.free).into_iter();
        let mut all: Vec<(usize, usize)> = lists
            .flat_map(|(pages, list)| list.fbufs.into_iter().map(move |(at, _)| (at, pages)))
            .collect();
        all.sort_unstable();
        let mut last: Option<(usize, usize)> = None;
        for (at, pages) in all {
            // Two runs may be neighbours, too, and go back one by one.
            let is_next = last.is_some_and(|(start, count)| {
                start + count * PAGE == at && !self.runs.iter().any(|run| run.start == at)
            });
            match &mut last {
                Some((_, count)) if is_next => *count += pages,
                _ => {
                    if let Some((start, count)) = last.replace((at, pages)) {
                        self.put_merged(start, count);
                    }
                }
            }
        }
        if let Some((start, count)) = last {
            self.put_merged(start, count);
        }
    }

    fn put_merged(&mut self, at: usize, pages: usize) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.has(at))
            && at + pages * PAGE == run.start + run.fresh * PAGE
        {
            run.fresh -= pages;
            return;
        }
        self.put(at, pages);
    }

    /// Puts pages on their free list.
    fn put(&mut self, at: usize, pages: usize) {
        let list = self.free.entry(pages).or_default();
        list.fbufs.push((at, self.clock));
    }

    fn grow(&mut self, pages: usize, runs: &mut impl Runs) -> io::Result<usize> {
        let chunks = (pages * PAGE).div_ceil(CHUNK);
        let start = runs.grow(chunks).or_else(|why| {
            // Idle runs of other sizes may leave room.
            self.give_back(runs, |_| true);
            runs.grow(chunks).map_err(|_| why)
        })?;
        self.runs.push(Run {
            start,
            pages: chunks * CHUNK / PAGE,
            fresh: pages,
            live: 0,
            idle_since: self.clock,
        });
        Ok(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::error;

    /// At most four chunks, at addresses that are not reused.
    #[derive(Default)]
    struct Few {
        given: Vec<(usize, usize)>,
        next: usize,
        idle: Vec<(usize, usize)>,
    }

    impl Runs for Few {
        fn grow(&mut self, chunks: usize) -> io::Result<usize> {
            let total: usize = self.given.iter().map(|it| it.1).sum();
            if total + chunks > 4 {
                return Err(error(libc::ENOSPC));
            }
            let start = CHUNK * (1 + self.next);
            self.next += chunks;
            self.given.push((start, chunks));
            Ok(start)
        }

        fn shrink(&mut self, start: usize, chunks: usize) -> bool {
            let at = self.given.iter().position(|it| *it == (start, chunks));
            self.given.remove(at.expect("a run that was given"));
            true
        }

        fn set_idle(&mut self, start: usize, pages: usize) {
            self.idle.push((start, pages));
        }

        fn drop_contents(&mut self, _: usize, _: usize) {}
    }

    const ALL: usize = CHUNK / PAGE;

    #[test]
    fn what_came_back_last_is_handed_out_first() {
        let (mut allocator, mut runs) = (Allocator::default(), Few::default());
        let at: Vec<_> = (0..3)
            .map(|_| allocator.allocate(2, &mut runs).unwrap())
            .collect();
        allocator.free(at[0], 2, &mut runs);
        allocator.free(at[2], 2, &mut runs);
        assert_eq!(allocator.allocate(2, &mut runs).unwrap(), at[2]);
        assert_eq!(allocator.allocate(2, &mut runs).unwrap(), at[0]);
        assert_eq!(runs.given.len(), 1);
    }

    #[test]
    fn small_fbufs_become_a_large_one_again() {
        let (mut allocator, mut runs) = (Allocator::default(), Few::default());
        let at: Vec<_> = (0..4 * ALL)
            .map(|_| allocator.allocate(1, &mut runs).unwrap())
            .collect();
        assert!(allocator.allocate(1, &mut runs).is_err());
        for at in at {
            allocator.free(at, 1, &mut runs);
        }
        for _ in 0..4 {
            allocator.allocate(ALL, &mut runs).unwrap();
        }
        assert!(allocator.allocate(1, &mut runs).is_err());
    }

    #[test]
    fn idle_runs_make_room_for_a_larger_one_and_go_back() {
        let (mut allocator, mut runs) = (Allocator::default(), Few::default());
        let at: Vec<_> = (0..4)
            .map(|_| allocator.allocate(ALL, &mut runs).unwrap())
            .collect();
        for at in at {
            allocator.free(at, ALL, &mut runs);
        }
        let large = allocator.allocate(3 * ALL, &mut runs).unwrap();
        assert_eq!(runs.given.len(), 1);
        allocator.free(large, 3 * ALL, &mut runs);
        allocator.trim(&mut runs);
        assert!(runs.given.is_empty() && allocator.free.is_empty());
    }

    #[test]
    fn a_run_that_stays_idle_goes_back() {
        let (mut allocator, mut runs) = (Allocator::default(), Few::default());
        let at: Vec<_> = (0..3)
            .map(|_| allocator.allocate(ALL, &mut runs).unwrap())
            .collect();
        for &at in &at[1..] {
            allocator.free(at, ALL, &mut runs);
        }
        assert_eq!(runs.given.len(), 3);
        for _ in 0..4 * IDLE {
            let one = allocator.allocate(ALL, &mut runs).unwrap();
            allocator.free(one, ALL, &mut runs);
        }
        assert_eq!(runs.given.len(), 2);
    }

    #[test]
    fn fbufs_that_stay_free_are_called_idle_once() {
        let (mut allocator, mut runs) = (Allocator::default(), Few::default());
        let at: Vec<_> = (0..3)
            .map(|_| allocator.allocate(2, &mut runs).unwrap())
            .collect();
        for &at in &at {
            allocator.free(at, 2, &mut runs);
        }
        let mut turns = |allocator: &mut Allocator| {
            for _ in 0..3 * IDLE {
                let one = allocator.allocate(2, &mut runs).unwrap();
                allocator.free(one, 2, &mut runs);
            }
            runs.idle.clone()
        };
        assert_eq!(turns(&mut allocator), [(at[0], 2), (at[1], 2)]);
        assert_eq!(turns(&mut allocator).len(), 2);
    }

    #[test]
    fn a_burst_of_fbufs_is_never_called_idle() {
        let (mut allocator, mut runs) = (Allocator::default(), Few::default());
        for _ in 0..10 {
            let burst: Vec<_> = (0..4 * ALL)
                .map(|_| allocator.allocate(1, &mut runs).unwrap())
                .collect();
            for at in burst {
                allocator.free(at, 1, &mut runs);
            }
        }
        assert!(runs.idle.is_empty());
    }

    #[test]
    fn live_fbufs_never_overlap() {
        let (mut allocator, mut runs) = (Allocator::default(), Few::default());
        let mut live: Vec<(usize, usize)> = Vec::new();
        let mut seed = 1u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = (seed >> 33) as usize;
            if draw % 2 == 0 {
                let pages = 1 + (draw >> 1) % 200;
                if let Ok(at) = allocator.allocate(pages, &mut runs) {
                    let end = at + pages * PAGE;
                    assert!(
                        live.iter()
                            .all(|it| end <= it.0 || it.0 + it.1 * PAGE <= at)
                    );
                    let is_inside = |it: &(usize, usize)| it.0 <= at && end <= it.0 + it.1 * CHUNK;
                    assert!(runs.given.iter().any(is_inside));
                    live.push((at, pages));
                }
            } else if !live.is_empty() {
                let (at, pages) = live.swap_remove((draw >> 1) % live.len());
                allocator.free(at, pages, &mut runs);
            }
        }
        for (at, pages) in live {
            allocator.free(at, pages, &mut runs);
        }
        allocator.trim(&mut runs);
        assert!(runs.given.is_empty());
    }
}
