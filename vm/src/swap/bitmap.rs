//! The state of a device's slots, in groups that are small enough for the kernel's heap.

use alloc::{boxed::Box, vec::Vec};
use nucleus::frame;

use super::usage::SwapError;
use crate::memory_wait::{MemoryWait, wait_for_memory};

/// Words of a bitmap of one group: 960 slots, almost 4 MiB of swap space, in 488 bytes.
const WORDS: usize = 15;
/// Slots of a group.
const GROUP: u32 = WORDS as u32 * 64;

/// Groups in one list: 2 KiB of addresses, which need no consecutive frames.
const ROW: usize = 256;

/// Failed attempts in a row to allocate the next group although the pagedaemon made progress;
/// [`wait_for_memory`] takes up to 50 ms for each. After that, adding the device fails: other tasks
/// take all the memory.
const IN_VAIN: usize = 16;

/// Runs, free or not, that a search visits before it takes any free one. Other tasks wait for the
/// table meanwhile, and where every other slot is free, each page-out would visit the whole device.
/// The next search continues after it.
const LOOKS: usize = 4096;

/// A mark on a slot. `Cached` goes with `Owned`; each of the others makes a slot not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// A page owns it.
    Owned,
    /// It is being read or written.
    Busy,
    /// Writing it failed, or it does not exist.
    Bad,
    /// Its page is in memory as well.
    Cached,
}

/// Consecutive slots of a device. A slot without a mark is free.
struct Group {
    marks: [[u64; WORDS]; 4],
    /// Slots without a mark.
    free: u32,
}

/// The slots of a device.
pub(super) struct Bitmap {
    #[allow(clippy::vec_box)]
    groups: Vec<Vec<Box<Group>>>,
    pub slots: u32,
}

/// Consecutive free slots.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct FreeRun {
    pub first: u32,
    pub len: u32,
}

impl Group {
    fn taken(&self, word: usize) -> u64 {
        self.marks[0][word] | self.marks[1][word] | self.marks[2][word]
    }
}

impl Bitmap {
    /// Returns a bitmap of `slots` free slots. Waits for memory as long as the pagedaemon makes
    /// progress and `interrupted` returns false: swap space is added when memory is short. Keeps
    /// what it has allocated so far, so that the memory need not be free all at once.
    ///
    /// # Errors
    /// [`SwapError::NoMemory`], [`SwapError::Interrupted`].
    pub fn new(slots: u32, interrupted: &dyn Fn() -> bool) -> Result<Bitmap, SwapError> {
        let count = slots.div_ceil(GROUP) as usize;
        let mut groups = Vec::new();
        let rows = count.div_ceil(ROW);
        wait_until(interrupted, || groups.try_reserve_exact(rows).is_ok())?;
        for first in (0..count).step_by(ROW) {
            let mut row = Vec::new();
            let len = ROW.min(count - first);
            wait_until(interrupted, || row.try_reserve_exact(len).is_ok())?;
            for _ in 0..len {
                wait_until(interrupted, || !frame::is_scarce())?;
                row.push(Box::new(Group {
                    marks: [[0; WORDS]; 4],
                    free: GROUP,
                }));
            }
            groups.push(row);
        }
        let mut bitmap = Bitmap { groups, slots };
        for slot in slots..count as u32 * GROUP {
            bitmap.set(slot, Mark::Bad);
        }
        Ok(bitmap)
    }

    fn group(&self, number: usize) -> Option<&Group> {
        Some(self.groups.get(number / ROW)?.get(number % ROW)?)
    }

    fn group_mut(&mut self, number: usize) -> &mut Group {
        &mut self.groups[number / ROW][number % ROW]
    }

    fn place(slot: u32) -> (usize, usize, u64) {
        let within = slot % GROUP;
        let bit = 1 << (within % 64);
        ((slot / GROUP) as usize, (within / 64) as usize, bit)
    }

    /// Returns whether the slot has the mark; a slot beyond the end has none. A caller may hold the
    /// number of a slot whose device was replaced by a smaller one.
    pub fn has(&self, slot: u32, mark: Mark) -> bool {
        let (group, word, bit) = Bitmap::place(slot);
        let group = self.group(group);
        group.is_some_and(|group| group.marks[mark as usize][word] & bit != 0)
    }

    /// Sets the mark; returns whether it was clear.
    pub fn set(&mut self, slot: u32, mark: Mark) -> bool {
        let (group, word, bit) = Bitmap::place(slot);
        let group = self.group_mut(group);
        let was_free = group.taken(word) & bit == 0;
        let marks = &mut group.marks[mark as usize][word];
        let changed = *marks & bit == 0;
        *marks |= bit;
        group.free -= u32::from(was_free);
        changed
    }

    /// Clears the mark; returns whether it was set.
    pub fn clear(&mut self, slot: u32, mark: Mark) -> bool {
        let (group, word, bit) = Bitmap::place(slot);
        let group = self.group_mut(group);
        let marks = &mut group.marks[mark as usize][word];
        let changed = *marks & bit != 0;
        *marks &= !bit;
        let is_free = changed && group.taken(word) & bit == 0;
        group.free += u32::from(is_free);
        changed
    }

    /// Finds `most` consecutive free slots, searching from slot `from` to the end and then from the
    /// start. Otherwise returns the longest run, perhaps only of those that it [visited](LOOKS).
    pub fn find(&self, from: u32, most: u32) -> FreeRun {
        let mut best = FreeRun::default();
        let mut looks = 0;
        for range in [from..self.slots, 0..from] {
            let mut at = range.start;
            let mut run = FreeRun::default();
            while at < range.end {
                looks += 1;
                if looks > LOOKS && best.len > 0 {
                    return best;
                }
                let (group, word, bit) = Bitmap::place(at);
                let (step, free) = self.step(group, word, bit);
                if free {
                    if run.len == 0 {
                        run.first = at;
                    }
                    run.len += step.min(range.end - at);
                    if run.len >= most {
                        run.len = most;
                        return run;
                    }
                    if run.len > best.len {
                        best = run;
                    }
                } else {
                    run.len = 0;
                }
                at += step;
            }
        }
        best
    }

    /// Returns how many slots from this one on are in the same state, as far as one word or group
    /// shows, and whether they are free.
    fn step(&self, group: usize, word: usize, bit: u64) -> (u32, bool) {
        let group = &self.groups[group / ROW][group % ROW];
        let bits_before = bit.trailing_zeros();
        if group.free == 0 {
            return (GROUP - (word as u32 * 64 + bits_before), false);
        }
        let taken = group.taken(word) >> bits_before;
        let left = 64 - bits_before;
        match taken & 1 {
            0 => (taken.trailing_zeros().min(left), true),
            _ => (taken.trailing_ones().min(left), false),
        }
    }
}

/// Waits until `has_enough` memory.
fn wait_until(
    interrupted: &dyn Fn() -> bool,
    mut has_enough: impl FnMut() -> bool,
) -> Result<(), SwapError> {
    let mut in_vain = 0;
    while !has_enough() {
        if interrupted() {
            return Err(SwapError::Interrupted);
        }
        if in_vain == IN_VAIN || wait_for_memory() == MemoryWait::Exhausted {
            return Err(SwapError::NoMemory);
        }
        in_vain += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::{Bitmap, FreeRun, GROUP, Mark};

    fn bitmap(slots: u32) -> Bitmap {
        Bitmap::new(slots, &|| false).expect("memory")
    }

    /// The same search on a plain list.
    fn find(free: &[bool], from: u32, most: u32) -> FreeRun {
        let mut best = FreeRun::default();
        for range in [from..free.len() as u32, 0..from] {
            let mut run = FreeRun::default();
            for slot in range {
                match free[slot as usize] {
                    true if run.len == 0 => (run.first, run.len) = (slot, 1),
                    true => run.len += 1,
                    false => run.len = 0,
                }
                if run.len > best.len {
                    best = run;
                }
                if best.len == most {
                    return best;
                }
            }
        }
        best
    }

    #[test]
    fn finds_the_next_row_that_is_long_enough_and_else_the_longest() {
        let slots = GROUP * 3 + 100;
        let mut random: u64 = 1;
        let mut below = |end: u32| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            (random >> 33) as u32 % end
        };
        let mut bitmap = bitmap(slots);
        let mut free = vec![true; slots as usize];
        for round in 0..400 {
            // Takes and frees runs of any length, among them whole groups and runs that cross
            // groups; at times few slots are free.
            let first = below(slots);
            let end = (first + 1 + below([3, 80, GROUP * 2][round % 3])).min(slots);
            let take = below(if round / 100 % 2 == 0 { 3 } else { 8 }) != 0;
            for slot in first..end {
                match take {
                    true => bitmap.set(slot, Mark::Owned),
                    false => bitmap.clear(slot, Mark::Owned),
                };
                free[slot as usize] = !take;
            }
            for from in [0, end % slots, below(slots)] {
                for most in [1, 16, 64, GROUP + 50] {
                    let found = bitmap.find(from, most);
                    assert_eq!(found, find(&free, from, most), "{most} from {from}");
                }
            }
        }
    }

    #[test]
    fn among_single_slots_a_search_ends_before_the_device() {
        let slots = GROUP * 50;
        let mut bitmap = bitmap(slots);
        // Every other slot is free, and all of the last group.
        for slot in (0..slots - GROUP).step_by(2) {
            bitmap.set(slot, Mark::Owned);
        }
        for from in [0, 5000, slots / 2] {
            let found = bitmap.find(from, 64);
            assert_eq!(found.len, 1, "{found:?} from {from}");
            assert!((from..from + 5000).contains(&found.first), "{found:?}");
        }
        assert_eq!(bitmap.find(slots - GROUP - 5, 64).len, 64);
        // As long as no slot is free, the search continues to the end.
        for slot in 1..slots - 3 {
            bitmap.set(slot, Mark::Owned);
        }
        let (first, len) = (slots - 3, 3);
        assert_eq!(bitmap.find(1, 64), FreeRun { first, len });
    }

    #[test]
    fn a_row_may_cross_groups_and_ends_with_the_device() {
        let mut bitmap = bitmap(GROUP + 5);
        let all = FreeRun {
            first: 0,
            len: GROUP + 5,
        };
        assert_eq!(bitmap.find(0, u32::MAX), all);
        (0..GROUP + 5).for_each(|slot| assert!(bitmap.set(slot, Mark::Owned)));
        assert_eq!(bitmap.find(77, 1).len, 0);
        (GROUP - 3..GROUP + 4).for_each(|slot| assert!(bitmap.clear(slot, Mark::Owned)));
        let (first, len) = (GROUP - 3, 7);
        assert_eq!(bitmap.find(GROUP + 4, 32), FreeRun { first, len });
    }

    #[test]
    fn a_slot_is_free_without_any_mark() {
        let mut bitmap = bitmap(3);
        assert!(bitmap.set(1, Mark::Owned) && bitmap.set(1, Mark::Busy));
        assert!(!bitmap.set(1, Mark::Busy));
        assert!(bitmap.clear(1, Mark::Owned) && !bitmap.clear(1, Mark::Owned));
        assert_eq!(bitmap.find(0, 3).len, 1);
        assert!(bitmap.clear(1, Mark::Busy));
        assert_eq!(bitmap.find(0, 5), FreeRun { first: 0, len: 3 });
    }
}
