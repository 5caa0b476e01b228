//! The backend that allocates addresses, on the simulated machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::Vec;

use super::*;
use crate::cpu::percpu::Pinned;
use crate::frame::{Contents, usage};
use crate::hw::machine::WINDOW_PAGES;
use crate::sim::{self, Config, random_u64};
use crate::task::{self, Sleep, Spawn, WaitQueue};

fn machines(name: &str, cpus: &[usize], body: impl Fn() + Send + Sync + Clone + 'static) {
    for &cpus in cpus {
        let config = Config {
            cpus,
            pages: 512,
            ..Config::default()
        };
        sim::check(&format!("{name} on {cpus}"), 0..40, config, body.clone());
    }
}

fn below(n: usize) -> usize {
    (random_u64() % n as u64) as usize
}

fn word(mapping: &Mapping<'_>) -> u64 {
    let mut bytes = [0; 8];
    mapping.read(64, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Tasks map frames of their own and shared ones, some more at once than there are addresses; some
/// end mappings where they can't wait. The machine fails the run when a mapping reaches another
/// frame, or a frame is freed while one may.
#[test]
fn mappings_reach_their_frames() {
    machines("mappings reach their frames", &[1, 2, 4], || {
        set_backend(Backend::Uncached).unwrap();
        let before = usage();
        let done = Arc::new((AtomicUsize::new(0), WaitQueue::new()));
        let shared = Frame::alloc(Contents::Zeroed).unwrap();
        const TASKS: usize = 3;
        for task in 0..TASKS as u64 {
            let (done, shared) = (done.clone(), shared.clone());
            let spawn = Spawn {
                name: "test",
                pmap: None,
                attachment: None,
                cpus: u64::MAX,
                priority: Default::default(),
            };
            let body = move || {
                for round in 0..30 {
                    let frames: Vec<Frame> = (0..1 + below(WINDOW_PAGES))
                        .map(|_| Frame::alloc(Contents::Stale).unwrap())
                        .collect();
                    let tag = |i: usize| task << 32 | round << 8 | i as u64;
                    let mut mappings: Vec<_> = frames.iter().map(map).collect();
                    for (i, mapping) in mappings.iter().enumerate() {
                        mapping.write(64, &tag(i).to_le_bytes());
                    }
                    assert_eq!(word(&map(&shared)), 0);
                    for (i, mapping) in mappings.iter().enumerate() {
                        assert_eq!(word(mapping), tag(i));
                    }
                    while !mappings.is_empty() {
                        let mapping = mappings.swap_remove(below(mappings.len()));
                        let _pinned = (below(2) == 0).then(Pinned::new);
                        free(mapping);
                    }
                }
                drop(shared);
                done.0.fetch_add(1, Ordering::SeqCst);
                done.1.wake_all();
            };
            task::spawn(spawn, Box::new(body)).unwrap();
        }
        let all = || (done.0.load(Ordering::SeqCst) == TASKS).then_some(());
        done.1.wait(Sleep::SOUND, all).unwrap();
        // Stale addresses keep their frames until they are invalidated.
        for _ in 0..WINDOW_PAGES {
            free(map(&shared));
        }
        drop(shared);
        assert_eq!(usage(), before);
    });
}

/// Every mapping costs an entry, and an invalidation on each CPU when it ends; none of the direct
/// ones does.
#[test]
fn the_costs_are_those_of_old() {
    machines("the costs are those of old", &[1, 4], || {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let count = || {
            [
                Counter::ephemeral_hits,
                Counter::ephemeral_misses,
                Counter::tlb_local_page,
                Counter::tlb_remote,
            ]
            .map(Counter::total)
        };
        let cost = |rounds: u64| {
            let before = count();
            (0..rounds).for_each(|_| free(map(&frame)));
            let after = count();
            [0, 1, 2, 3].map(|i| after[i] - before[i])
        };
        assert_eq!(cost(10), [10, 0, 0, 0]);
        set_backend(Backend::Uncached).unwrap();
        let others = machine::cpu_count() as u64 - 1;
        assert_eq!(cost(10), [0, 10, 10, 10 * others]);
        set_backend(Backend::Direct).unwrap();
        assert_eq!(cost(10), [10, 0, 0, 0]);
    });
}

/// Where no address is left the direct map serves, and no task waits.
#[test]
fn addresses_may_run_out() {
    machines("addresses may run out", &[1, 2], || {
        set_backend(Backend::Uncached).unwrap();
        let frames: Vec<Frame> = (0..2 * WINDOW_PAGES)
            .map(|_| Frame::alloc(Contents::Zeroed).unwrap())
            .collect();
        let mappings: Vec<_> = frames.iter().map(map).collect();
        let direct = mappings.iter().filter(|mapping| mapping.slot == NONE);
        assert_eq!(direct.count(), WINDOW_PAGES);
        // Stale ones are no reason either.
        let pinned = Pinned::new();
        drop(mappings);
        drop(pinned);
        let mappings: Vec<_> = frames.iter().map(map).collect();
        let direct = mappings.iter().filter(|mapping| mapping.slot == NONE);
        assert_eq!(direct.count(), WINDOW_PAGES);
    });
}
