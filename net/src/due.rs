//! A queue of timers under a spin lock: setting and moving one takes no memory.
//!
//! A binary heap by time. Each element is in it from its addition, which takes the memory, to its
//! removal; one without a timer has the time [`NEVER`]. An element knows its place, so that it is
//! moved and removed in O(log n).

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nucleus::{Slots, Spare, SpareSize};

/// The time of an element without a timer.
pub const NEVER: u64 = u64::MAX;
/// The place of an element that is in no queue.
const NOWHERE: u32 = u32::MAX;

/// An element's place in its queue. It changes under the queue's lock.
pub struct Place(AtomicU32);

impl Place {
    /// That of an element in no queue.
    pub const fn none() -> Place {
        Place(AtomicU32::new(NOWHERE))
    }

    fn get(&self) -> Option<usize> {
        let at = self.0.load(Relaxed);
        (at != NOWHERE).then_some(at as usize)
    }
}

/// Has a place in one queue.
pub trait HasPlace {
    /// Returns the place.
    fn place(&self) -> &Place;
}

/// Elements by their times.
pub struct DueQueue<T> {
    /// The places in use are the first ones: an element is removed after it was moved to the end.
    heap: Slots<(u64, T)>,
}

impl<T: HasPlace> DueQueue<T> {
    /// Makes an empty queue. Allocates nothing.
    pub const fn new() -> DueQueue<T> {
        DueQueue { heap: Slots::new() }
    }

    /// Adds an element without a timer, as [`Slots::add`] does: for [`Slots::add_with`].
    ///
    /// # Errors
    /// As there.
    pub fn add(
        &mut self,
        element: (u64, T),
        spare: &mut Option<Spare<(u64, T)>>,
    ) -> Result<usize, ((u64, T), SpareSize)> {
        let at = self.heap.add(element, spare)?;
        debug_assert_eq!(at + 1, self.heap.len());
        self.note(at);
        self.rise(at);
        Ok(at)
    }

    /// Sets an element's timer, or stops it by [`NEVER`]. Returns false if it is not in the queue.
    pub fn set(&mut self, place: &Place, due: u64) -> bool {
        let Some(at) = place.get() else { return false };
        let Some(entry) = self.heap.get_mut(at) else {
            return false;
        };
        entry.0 = due;
        self.rise(at);
        self.sink(at);
        true
    }

    /// Removes an element; `None` if it is not in the queue.
    pub fn remove(&mut self, place: &Place) -> Option<T> {
        let at = place.get()?;
        let last = self.heap.len().checked_sub(1)?;
        self.exchange(at, last);
        let (_, element) = self.heap.remove(last)?;
        place.0.store(NOWHERE, Relaxed);
        if at < last {
            self.rise(at);
            self.sink(at);
        }
        Some(element)
    }

    /// Returns the first time of a timer.
    pub fn first(&self) -> Option<u64> {
        (!self.heap.is_empty())
            .then(|| self.due(0))
            .filter(|due| *due != NEVER)
    }

    /// Stops the timer of an element whose time has come at `now`, and returns that.
    pub fn take_due(&mut self, now: u64) -> Option<T>
    where
        T: Clone,
    {
        self.first().filter(|due| *due <= now)?;
        let entry = self.heap.get_mut(0)?;
        entry.0 = NEVER;
        let element = entry.1.clone();
        self.sink(0);
        Some(element)
    }

    fn due(&self, at: usize) -> u64 {
        self.heap.get(at).flatten().map_or(NEVER, |entry| entry.0)
    }

    /// Tells an element its place.
    fn note(&self, at: usize) {
        if let Some((_, element)) = self.heap.get(at).flatten() {
            element.place().0.store(at as u32, Relaxed);
        }
    }

    fn exchange(&mut self, a: usize, b: usize) {
        if a != b {
            self.heap.swap(a, b);
            self.note(a);
            self.note(b);
        }
    }

    fn rise(&mut self, mut at: usize) {
        while at > 0 {
            let above = (at - 1) / 2;
            if self.due(above) <= self.due(at) {
                break;
            }
            self.exchange(at, above);
            at = above;
        }
    }

    fn sink(&mut self, mut at: usize) {
        loop {
            // A place behind the end is never due.
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let below = if self.due(right) < self.due(left) {
                right
            } else {
                left
            };
            if self.due(below) >= self.due(at) {
                break;
            }
            self.exchange(at, below);
            at = below;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeMap, sync::Arc, vec::Vec};
    use nucleus::sim::Random;

    struct Item {
        number: u64,
        place: Place,
    }

    impl HasPlace for Arc<Item> {
        fn place(&self) -> &Place {
            &self.place
        }
    }

    /// Elements that come, go, and have their timers set and stopped run as those of a sorted list
    /// do.
    #[test]
    fn timers_run_in_their_order() {
        let mut random = Random::new(11);
        let mut queue = DueQueue::new();
        let mut items: Vec<Arc<Item>> = Vec::new();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 0..30_000u64 {
            let is_growing = step / 3000 % 2 == 0;
            match random.below(8) {
                0 | 1 if is_growing || items.is_empty() => {
                    let item = Arc::new(Item {
                        number: step,
                        place: Place::none(),
                    });
                    let entry = (NEVER, item.clone());
                    Slots::add_with(entry, |it, spare| queue.add(it, spare)).unwrap();
                    items.push(item);
                }
                0 | 1 => {
                    let item = items.swap_remove(random.below(items.len()));
                    assert_eq!(queue.remove(&item.place).unwrap().number, item.number);
                    assert!(queue.remove(&item.place).is_none());
                    assert!(!queue.set(&item.place, 1));
                    model.remove(&item.number);
                }
                2..=5 if !items.is_empty() => {
                    let item = &items[random.below(items.len())];
                    let due = match random.below(5) {
                        0 => NEVER,
                        _ => step + random.below(50) as u64,
                    };
                    assert!(queue.set(&item.place, due));
                    match due {
                        NEVER => model.remove(&item.number),
                        due => model.insert(item.number, due),
                    };
                }
                _ => {
                    assert_eq!(queue.first(), model.values().copied().min());
                    while let Some(item) = queue.take_due(step) {
                        let due = model.remove(&item.number).unwrap();
                        assert!(due <= step);
                        assert!(model.values().all(|other| due <= *other));
                    }
                    assert!(model.values().all(|due| *due > step));
                }
            }
        }
        assert!(items.len() > 10, "{} elements", items.len());
    }
}
