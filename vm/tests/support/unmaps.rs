//! Threads that map, use and unmap memory at places which the others get next.
//!
//! Every number that is written is written once. Its mapping is known to be gone once its `munmap`
//! has returned: no thread reads the number after that, and every new mapping is zero.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use nucleus::{PAGE_SIZE, VirtAddr, sim, user};
use vm::{Advice, Map, MapError, MapRequest, Place};

use super::{HERE, Numbers, RW, Tasks, map_zero, new_map, page, pages, pages_at};

/// Mappings that each thread makes.
const ROUNDS: usize = 40;
/// Pages of a place that threads share.
const PAGES: usize = 6;

/// What all threads know.
struct Known {
    /// By number: its mapping is gone.
    gone: Vec<AtomicBool>,
    /// By thread: the address of its last mapping, or 0.
    places: Vec<AtomicU64>,
}

impl Known {
    fn new(threads: usize) -> Arc<Known> {
        Arc::new(Known {
            gone: (0..=threads * ROUNDS)
                .map(|_| AtomicBool::new(false))
                .collect(),
            places: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Reads a page that any thread may have mapped.
    fn look(&self, va: VirtAddr) {
        let read = || user::read::<u64>(va).unwrap_or(0) as usize;
        let seen = read();
        if self.gone[seen].load(SeqCst) && seen != 0 {
            assert_ne!(read(), seen, "{va:?} was unmapped and is still there");
        }
    }

    /// Reads where a thread has its memory, or had it.
    fn look_around(&self, numbers: &mut Numbers) {
        let place = numbers.pick(&self.places).load(SeqCst) as usize;
        if place != 0 {
            self.look(VirtAddr(place) + numbers.below(PAGES) * PAGE_SIZE);
        }
    }
}

/// One thread: maps anywhere, or at a place that no other thread has now; the memory is new, keeps
/// what is written, and is gone when it is unmapped.
fn work(map: &Map, thread: usize, threads: usize, seed: u64, known: &Known) {
    let mut numbers = Numbers::new(seed + thread as u64 * 977);
    for round in 0..ROUNDS {
        let number = 1 + thread * ROUNDS + round;
        let count = 1 + numbers.below(PAGES);
        known.look_around(&mut numbers);
        // The place of the thread before it was used by that one, and is free most of the time.
        let there = page(1000 + (thread + numbers.below(2)) % threads * PAGES);
        let place = match numbers.below(4) {
            0 => Place::FixedNoReplace(there),
            1 => Place::Hint(there),
            _ => Place::Any,
        };
        let request = MapRequest {
            place,
            populate: numbers.chance(20),
            ..MapRequest::zero(count * PAGE_SIZE, RW)
        };
        let at = match map.map(request) {
            Ok(at) => at,
            Err(MapError::Exists) => continue,
            Err(error) => panic!("no room: {error:?}"),
        };
        known.places[thread].store(at.0 as u64, SeqCst);
        let range = pages_at(at, count);
        let is_used = numbers.chance(90);
        for va in range.pages().filter(|_| is_used) {
            let seen = user::read::<u64>(va).expect("mapped");
            assert_eq!(seen, 0, "{va:?} is new");
            user::write(va, &(number as u64)).expect("mapped");
        }
        known.look_around(&mut numbers);
        for va in range.pages().filter(|_| is_used) {
            let seen = user::read::<u64>(va).expect("mapped");
            assert_eq!(seen as usize, number, "{va:?} changed");
        }
        match numbers.chance(20) && count > 1 {
            // In two parts, in either order.
            true => {
                let parts = [pages_at(at, 1), pages_at(at + PAGE_SIZE, count - 1)];
                let first = numbers.below(2);
                map.unmap(parts[first]).expect("mapped");
                known.look(parts[first].start);
                map.unmap(parts[1 - first]).expect("mapped");
            }
            false => map.unmap(range).expect("mapped"),
        }
        known.gone[number].store(true, SeqCst);
        range.pages().for_each(|va| known.look(va));
    }
}

/// Makes children, moves memory, grows the heap and discards: what changes the map otherwise.
fn others(map: &Map, seed: u64) {
    let mut numbers = Numbers::new(seed);
    for i in 0..12 {
        match numbers.below(4) {
            0 => {
                let child = map.fork().expect("fork");
                let mut bytes = [0; 8];
                assert_eq!(child.read(page(0), &mut bytes), 8);
                child.tear_down();
            }
            1 => {
                let there = page(500);
                let moved = map.remap(pages(0, 1), PAGE_SIZE, true, Place::Fixed(there), false);
                assert_eq!(moved, Ok(there));
                let back = Place::Fixed(HERE);
                let back = map.remap(pages(500, 1), PAGE_SIZE, true, back, false);
                assert_eq!(back, Ok(HERE));
            }
            2 => map.advise(pages(0, 4), Advice::DontNeed).expect("mapped"),
            _ => user::write(page(i % 4), &1u64).expect("mapped"),
        }
    }
}

/// Runs a thread on each CPU, and one that changes the map in other ways.
pub fn unmaps(cpus: usize) {
    let seed = sim::random_u64();
    let map = new_map();
    map_zero(&map, pages(0, 4), false);
    let known = Known::new(cpus + 1);
    let tasks = Tasks::new();
    // On one CPU, too, threads meet.
    for thread in 0..=cpus {
        let known = known.clone();
        tasks.spawn_in(&map, thread % cpus, move |map| {
            work(map, thread, cpus + 1, seed, &known);
        });
    }
    if seed.is_multiple_of(2) {
        tasks.spawn_in(&map, 0, move |map| others(map, seed));
    }
    tasks.wait_until(0);
    map.tear_down();
}
