//! Which ids are taken.

use super::{FIRST_AGAIN, LAST_PID};
use crate::process::Pid;

const WORDS: usize = (LAST_PID as usize + 1).div_ceil(64);

/// A bit for each id: to find a free one takes some hundred steps at most, however many are taken.
pub(super) struct Ids {
    taken: [u64; WORDS],
    /// Those from [`FIRST_AGAIN`] on that are taken.
    count: usize,
    /// The last one that was found.
    last: Pid,
}

impl Ids {
    pub(super) const fn new() -> Self {
        Self {
            taken: [0; WORDS],
            count: 0,
            last: 0,
        }
    }

    /// Takes the first free id behind the last one that was found, up to `highest`; behind that the
    /// search goes on at [`FIRST_AGAIN`].
    pub(super) fn take_next(&mut self, highest: Pid) -> Option<Pid> {
        let from = match self.last >= highest {
            true => FIRST_AGAIN,
            false => self.last + 1,
        };
        let found = self.free_in(from, highest);
        let id = found.or_else(|| self.free_in(FIRST_AGAIN, highest))?;
        self.take(id);
        self.last = id;
        Some(id)
    }

    /// Takes this id, which is at most [`LAST_PID`]; returns whether it was free.
    pub(super) fn take(&mut self, id: Pid) -> bool {
        let (word, bit) = (&mut self.taken[id as usize / 64], 1 << (id % 64));
        let was_free = *word & bit == 0;
        *word |= bit;
        self.count += usize::from(was_free && id >= FIRST_AGAIN);
        was_free
    }

    /// Frees an id.
    pub(super) fn free(&mut self, id: Pid) {
        let (word, bit) = (&mut self.taken[id as usize / 64], 1 << (id % 64));
        self.count -= usize::from(*word & bit != 0 && id >= FIRST_AGAIN);
        *word &= !bit;
    }

    /// Returns how many of [`FIRST_AGAIN`]`..=highest` are free; fewer if higher ones are taken.
    pub(super) fn free_up_to(&self, highest: Pid) -> usize {
        let all = (highest + 1).saturating_sub(FIRST_AGAIN) as usize;
        all.saturating_sub(self.count)
    }

    /// The last id that was found by [`take_next`](Self::take_next).
    pub(super) fn last(&self) -> Pid {
        self.last
    }

    /// The first free one of `from..=to`.
    fn free_in(&self, from: Pid, to: Pid) -> Option<Pid> {
        // Those before `from` in its word.
        let mut skipped = (1u64 << (from % 64)) - 1;
        for word in from as usize / 64..=to as usize / 64 {
            let free = !(self.taken[word] | skipped);
            if free != 0 {
                let id = word as Pid * 64 + free.trailing_zeros();
                return (id <= to).then_some(id);
            }
            skipped = 0;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, vec::Vec};

    use nucleus::sim::Random;

    use super::*;

    #[test]
    fn as_a_set_that_is_searched_one_by_one() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut ids, mut set, mut last) = (Ids::new(), BTreeSet::new(), 0);
            // Few, so that they run out.
            let mut highest = 300 + random.below(300) as Pid;
            for _ in 0..5000 {
                match random.below(100) {
                    0 => highest = 302 + random.below(300) as Pid,
                    1..60 => {
                        let up = |id: Pid| if id >= highest { FIRST_AGAIN } else { id + 1 };
                        let mut next = last;
                        let tries = (0..=highest).map(|_| {
                            next = up(next);
                            next
                        });
                        let expected = tries.into_iter().find(|id| !set.contains(id));
                        assert_eq!(ids.take_next(highest), expected);
                        if let Some(id) = expected {
                            set.insert(id);
                            last = id;
                        }
                        assert_eq!(ids.last(), last);
                        let taken = set.range(FIRST_AGAIN..).count();
                        let all = (highest + 1 - FIRST_AGAIN) as usize;
                        assert_eq!(ids.free_up_to(highest), all.saturating_sub(taken));
                    }
                    60..65 => {
                        let id = 1 + random.below(LAST_PID as usize) as Pid;
                        assert_eq!(ids.take(id), set.insert(id));
                    }
                    _ => {
                        let all: Vec<Pid> = set.iter().copied().collect();
                        if !all.is_empty() {
                            let id = all[random.below(all.len())];
                            set.remove(&id);
                            ids.free(id);
                        }
                    }
                }
            }
        }
    }
}
