//! Threads that discard pages which others write, and children made meanwhile.
//!
//! Each thread has a word in every page and writes increasing numbers to it. What a page holds
//! before it is written, and again after it was discarded, is its *base*.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use nucleus::{Prot, VirtAddr, sim, user};
use vm::{Advice, AmapForm, Map};

use super::{File, HERE, Numbers, RW, Tasks, file_at, map_zero, new_map, page, pages};

/// Four chunks of an amap, two of them in part.
const PAGES: usize = 3 * 32 + 7;

/// The numbers that were written, by page and thread: stored after the write.
type Written = Arc<[AtomicU64]>;

fn word(i: usize, thread: usize) -> VirtAddr {
    page(i) + 8 * (thread * 16 + i % 16)
}

/// The memory of the threads, and what its words hold at first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    ZeroFill,
    PrivateFile,
}

impl Memory {
    fn base(self, i: usize) -> u64 {
        match self {
            Memory::ZeroFill => 0,
            Memory::PrivateFile => u64::from_le_bytes([File::byte(1, i as u64); 8]),
        }
    }

    fn is_base(self, i: usize, seen: u64) -> bool {
        seen == self.base(i)
    }
}

/// One thread: what it reads of its own words is what it wrote, or the base after a discard, and
/// then the base until it writes again. Of another thread's words it never reads a number from
/// before one that it knows was written: a page that was replaced is gone everywhere at once.
fn work(map: &Map, memory: Memory, thread: usize, threads: usize, seed: u64, written: &Written) {
    let mut numbers = Numbers::new(seed + thread as u64 * 977);
    let mut own: Vec<u64> = (0..PAGES).map(|i| memory.base(i)).collect();
    let read = |at| user::read::<u64>(at).expect("a readable page");
    // Half of the accesses meet in a few pages.
    let some_page = |numbers: &mut Numbers| match numbers.chance(50) {
        true => 28 + numbers.below(8),
        false => numbers.below(PAGES),
    };
    for number in 1..=150u64 {
        let i = some_page(&mut numbers);
        match numbers.below(10) {
            0..=3 => {
                // It may be protected right now.
                if user::write(word(i, thread), &number).is_ok() {
                    own[i] = number;
                    written[i * threads + thread].store(number, SeqCst);
                }
            }
            4 | 5 => {
                let seen = read(word(i, thread));
                let is_own = seen == own[i] || memory.is_base(i, seen);
                assert!(is_own, "page {i}: {seen} after {}", own[i]);
                own[i] = seen;
            }
            6 | 7 => {
                let other = numbers.below(threads);
                let known = written[i * threads + other].load(SeqCst);
                let seen = read(word(i, other));
                let is_new = memory.is_base(i, seen) || seen >= known;
                assert!(is_new, "page {i}: {seen} after {known} was written");
            }
            _ => {
                let most = [4, 4, 40][numbers.below(3)];
                let count = 1 + numbers.below(most.min(PAGES - i));
                map.advise(pages(i, count), Advice::DontNeed)
                    .expect("mapped");
                for (i, own) in own.iter_mut().enumerate().skip(i).take(count) {
                    *own = memory.base(i);
                }
                // Only this thread writes the word.
                let last = i + numbers.below(count);
                assert_eq!(
                    read(word(last, thread)),
                    own[last],
                    "page {last} is still there: {i} {count} of {threads} seed {seed}"
                );
            }
        }
    }
}

/// Makes children: each sees every word at one moment, whatever is discarded meanwhile.
fn fork(map: &Map, memory: Memory, threads: usize, written: &Written) {
    let look = |child: &Map, i: usize, thread: usize| {
        let mut bytes = [0; 8];
        assert_eq!(child.read(word(i, thread), &mut bytes), 8);
        u64::from_le_bytes(bytes)
    };
    for _ in 0..3 {
        let known: Vec<u64> = written.iter().map(|it| it.load(SeqCst)).collect();
        let child = map.fork().expect("fork");
        let mut first = Vec::new();
        for (at, &known) in known.iter().enumerate() {
            let (i, thread) = (at / threads, at % threads);
            let seen = look(&child, i, thread);
            let is_new = memory.is_base(i, seen) || seen >= known;
            assert!(is_new, "page {i} of a child: {seen} after {known}");
            first.push(seen);
        }
        for (at, &first) in first.iter().enumerate() {
            let (i, thread) = (at / threads, at % threads);
            assert_eq!(
                look(&child, i, thread),
                first,
                "page {i} of a child changed"
            );
        }
        child.tear_down();
    }
}

/// Takes the right to write away and gives it back.
fn protect(map: &Map, seed: u64) {
    let mut numbers = Numbers::new(seed);
    for _ in 0..20 {
        let first = numbers.below(PAGES);
        let range = pages(first, 1 + numbers.below(PAGES - first));
        map.protect(range, Prot::READ).expect("mapped");
        map.protect(range, RW).expect("mapped");
    }
}

/// Runs a thread on each CPU, one that forks and one that protects.
pub fn discards(cpus: usize) {
    let seed = sim::random_u64();
    let memory = [Memory::ZeroFill, Memory::PrivateFile][seed as usize % 2];
    let forms = [AmapForm::Hybrid, AmapForm::Hybrid, AmapForm::Sparse];
    vm::set_amap_form(forms[seed as usize / 2 % 3]);
    let map = new_map();
    match memory {
        Memory::ZeroFill => map_zero(&map, pages(0, PAGES), false),
        Memory::PrivateFile => {
            let request = file_at(pages(0, PAGES), File::new(1, PAGES as u64));
            assert_eq!(map.map(request), Ok(HERE));
        }
    }
    let written: Written = (0..PAGES * cpus).map(|_| AtomicU64::new(0)).collect();
    let tasks = Tasks::new();
    for thread in 0..cpus {
        let written = written.clone();
        tasks.spawn_in(&map, thread, move |map| {
            work(map, memory, thread, cpus, seed, &written);
        });
    }
    if !(seed / 6).is_multiple_of(4) {
        let written = written.clone();
        tasks.spawn_in(&map, 0, move |map| fork(map, memory, cpus, &written));
    }
    if !(seed / 24).is_multiple_of(2) {
        tasks.spawn_in(&map, cpus - 1, move |map| protect(map, seed));
    }
    tasks.wait_until(0);
    map.tear_down();
    vm::set_amap_form(AmapForm::Hybrid);
}
