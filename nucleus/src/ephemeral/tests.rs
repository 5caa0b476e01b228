//! The backend that allocates addresses, on the simulated machine.

use std::sync::Arc;
use std::vec::Vec;

use super::*;
use crate::cpu::percpu::Pinned;
use crate::frame::{Contents, usage};
use crate::hw::machine::WINDOW_PAGES;
use crate::sim::{Together, below, on_machines_with};

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
    on_machines_with("mappings reach their frames", [1, 2, 4], 512, 40, || {
        set_backend(Backend::Uncached).unwrap();
        let before = usage();
        let together = Arc::new(Together::default());
        let shared = Frame::alloc(Contents::Zeroed).unwrap();
        const TASKS: usize = 3;
        for task in 0..TASKS as u64 {
            let shared = shared.clone();
            together.spawn(move || {
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
            });
        }
        together.join();
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
    on_machines_with("the costs are those of old", [1, 4], 512, 40, || {
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
    on_machines_with("addresses may run out", [1, 2], 512, 40, || {
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
