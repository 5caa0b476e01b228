//! The simulated machine itself.

use std::process::{Command, Stdio};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

use super::{console_input, console_output, point, random_u64};
use crate::boot::fixture::spawn;
use crate::boot::simulated::{Config, run};
use crate::{
    console,
    task::{self, Sleep},
    time,
};

/// What three tasks do to one word without a lock: a fingerprint of the schedule.
fn fingerprint(seed: u64) -> u64 {
    let word = Arc::new(AtomicU64::new(0));
    let result = word.clone();
    let config = Config {
        cpus: 3,
        pages: 256,
        seed,
        ..Config::default()
    };
    let body = move || {
        for task in 1..4 {
            let word = word.clone();
            spawn(move || {
                for _ in 0..50 {
                    let old = word.load(Ordering::SeqCst);
                    point();
                    let new = old.wrapping_mul(31) + task + random_u64() % 7;
                    word.store(new, Ordering::SeqCst);
                }
            });
        }
    };
    run(config, body).unwrap();
    result.load(Ordering::SeqCst)
}

#[test]
fn a_seed_repeats_a_run() {
    for seed in 0..10 {
        assert_eq!(fingerprint(seed), fingerprint(seed));
    }
    assert_ne!(fingerprint(1), fingerprint(2));
}

#[test]
fn a_panic_names_its_seed() {
    let config = Config {
        seed: 77,
        ..Config::default()
    };
    let failure = run(config, || drop(spawn(|| panic!("on purpose")))).unwrap_err();
    assert_eq!(failure.seed, 77);
    assert!(failure.message.contains("on purpose"));
    // And the next run finds nothing of it.
    run(config, || drop(spawn(|| ()))).unwrap();
}

/// Panics while it is dropped.
struct PanicsToo;

impl Drop for PanicsToo {
    fn drop(&mut self) {
        panic!("the second");
    }
}

#[test]
fn a_panic_on_top_of_a_panic_ends_with_the_first() {
    const TWICE: &str = "PANIC_TWICE";
    let name = "hw::sim::tests::a_panic_on_top_of_a_panic_ends_with_the_first";
    if std::env::var_os(TWICE).is_some() {
        let twice = || {
            let _second = PanicsToo;
            panic!("the first");
        };
        drop(run(Config::default(), move || drop(spawn(twice))));
        return;
    }
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let tests = tests.args(["--exact", name]).env(TWICE, "1");
    let mut child = tests.stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..600 {
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            let shown = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success());
            assert!(
                shown.contains("the first") && shown.contains("the second"),
                "{shown}"
            );
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    panic!("hangs");
}

#[test]
fn a_wait_without_a_waker_is_noticed() {
    let endless = || {
        loop {
            point();
        }
    };
    let config = Config {
        max_points: 100_000,
        ..Config::default()
    };
    let message = run(config, endless).unwrap_err().message;
    assert!(message.contains("no end"), "{message}");
    let forever = || {
        task::WaitQueue::new()
            .wait(Sleep::SOUND, || None::<()>)
            .unwrap();
    };
    let message = run(config, forever).unwrap_err().message;
    assert!(message.contains("deadlock: main"), "{message}");
    #[cfg(debug_assertions)]
    assert!(message.contains(file!()), "{message}");
}

#[test]
fn the_clock_jumps_over_sleeps() {
    let body = || {
        let hour = time::since_boot() + std::time::Duration::from_secs(3600);
        task::sleep(Sleep::until(hour));
        assert!(time::since_boot() >= hour);
    };
    run(Config::default(), body).unwrap();
}

#[test]
fn the_console_has_two_ends() {
    let body = || {
        console_input(b"typed");
        let mut got = Vec::new();
        while got.len() < 5 {
            let read = || {
                let mut bytes = [0; 3];
                let count = console::read(&mut bytes);
                (count > 0).then(|| bytes[..count].to_vec())
            };
            got.extend(console::arrivals().wait(Sleep::SOUND, read).unwrap());
        }
        assert_eq!(got, b"typed");
        console::write(b"printed");
        assert_eq!(console_output(), b"printed");
    };
    run(Config::default(), body).unwrap();
}
