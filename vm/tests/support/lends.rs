//! Threads that lend pages which others write, while their protection changes.

use nucleus::{Frame, Prot, ephemeral, frame::Owned, sim, task, user};
use vm::{Advice, Map};

use super::{Numbers, RW, Tasks, page, pages, zero_map};

/// Few pages, so that threads meet.
const PAGES: usize = 4;

/// Writes where it may.
fn write(thread: usize) {
    for number in 1..=300u64 {
        // It may be protected right now.
        let _ = user::write(page(number as usize % PAGES) + 8 * thread, &number);
    }
}

fn content(page: &Frame) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    ephemeral::map(page).read(0, &mut bytes);
    bytes
}

/// Lends pages: what was lent does not change.
fn lend(map: &Map, seed: u64) {
    let mut numbers = Numbers::new(seed);
    for _ in 0..40 {
        let mut lent: [Option<Owned>; 1] = [None];
        let i = numbers.below(PAGES);
        if map.lend(page(i), &mut lent) == 1
            && let [Some(page)] = &lent
        {
            let before = content(page);
            for _ in 0..4 {
                task::yield_now();
            }
            assert_eq!(content(page), before, "lent page {i} changed");
        }
    }
}

/// Takes rights away and gives them back.
fn protect(map: &Map, seed: u64) {
    let mut numbers = Numbers::new(seed);
    for _ in 0..60 {
        let first = numbers.below(PAGES);
        let range = pages(first, 1 + numbers.below(PAGES - first));
        let rights = [Prot::READ, Prot::READ, Prot::empty()][numbers.below(3)];
        map.protect(range, rights).expect("mapped");
        if numbers.chance(20) {
            map.advise(range, Advice::DontNeed).expect("mapped");
        }
        map.protect(range, RW).expect("mapped");
    }
}

/// Runs a writer on each CPU, a lender, and two threads that protect.
pub fn lends(cpus: usize) {
    let seed = sim::random_u64();
    let map = zero_map(pages(0, PAGES));
    let tasks = Tasks::new();
    for thread in 0..cpus {
        tasks.spawn_in(&map, thread, move |_| write(thread));
    }
    tasks.spawn_in(&map, 0, move |map| lend(map, seed));
    for i in 0..2 {
        let cpu = (i + 1) % cpus;
        tasks.spawn_in(&map, cpu, move |map| protect(map, seed + 7 * i as u64));
    }
    tasks.wait_until(0);
    map.tear_down();
}
