//! The page-table cache: what is in use, in pools and set aside, and what devices may reach.

use super::*;
use crate::dma::Policy;
use crate::mem::frame::record::find;
use crate::mem::frame::table_cache::{LEVELS, OWN};
use crate::sim::BusMaster;

fn take(level: usize, count: usize) -> Vec<u32> {
    (0..count)
        .map(|_| take_table(level).unwrap().index())
        .collect()
}

fn give(level: usize, tables: Vec<u32>) {
    tables.into_iter().for_each(|it| give_table(level, it));
}

fn frames_in(level: usize) -> usize {
    if level == 1 { 2 } else { 1 }
}

fn batches() -> u64 {
    Counter::device_batches_page_tables.total()
}

/// No frame is out of the devices' reach that is free for anything else, and none of a table is
/// inside.
fn check_reach(tables: &[(usize, u32)]) {
    for &(level, table) in tables {
        let links = (level == 1).then(|| record(table).partner());
        for frame in core::iter::once(table).chain(links) {
            assert!(!record(frame).is_reachable());
            assert_eq!(record(frame).kind(), Type::page_table(level));
        }
    }
}

#[test]
fn tables_are_kept_ready() {
    on_machines_with("tables are kept ready", [1, 2, 4], 2048, 30, || {
        let before = usage();
        for level in 1..=LEVELS {
            let first = take(level, 20);
            assert!(first.iter().all(|&it| record(it).is_cached()));
            let frames = 20 * frames_in(level);
            assert_eq!(usage().page_tables, before.page_tables + frames);
            give(level, first.clone());
            assert!(first.iter().all(|&it| record(it).is_cached()));
            assert_eq!(usage().page_tables, before.page_tables);
            // The same ones again; devices notice nothing.
            let batches_before = batches();
            let avoided = table_usage()[level - 1].avoided;
            let second = take(level, 20);
            assert!(second.iter().all(|it| first.contains(it)));
            give(level, second);
            assert_eq!(batches(), batches_before);
            assert_eq!(table_usage()[level - 1].avoided, avoided + 40);
        }
        assert_eq!(usage().data, before.data);
        assert_eq!(usage().free, before.free);
        while drain() {}
        assert_eq!(usage(), before);
    });
}

/// Without neighbouring frames, tables of level 1 have their links elsewhere; they are kept ready,
/// given back and made anew as others.
#[test]
fn tables_are_made_of_single_frames() {
    on_machines_with("tables of single frames", [1, 2, 4], 2048, 10, || {
        let before = usage();
        let give_back = leave_single_frames();
        for keeps in [true, false] {
            keep_tables(keeps);
            let tables = take(1, 60);
            check_reach(&tables.iter().map(|&it| (1, it)).collect::<Vec<_>>());
            let apart = |&&it: &&u32| record(it).partner() != it + 1;
            // Each CPU may have kept a few that are neighbours.
            assert!(tables.iter().filter(apart).count() > 20);
            give(1, tables);
        }
        keep_tables(true);
        give(1, take(1, 200));
        while drain() {}
        assert_eq!(frames_aside(), 0);
        give_back();
        while drain() {}
        assert_eq!(usage(), before);
    });
}

/// Many tables made one after the other leave the devices' reach in a few batches.
#[test]
fn new_tables_leave_the_reach_together() {
    on_machines_with("new tables leave together", [1], 16 * 1024, 1, || {
        while drain() {}
        let (changes, before) = (Counter::type_changes_page_tables.total(), batches());
        // What a fork of a small process needs.
        let tables: Vec<(usize, u32)> = [4, 3, 2, 1, 1, 3, 2, 1]
            .map(|level| (level, take(level, 1)[0]))
            .into();
        check_reach(&tables);
        assert_eq!(batches() - before, 1, "one for all tables of a fork");
        assert_eq!(Counter::type_changes_page_tables.total() - changes, 32);
        for (level, table) in tables {
            give(level, vec![table]);
        }
        assert_eq!(batches() - before, 1);
        while drain() {}
        assert_eq!(batches() - before, 2, "and one for all that come back");
        assert_eq!(frames_aside(), 0);
    });
}

#[test]
fn tables_are_made_anew() {
    on_machines_with("tables are made anew", [1, 2, 4], 1024, 30, || {
        let before = usage();
        give(1, take(1, 1));
        assert_eq!(usage().free, before.free);
        keep_tables(false);
        while drain() {}
        for level in 1..=LEVELS {
            let (changes, batches_before) = (Counter::type_changes_page_tables.total(), batches());
            give(level, take(level, 20));
            let changes = Counter::type_changes_page_tables.total() - changes;
            assert_eq!(changes as usize, 40 * frames_in(level), "level {level}");
            assert_eq!(batches() - batches_before, 40, "an invalidation for each");
        }
        assert!(
            matches!(take_table(2), Some(Table::Fresh(table)) if { give_table(2, table); true })
        );
        // Enabled while tables are in use: these join the pool without an invalidation.
        let tables = take(2, 20);
        assert!(!record(tables[0]).is_cached());
        keep_tables(true);
        let batches_before = batches();
        give(2, tables);
        give(2, take(2, 20));
        assert_eq!(batches(), batches_before);
        while drain() {}
        assert_eq!(usage(), before);
    });
}

/// A pool has as many tables as were once in use, and comes back after a drain.
#[test]
fn pools_grow_and_are_drained() {
    let name = "pools grow and are drained";
    on_machines_with(name, [1, 4], 32 * 1024, 4, || {
        let before = usage();
        for level in 1..=LEVELS {
            give(level, take(level, 250));
            let usage = table_usage()[level - 1];
            assert_eq!((usage.in_use, usage.in_pool), (0, 250));
        }
        while drain() {}
        for it in table_usage() {
            assert_eq!((it.in_use, it.in_pool, it.given_back), (0, 0, 250));
        }
        assert_eq!(usage(), before);
    });
}

/// The paper's thresholds: tables go when both are exceeded, and then as many as there are more in
/// the pool than in use.
#[test]
fn thresholds_are_both_exceeded() {
    on_machines_with("thresholds", [1], 16 * 1024, 1, || {
        let thresholds = |ratio, total| {
            set_table_policy(TablePolicy::Fixed(TableThresholds { ratio, total }));
        };
        let level = 2;
        let state = || {
            let it = table_usage()[level - 1];
            (it.in_use, it.in_pool)
        };
        thresholds(100, 200);
        let held = take(level, 40);
        give(level, take(level, 100));
        assert_eq!(state(), (40, 100), "the total is not exceeded");
        thresholds(300, 100);
        give(level, take(level, 60));
        assert_eq!(state(), (40, 100), "the ratio is not exceeded");
        thresholds(100, 100);
        give(level, take(level, 60));
        let (in_use, in_pool) = state();
        assert_eq!(in_use, 40);
        // A CPU's own tables stay with it until it has too many.
        assert!((40..60).contains(&in_pool), "{in_pool} in the pool");
        give(level, held);
        while drain() {}
    });
}

/// What was not needed is given back by halves; what is needed each time stays.
#[test]
fn the_adaptive_policy_follows_the_load() {
    on_machines_with("the adaptive policy", [1], 32 * 1024, 1, || {
        let pooled = || table_usage()[0].in_pool;
        give(1, take(1, 300));
        age_tables();
        let before = batches();
        for _ in 0..20 {
            give(1, take(1, 200));
            assert!(age_tables());
        }
        assert!((200..=220).contains(&pooled()), "{} stay", pooled());
        let given_back = batches() - before;
        assert!(given_back < 20, "in few batches");
        let before = batches();
        give(1, take(1, 200));
        assert_eq!(batches(), before, "the load finds its tables");
        for _ in 0..12 {
            age_tables();
        }
        assert!(
            pooled() < 16 + OWN[0],
            "{} stay in an idle machine",
            pooled()
        );
        assert!(!has_unneeded_tables());
        while drain() {}
    });
}

/// Tasks on all CPUs take and give tables while others change every setting: each table has one
/// owner and is empty, is never in the devices' reach, and nothing is lost.
#[test]
fn tables_under_all_settings() {
    on_machines_with("tables under all settings", [1, 2, 4], 2048, 40, || {
        let before = usage();
        let together = Arc::new(Together::default());
        for task in 0..4 {
            together.spawn(move || {
                let mut held: Vec<(usize, u32)> = Vec::new();
                for _ in 0..150 {
                    match below(20) {
                        0..9 => {
                            let level = 1 + below(LEVELS);
                            let table = take_table(level).unwrap().index();
                            assert!(is_zero(table, 256), "a table is not empty");
                            assert!(!held.contains(&(level, table)));
                            held.push((level, table));
                        }
                        9..17 if !held.is_empty() => {
                            let (level, table) = held.swap_remove(below(held.len()));
                            give_table(level, table);
                        }
                        17 if task == 0 => keep_tables(below(3) > 0),
                        18 => {
                            age_tables();
                            drain();
                        }
                        19 => set_table_policy(match below(2) {
                            0 => TablePolicy::Adaptive,
                            _ => TablePolicy::Fixed(TableThresholds {
                                ratio: below(200) as u32,
                                total: below(20) as u32,
                            }),
                        }),
                        _ => check_reach(&held),
                    }
                }
                check_reach(&held);
                held.into_iter()
                    .for_each(|(level, table)| give_table(level, table));
            });
        }
        together.join();
        let used = usage();
        assert_eq!(
            (used.page_tables, used.free),
            (before.page_tables, before.free)
        );
        // Each CPU keeps a few.
        keep_tables(true);
        while drain() {}
        let own: usize = table_usage().iter().map(|it| it.in_pool).sum();
        assert!(own <= 4 * OWN.iter().sum::<usize>());
        let first = record::first_managed();
        for frame in record::managed() {
            let record = find(frame.into()).unwrap();
            let is_kept = record.kind() != Type::Free || record.is_reachable();
            assert!(is_kept, "frame {frame:#x} of {first:#x} is lost to devices");
        }
    });
}

/// A batch is one invalidation for all of its frames: when they leave, and in caching mode also
/// when they return.
#[test]
fn a_batch_is_one_invalidation() {
    let like = Config {
        iommu: Some(Policy::Open),
        ..Config::default()
    };
    on_machines_like("batches of frames", [1, 2], 1024, 16, like, || {
        let _device = BusMaster::new();
        let mut frames = [0; 70];
        let count = || {
            [
                Counter::device_batches_stacks.total(),
                Counter::iotlb_stack.total(),
                Counter::iotlb_absent.total(),
            ]
        };
        let first = count();
        take_stack(&mut frames).unwrap();
        let taken = count();
        assert_eq!(taken[0] - first[0], taken[1] - first[1]);
        give_stack(&frames);
        let given = count();
        assert_eq!(given[1], taken[1]);
        assert!(given[2] - taken[2] <= given[0] - taken[0], "{given:?}");
    });
}

/// A stack's frames leave the devices' reach together, and return together; without memory for all
/// of them none is taken.
#[test]
fn stacks_are_one_batch() {
    on_machines_with("stacks are one batch", [1, 2], 1024, 4, || {
        let before = usage();
        let count = || Counter::device_batches_stacks.total();
        let first = count();
        let mut frames = [0; 8];
        take_stack(&mut frames).unwrap();
        assert_eq!(count() - first, 1);
        assert!(frames.iter().all(|&it| !record(it).is_reachable()));
        assert_eq!(usage().kernel, before.kernel + 8);
        give_stack(&frames);
        assert_eq!(count() - first, 2);
        fail_after(Some(3));
        assert_eq!(take_stack(&mut frames), Err(OutOfMemory));
        fail_after(None);
        assert_eq!(count() - first, 2);
        assert_eq!(usage(), before);
    });
}

/// The tables in a pool take a 64th of memory at most, those of level 1 with their links. The CPU
/// has a few of its own.
#[test]
fn a_pool_has_at_most_a_64th_of_memory() {
    on_machines_with("pools are limited", [1], 4096, 4, || {
        let most = record::managed().len() / 64;
        for level in 1..=LEVELS {
            give(level, take(level, 2 * most / frames_in(level)));
            let kept = table_usage()[level - 1].in_pool * frames_in(level);
            let most = most + OWN[level - 1] * frames_in(level);
            assert!(kept <= most, "level {level} keeps {kept} frames of {most}");
            while drain() {}
        }
    });
}

/// A table that there is no memory for counts neither as allocated nor as taken.
#[test]
fn a_table_that_is_not_had_is_not_counted() {
    on_machines_with("no table is counted", [1, 2], 1024, 4, || {
        let counts = || {
            let taken = |level: usize| table_usage()[level - 1].reused;
            (
                Counter::page_tables_allocated.total(),
                [1, 2, 3, 4].map(taken),
            )
        };
        let (mut held, mut last) = (Vec::new(), counts());
        while let Some(table) = take_table(1) {
            held.push(table.index());
            last = counts();
        }
        assert_eq!(counts(), last);
        give(1, held);
        while drain() {}
    });
}

/// A frame that a CPU keeps for the heap is checked for writes as other free frames are.
#[test]
#[should_panic(expected = "was written while it was free")]
fn a_write_to_a_frame_kept_for_the_heap_is_found() {
    let like = Config {
        iommu: Some(Policy::Open),
        ..Config::default()
    };
    on_machines_like("frames of the heap", [1], 1024, 1, like, || {
        let _device = BusMaster::new();
        let frame = take_own(Type::Heap).unwrap();
        give_run(frame..frame + 1, Type::Heap);
        assert_eq!(record(frame).kind(), Type::Heap, "it is kept");
        // SAFETY: none does, as a program with an error: the frame is in the machine's memory.
        unsafe { record::bytes(frame).write(1) };
        take_own(Type::Heap).unwrap();
    });
}
