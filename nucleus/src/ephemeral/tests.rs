//! The backends on the simulated machine, whose CPUs hold translations of the window as long as
//! they may, and make them ahead of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::vec::Vec;

use super::audit::Place;
use super::window::Keep;
use super::*;
use crate::cpu::percpu::Pinned;
use crate::frame::{Contents, usage};
use crate::mem::mistake::Mistake;
use crate::sim::{Config, Together, below, check};

/// How mappings are made in a run.
#[derive(Clone, Copy, Debug)]
struct Variant {
    backend: Backend,
    direct_map: DirectMap,
    entries: usize,
    parts: bool,
    late: bool,
    private: bool,
    keep: Keep,
}

const PAPER: Variant = Variant {
    backend: Backend::Window,
    direct_map: DirectMap::All,
    entries: 6,
    parts: false,
    late: false,
    private: true,
    keep: Keep::On,
};

const VARIANTS: [Variant; 8] = [
    PAPER,
    Variant {
        private: false,
        ..PAPER
    },
    Variant {
        late: true,
        ..PAPER
    },
    Variant {
        keep: Keep::Off,
        ..PAPER
    },
    Variant {
        entries: 128,
        parts: true,
        late: true,
        ..PAPER
    },
    Variant {
        backend: Backend::Direct,
        direct_map: DirectMap::Kernel,
        keep: Keep::Auto,
        ..PAPER
    },
    Variant {
        backend: Backend::Uncached,
        ..PAPER
    },
    Variant {
        backend: Backend::Uncached,
        direct_map: DirectMap::Kernel,
        ..PAPER
    },
];

/// The machine on which a variant is tried.
fn config(variant: Variant, cpus: usize) -> Config {
    Config {
        cpus,
        pages: 512,
        direct_map: Some(variant.direct_map),
        ..Config::default()
    }
}

fn set(variant: Variant) {
    set_backend(variant.backend).unwrap();
    window::set_parts(variant.parts).unwrap();
    window::set_entries(variant.entries).unwrap();
    window::set_keep(variant.keep).unwrap();
    window::set_late(variant.late);
    window::set_private(variant.private);
}

/// Runs `body` on machines of 1 to 8 CPUs with each of the variants.
fn with_variants(name: &str, runs: u64, body: impl Fn(Variant) + Copy + Send + Sync + 'static) {
    for variant in VARIANTS {
        with_variant(name, variant, runs, body);
    }
}

fn with_variant(
    name: &str,
    variant: Variant,
    runs: u64,
    body: impl Fn(Variant) + Copy + Send + Sync + 'static,
) {
    for cpus in [1, 2, 4, 8] {
        let name = format!("{name} with {variant:?} on {cpus} CPUs");
        check(&name, 0..runs, config(variant, cpus), move || {
            set(variant);
            body(variant);
        });
    }
}

fn word(mapping: &Mapping<'_>) -> u64 {
    let mut bytes = [0; 8];
    mapping.read(64, &mut bytes);
    u64::from_le_bytes(bytes)
}

fn counts<const N: usize>(counters: [Counter; N]) -> [u64; N] {
    counters.map(Counter::total)
}

/// Tasks map frames of their own and shared ones, singly, in pairs, and many at once while they are
/// pinned, use mappings of one another, and give up the CPU in between. The machine fails the run
/// when a mapping reaches another frame than its own.
#[test]
fn mappings_reach_their_frames() {
    with_variants("mappings reach their frames", 12, |_| random_mappings());
}

fn random_mappings() {
    let before = usage();
    let together = Arc::new(Together::default());
    let common: Vec<Frame> = (0..12)
        .map(|_| Frame::alloc(Contents::Zeroed).unwrap())
        .collect();
    for (i, frame) in common.iter().enumerate() {
        map(frame).write(64, &(i as u64).to_le_bytes());
    }
    let lasting = Arc::new(Shared::new(common[0].clone(), Flags::empty()).unwrap());
    for task in 0..4u64 {
        let (common, lasting) = (common.clone(), lasting.clone());
        together.spawn(move || {
            for round in 0..30 {
                one_round(task << 32 | round << 8, &common, &lasting);
            }
            drop((common, lasting));
        });
    }
    together.join();
    drop((common, lasting));
    assert_eq!(window::usage()[0], 0, "a mapping is in use for ever");
    // What waits to be invalidated has no handle.
    assert_eq!(usage().data, before.data);
}

/// The simulated machine finds each mistake in few runs, by a use that reaches another frame than
/// its mapping's: without that, what the other tests here don't find says nothing.
#[test]
fn mistakes_are_found() {
    let kept_by_none = Variant {
        keep: Keep::Off,
        ..PAPER
    };
    let late = Variant {
        late: true,
        ..PAPER
    };
    let old = Variant {
        backend: Backend::Uncached,
        ..PAPER
    };
    for (mistake, variant) in [
        (Mistake::AccessedBitIgnored, PAPER),
        (Mistake::AccessedBitOfAll, PAPER),
        (Mistake::MaskForgotten, late),
        (Mistake::ChangeSkipped, late),
        (Mistake::RingNotFlushed, kept_by_none),
        (Mistake::OthersNotTold, old),
        (Mistake::GlobalKept, kept_by_none),
    ] {
        let body = move || {
            set(variant);
            random_mappings();
        };
        mistake.assert_found(config(variant, 4), body, "of the kernel's window");
    }
}

fn one_round(tag: u64, common: &[Frame], lasting: &Shared) {
    match below(7) {
        0 => {
            let frames: Vec<Frame> = (0..1 + below(12))
                .map(|_| Frame::alloc(Contents::Stale).unwrap())
                .collect();
            for (i, frame) in frames.iter().enumerate() {
                map(frame).write(64, &(tag | i as u64).to_le_bytes());
            }
            for (i, frame) in frames.iter().enumerate() {
                assert_eq!(word(&map(frame)), tag | i as u64);
            }
        }
        1 => {
            let _pinned = Pinned::new();
            let mut mappings: Vec<_> = common[..4].iter().map(map).collect();
            while !mappings.is_empty() {
                let mapping = mappings.swap_remove(below(mappings.len()));
                assert!(word(&mapping) < 12);
                free(mapping);
            }
        }
        2 => {
            let to = Frame::alloc(Contents::Stale).unwrap();
            let from = &common[below(12)];
            copy(&to, 0, from, 0, PAGE_SIZE);
            let [to, from] = map_two(&to, from);
            assert_eq!(word(&to), word(&from));
        }
        3 => {
            assert_eq!(word(&lasting.here()), 0);
            crate::task::yield_now();
            assert_eq!(word(&lasting.here()), 0);
        }
        4 => {
            let number = below(12);
            let Ok(shared) = Shared::new(common[number].clone(), Flags::NO_WAIT) else {
                return;
            };
            for _ in 0..3 {
                assert_eq!(word(&shared.here()), number as u64);
                crate::task::yield_now();
            }
            assert!(shared.sharers() >= 1);
        }
        5 => a_run(tag, common),
        _ => {
            let number = below(12);
            if let Ok(mapping) = alloc(&common[number], Flags::NO_WAIT) {
                assert_eq!(word(&mapping), number as u64);
            }
        }
    }
}

/// Maps a run, beside another mapping or not, and compares it with its pages; sometimes one that
/// does not wait.
fn a_run(tag: u64, common: &[Frame]) {
    let shared = &common[below(12)];
    let held = (below(2) == 0).then(|| map(shared));
    let frames: Vec<Frame> = (0..1 + below(LONGEST_RUN))
        .map(|_| Frame::alloc(Contents::Stale).unwrap())
        .collect();
    let flags = match below(4) {
        0 => Flags::NO_WAIT,
        _ => Flags::empty(),
    };
    let Ok(run) = alloc_run(&frames, flags) else {
        assert_eq!(flags, Flags::NO_WAIT);
        return;
    };
    run.fill(0, frames.len() * PAGE_SIZE, tag as u8);
    let words: Vec<u8> = (0..frames.len() as u64)
        .flat_map(|i| [tag | i, !i].map(u64::to_le_bytes))
        .flatten()
        .collect();
    // Across the pages' borders, and elsewhere.
    let at = (PAGE_SIZE - 8) * usize::from(frames.len() > 1) + below(64);
    run.write(at, &words);
    let mut found = std::vec![0; words.len() + 2];
    run.read(at - usize::from(at > 0), &mut found);
    assert_eq!(found[usize::from(at > 0)..][..words.len()], words);
    drop(run);
    drop(held);
    let mut bytes = std::vec![0; frames.len() * PAGE_SIZE];
    for (frame, page) in frames.iter().zip(bytes.chunks_mut(PAGE_SIZE)) {
        map(frame).read(0, page);
    }
    assert_eq!(bytes[at..at + words.len()], words);
    assert!(bytes[..at].iter().all(|&byte| byte == tag as u8));
    assert!(
        bytes[at + words.len()..]
            .iter()
            .all(|&byte| byte == tag as u8)
    );
}

/// Tasks on all CPUs map runs of different lengths, with every backend, of which the uncached one
/// has room for two of the longest: each has all of its pages or none, and gets them in the end.
#[test]
fn runs_reach_their_frames() {
    with_variants("runs reach their frames", 8, |_| {
        let common: Vec<Frame> = (0..12)
            .map(|_| Frame::alloc(Contents::Zeroed).unwrap())
            .collect();
        let together = Arc::new(Together::default());
        for task in 0..8u64 {
            let common = common.clone();
            together.spawn(move || {
                for round in 0..20 {
                    a_run(task << 32 | round << 8, &common);
                }
            });
        }
        together.join();
    });
}

/// Neighbours in the direct map are a run without a mapping; others are mapped, and a run's pages
/// are the frames that were given, in their order.
#[test]
fn neighbours_in_the_direct_map_cost_nothing() {
    let plain = Variant {
        backend: Backend::Direct,
        ..PAPER
    };
    with_variant("neighbours cost nothing", plain, 5, |_| {
        let mut frames: Vec<Frame> = (0..100)
            .map(|_| Frame::alloc(Contents::Zeroed).unwrap())
            .collect();
        frames.sort_by_key(Frame::number);
        let neighbours = frames
            .windows(LONGEST_RUN)
            .find(|it| it[0].number() + LONGEST_RUN as u64 - 1 == it[LONGEST_RUN - 1].number());
        let neighbours = neighbours.expect("neighbours among the frames of a new machine");
        let made = |frames: &[Frame]| {
            let before = Counter::ephemeral_misses.total();
            let run = map_run(frames);
            assert_eq!(run.frames(), frames);
            Counter::ephemeral_misses.total() - before
        };
        assert_eq!(made(neighbours), 0);
        let apart = [neighbours[0].clone(), neighbours[2].clone()];
        assert_eq!(made(&apart), 2);
        let backwards = [neighbours[1].clone(), neighbours[0].clone()];
        assert_eq!(made(&backwards), 2);
    });
}

/// Each invalidation is counted with its cause.
#[test]
fn invalidations_have_causes() {
    let frames = |count: usize| -> Vec<Frame> {
        let frames = (0..count).map(|_| Frame::alloc(Contents::Zeroed).unwrap());
        frames.collect()
    };
    let touch = |frames: &[Frame]| frames.iter().for_each(|it| assert_eq!(word(&map(it)), 0));
    static SEEN: [AtomicU64; 7] = [const { AtomicU64::new(0) }; 7];
    const CAUSES: [Counter; 7] = [
        Counter::ephemeral_local_reuse,
        Counter::ephemeral_local_moved,
        Counter::ephemeral_local_late,
        Counter::ephemeral_local_shared,
        Counter::ephemeral_remote_shared,
        Counter::ephemeral_flush_resize,
        Counter::ephemeral_flush_ring,
    ];
    let found = |body: &dyn Fn()| {
        let before = counts(CAUSES);
        body();
        let after = counts(CAUSES);
        [0, 1, 2, 3, 4, 5, 6].map(|i| {
            SEEN[i].fetch_add(after[i] - before[i], Ordering::Relaxed);
            after[i] - before[i]
        })
    };
    with_variant("invalidations have causes", PAPER, 10, move |_| {
        let (many, one) = (frames(20), frames(1));
        let cpus = machine::cpu_count();
        let reuse = found(&|| touch(&many));
        assert!((1..=20).contains(&reuse[0]), "{reuse:?}");
        assert_eq!(reuse[1..], [0; 6]);
        // On whatever CPU the task comes to, that other ones have used.
        let moved = found(&|| {
            let together = Arc::new(Together::default());
            for _ in 0..2 * cpus {
                let many = many.clone();
                together.spawn(move || {
                    for _ in 0..5 {
                        touch(&many[..4]);
                        crate::task::yield_now();
                    }
                });
            }
            together.join();
        });
        assert!(cpus > 1 || moved[1] == 0, "{moved:?}");
        assert_eq!(moved[2..], [0; 5]);
        let share = || Shared::new(one[0].clone(), Flags::empty()).unwrap();
        let shared = found(&|| drop(share()));
        assert!(shared[3] <= 1 && shared[4] < cpus as u64, "{shared:?}");
        assert_eq!([shared[2], shared[5], shared[6]], [0; 3]);
        touch(&many);
        window::set_late(true);
        let late = found(&|| assert_eq!(word(&share().here()), 0));
        assert!(late[2] <= 1, "{late:?}");
        assert_eq!([late[3], late[4]], [0; 2]);
        let resize = found(&|| window::set_entries(4).unwrap());
        assert_eq!(resize[5], 1);
        window::set_keep(Keep::Off).unwrap();
        let ring = found(&|| (0..5).for_each(|_| touch(&many)));
        assert!(ring[0] + ring[4] == 0 && ring[6] <= 100, "{ring:?}");
    });
    let seen = SEEN.each_ref().map(|it| it.load(Ordering::Relaxed));
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

/// Two entries, and tasks on all CPUs that copy between pages: each has both entries or none.
#[test]
fn two_entries_are_enough_for_copies() {
    let few = Variant {
        entries: 2,
        ..PAPER
    };
    with_variant("two entries are enough for copies", few, 20, |_| {
        let together = Arc::new(Together::default());
        for tag in 0..8u64 {
            together.spawn(move || {
                let frames = [(); 3].map(|()| Frame::alloc(Contents::Zeroed).unwrap());
                map(&frames[0]).write(64, &tag.to_le_bytes());
                for round in 0..20 {
                    copy(
                        &frames[(round + 1) % 3],
                        0,
                        &frames[round % 3],
                        0,
                        PAGE_SIZE,
                    );
                }
                assert!(frames.iter().all(|frame| word(&map(frame)) == tag));
            });
        }
        together.join();
    });
}

/// All entries are in use by shared mappings: a caller that may not wait is told so, one that is
/// interrupted leaves, and one that waits goes on when an entry is free.
#[test]
fn waits_end() {
    let few = Variant {
        entries: 2,
        ..PAPER
    };
    with_variant("waits end", few, 20, |_| {
        let frames = [(); 3].map(|()| Frame::alloc(Contents::Zeroed).unwrap());
        let share = |i: usize, flags| Shared::new(frames[i].clone(), flags);
        let first = share(0, Flags::empty()).unwrap();
        let second = share(1, Flags::empty()).unwrap();
        let again = share(1, Flags::empty()).unwrap();
        assert_eq!((first.sharers(), again.sharers()), (1, 2));
        assert_eq!(
            share(2, Flags::NO_WAIT).err(),
            Some(Unavailable::WouldSleep)
        );
        let refused = alloc_two(&frames[0], &frames[2], Flags::NO_WAIT).err();
        assert_eq!(refused, Some(Unavailable::WouldSleep));
        // What may not sleep gets one all the same.
        {
            let _pinned = Pinned::new();
            assert_eq!(word(&map(&frames[2])), 0);
        }
        let together = Arc::new(Together::default());
        let (frame, waiter) = (frames[2].clone(), Arc::new(crate::lock::OnceArc::new()));
        let told = waiter.clone();
        let was_refused = Arc::new(AtomicBool::new(false));
        let left = was_refused.clone();
        together.spawn(move || {
            told.get_or_insert(crate::task::current);
            let flags = Flags::INTERRUPTIBLE;
            let refused = Shared::new(frame.clone(), flags).err();
            assert_eq!(refused, Some(Unavailable::Interrupted));
            crate::task::current().clear_interrupt();
            left.store(true, Ordering::SeqCst);
            drop(Shared::new(frame, Flags::empty()).unwrap());
        });
        while waiter.get().is_none() {
            crate::task::yield_now();
        }
        waiter.get().unwrap().interrupt();
        while !was_refused.load(Ordering::SeqCst) {
            crate::task::yield_now();
        }
        drop(second);
        drop(first);
        drop(again);
        together.join();
        assert_eq!(window::set_entries(4), Ok(()));
    });
}

#[test]
fn page_tables_have_no_mapping_that_was_kept() {
    with_variants("frames become page tables", 20, move |variant| {
        let mut tables = Vec::new();
        for _ in 0..20 {
            let frames: Vec<Frame> = (0..1 + below(40))
                .map(|_| Frame::alloc(Contents::Zeroed).unwrap())
                .collect();
            for _ in 0..frames.len() {
                let frame = &frames[below(frames.len())];
                assert_eq!(word(&map(frame)), 0);
            }
            drop(frames);
            frame::drain_tables();
            for _ in 0..below(40) {
                let level = 1 + below(3);
                tables.push((level, frame::take_table(level).unwrap().index()));
            }
            machine::each_kernel_page(false, &mut |page| {
                let is_table = frame::record::record(page.frame as u32).is_cached();
                assert!(!is_table, "{variant:?}: frame {:#x}", page.frame);
            });
            let given = tables.len() / 2;
            for (level, table) in tables.drain(given..) {
                frame::give_table(level, table);
            }
        }
        for (level, table) in tables {
            frame::give_table(level, table);
        }
    });
}

/// The settings stay as they are while a mapping is in use.
#[test]
fn settings_change_without_mappings() {
    let machine = Variant {
        entries: 8,
        ..PAPER
    };
    with_variant("settings change without mappings", machine, 5, |_| {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let shared = Shared::new(frame.clone(), Flags::empty()).unwrap();
        assert_eq!(window::set_entries(4), Err(Unchanged::InUse));
        assert_eq!(window::entries(), 8);
        assert_eq!(window::set_parts(true), Err(Unchanged::InUse));
        assert!(!window::has_parts());
        assert_eq!(window::set_keep(Keep::Off), Err(Unchanged::InUse));
        assert_eq!(window::keep(), Keep::On);
        assert_eq!(word(&shared.here()), 0);
        drop(shared);
        for entries in [4, 100, 2] {
            window::set_entries(entries).unwrap();
            assert_eq!(word(&map(&frame)), 0);
        }
    });
}

/// What the kernel maps is looked at while the caches change and mappings come and go.
#[test]
fn mappings_are_found_while_settings_change() {
    let machine = Variant {
        entries: 100,
        ..PAPER
    };
    with_variant("found while settings change", machine, 20, |_| {
        let together = Arc::new(Together::default());
        for task in 0..3 {
            together.spawn(move || {
                let frames = [(); 20].map(|()| Frame::alloc(Contents::Zeroed).unwrap());
                for round in 0..10 {
                    frames
                        .iter()
                        .for_each(|frame| assert_eq!(word(&map(frame)), 0));
                    match task {
                        0 => drop(window::set_entries(2 + round % 2 * 98)),
                        _ => audit::each_mapped(|it| assert_ne!(it.place, Place::Single)),
                    }
                }
            });
        }
        together.join();
    });
}

/// A setting changes beside tasks that map all the time: their mappings end soon.
#[test]
fn settings_change_beside_mappings() {
    let machine = Variant {
        entries: 8,
        ..PAPER
    };
    with_variant("settings change beside mappings", machine, 10, |_| {
        let together = Arc::new(Together::default());
        for tag in 0..4u64 {
            together.spawn(move || {
                let frame = Frame::alloc(Contents::Zeroed).unwrap();
                for round in 0..40 {
                    map(&frame).write(64, &(tag + round).to_le_bytes());
                    assert_eq!(word(&map(&frame)), tag + round);
                }
            });
        }
        for entries in [4, 20, 2, 128] {
            assert_eq!(window::set_entries(entries), Ok(()));
        }
        together.join();
    });
}

/// Every mapping of old costs an entry, and an invalidation on each CPU when it ends; none of the
/// direct ones does; the same frames again and again cost the window nothing, and no mapping ever
/// an invalidation elsewhere, unless all CPUs are to use it at once.
#[test]
fn the_costs_are_those_of_the_paper() {
    let cost = |body: &dyn Fn()| {
        let counters = [
            Counter::ephemeral_hits,
            Counter::ephemeral_misses,
            Counter::tlb_local_page,
            Counter::tlb_remote,
        ];
        let before = counts(counters);
        body();
        let after = counts(counters);
        [0, 1, 2, 3].map(|i| after[i] - before[i])
    };
    let plain = Variant {
        backend: Backend::Direct,
        ..PAPER
    };
    with_variant("direct mappings cost nothing", plain, 5, move |_| {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let found = cost(&|| (0..10).for_each(|_| free(map(&frame))));
        assert_eq!(found, [0, 0, 0, 0]);
    });
    let old = Variant {
        backend: Backend::Uncached,
        ..PAPER
    };
    with_variant("uncached mappings cost much", old, 5, move |_| {
        let frame = Frame::alloc(Contents::Zeroed).unwrap();
        let others = machine::cpu_count() as u64 - 1;
        let found = cost(&|| (0..10).for_each(|_| free(map(&frame))));
        assert_eq!(found, [0, 10, 10, 10 * others]);
    });
    with_variant("cached mappings cost little", PAPER, 5, move |_| {
        let frames: Vec<Frame> = (0..4)
            .map(|_| Frame::alloc(Contents::Zeroed).unwrap())
            .collect();
        let use_all = || {
            frames
                .iter()
                .for_each(|frame| assert_eq!(word(&map(frame)), 0))
        };
        assert_eq!(cost(&use_all)[1], 4);
        let [hits, misses, _, remote] = cost(&|| (0..10).for_each(|_| use_all()));
        assert_eq!([hits, misses, remote], [40, 0, 0]);
        // So do those that are made while another is held.
        let held = map(&frames[0]);
        assert_eq!(cost(&|| drop(map(&frames[1])))[..2], [1, 0]);
        drop(held);
        // More than there are entries: all of it stays on this CPU.
        let many: Vec<Frame> = (0..20)
            .map(|_| Frame::alloc(Contents::Zeroed).unwrap())
            .collect();
        let found = cost(&|| {
            many.iter()
                .for_each(|frame| assert_eq!(word(&map(frame)), 0))
        });
        assert_eq!([found[0], found[1], found[3]], [0, 20, 0]);
        // A shared one after that is told to the others, unless each looks for itself.
        let others = machine::cpu_count() as u64 - 1;
        let share = || drop(Shared::new(many[0].clone(), Flags::empty()));
        let before = Counter::ephemeral_remote_shared.total();
        let eager = cost(&share)[3];
        assert!(eager <= others, "{eager}");
        // This CPU is none of the others.
        let told = Counter::ephemeral_remote_shared.total() - before;
        assert!(told <= others, "{told}");
        window::set_late(true);
        let fresh: Vec<Frame> = (0..20)
            .map(|_| Frame::alloc(Contents::Zeroed).unwrap())
            .collect();
        let share = |frame: &Frame| drop(Shared::new(frame.clone(), Flags::empty()));
        assert_eq!(cost(&|| fresh.iter().for_each(share))[3], 0);
    });
}
