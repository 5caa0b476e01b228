//! The generator on the simulated machine, and the judge of timing.

use alloc::{collections::BTreeSet, sync::Arc, vec::Vec};
use core::sync::atomic::Ordering;
use core::time::Duration;

use super::jitter::Jitter;
use super::*;
use crate::sim::{Config, Together, check};
use crate::task;

/// Output of all CPUs in eights of bytes: none repeats.
#[test]
fn no_cpu_repeats_itself_or_another() {
    let config = Config {
        cpus: 4,
        ..Config::default()
    };
    check("random words", 0..20, config, || {
        let seen = Arc::new(SpinLock::new(Rank::Leaf, BTreeSet::new()));
        let together = Arc::new(Together::default());
        for n in 0..4usize {
            let seen = seen.clone();
            together.spawn(move || {
                for round in 0..40usize {
                    let mut bytes = alloc::vec![0; 8 * (1 + (n * 7 + round * 13) % 90)];
                    fill(&mut bytes);
                    if round % 16 == 3 {
                        reseed();
                    }
                    let mut seen = seen.lock();
                    for word in bytes.chunks(8) {
                        assert!(seen.insert(word.to_vec()), "{word:?} came twice");
                    }
                    drop(seen);
                    task::yield_now();
                }
            });
        }
        together.join();
    });
}

/// An unseeded pool becomes seeded by input with entropy only, and its waiters wake.
#[test]
fn waiters_wait_for_entropy() {
    check("unseeded", 0..20, Config::default(), || {
        assert!(is_seeded());
        *POOL.lock_irq() = Pool::new();
        GENERATION.store(0, Ordering::Relaxed);
        let mut bytes = [[0; 16]; 2];
        bytes.iter_mut().for_each(|bytes| fill(bytes));
        assert_ne!(bytes[0], bytes[1]);
        mix(&[7; 4096]);
        assert_eq!(entropy(), 0);
        add(&[1; 16], 128);
        assert!(!is_seeded() && entropy() == 128);
        let soon = Sleep::within(Duration::from_micros(1));
        let (together, start) = (Arc::new(Together::default()), task_time());
        assert!(matches!(
            wait_until_seeded(soon),
            Err(Woken::TimedOut) | Ok(())
        ));
        together.spawn(|| {
            wait_until_seeded(Sleep::SOUND).unwrap();
            assert!(is_seeded());
        });
        add(&[2; 16], 200);
        together.join();
        assert_eq!(entropy(), POOL_BITS);
        assert!(task_time() - start < Duration::from_secs(5));
    });
}

fn task_time() -> Duration {
    crate::time::since_boot()
}

/// A key that is too old is replaced by its next use, and sources are asked for more.
#[test]
fn an_old_key_is_replaced() {
    check("old key", 0..10, Config::default(), || {
        let first = GENERATION.load(Ordering::Relaxed);
        task::sleep(Sleep::within(RESEED_INTERVAL));
        fill(&mut [0; 600]);
        fill(&mut [0; 200]);
        fill(&mut [0; 200]);
        assert_eq!(GENERATION.load(Ordering::Relaxed), first + 1);
        wait_until_wanted(Sleep::within(Duration::from_millis(1))).unwrap();
        let none = wait_until_wanted(Sleep::within(Duration::from_millis(1)));
        assert_eq!(none, Err(Woken::TimedOut));
    });
}

/// Regular times count as nothing, irregular ones do.
#[test]
fn regular_times_have_no_entropy() {
    let count = |times: Vec<u64>| {
        let mut jitter = Jitter::default();
        let uncertain = |&now: &u64| jitter.is_uncertain(now);
        times.iter().copied().filter(uncertain).count()
    };
    assert!(count((1..100).map(|n| n * 1_000_000).collect()) <= 2);
    assert!(count((1..100).map(|n| n * 1_000_000 + n * n * 30).collect()) <= 3);
    assert_eq!(count(alloc::vec![5; 100]), 0);
    let mut at = 0;
    let irregular = (1..100_u64).map(|n| {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        at += 1_000_000 + (mixed ^ mixed >> 29) % 5000;
        at
    });
    assert!(count(irregular.collect()) > 90);
}
