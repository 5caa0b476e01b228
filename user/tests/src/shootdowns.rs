//! TLB shootdowns go to the CPUs that run the same program, and to no others.

use crate::proc::only_causeway;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("shootdowns: other programs are left alone", other_programs),
    ("shootdowns: threads are told", threads),
    ("shootdowns: nobody, of what was never used", unused),
];

/// Mappings made and removed in one test.
const ROUNDS: u64 = 200;

/// Skips the test on one CPU and on another kernel.
fn two_cpus() -> Outcome {
    only_causeway()?;
    if call!(sysconf(_SC_NPROCESSORS_ONLN)) < 2 {
        return Err(skip("one CPU"));
    }
    Ok(())
}

/// Counts the shootdown IPIs of mapping, using and unmapping pages on the first CPU.
fn interrupts(uses: bool) -> Result<u64> {
    pin(0)?;
    let before = counter("ipi_shootdown")?;
    for _ in 0..ROUNDS {
        let memory = map(PAGE)?;
        if uses {
            poke(memory, 1);
        }
        call!(munmap(memory.cast(), PAGE));
    }
    Ok(counter("ipi_shootdown")? - before)
}

/// The test runner itself causes a few at most.
const OTHERS: u64 = ROUNDS / 10;

fn other_programs() -> Outcome {
    two_cpus()?;
    let child = spawn(|| {
        pin(1)?;
        loop {
            std::hint::spin_loop();
        }
    })?;
    // Lets it run there first.
    pause_ms(20);
    let sent = interrupts(true);
    kill_child(child)?;
    let sent = sent?;
    ensure!(sent <= OTHERS, "{sent} interrupts for {ROUNDS} mappings");
    Ok(())
}

fn threads() -> Outcome {
    beside_a_thread(|| {
        // Not for each mapping, since another program may run there for a while.
        let end = Instant::now() + Duration::from_secs(30);
        while interrupts(true)? < ROUNDS / 4 {
            ensure!(Instant::now() < end, "the thread is not told");
        }
        Ok(())
    })
}

fn unused() -> Outcome {
    beside_a_thread(|| {
        let sent = interrupts(false)?;
        ensure!(sent <= OTHERS, "{sent} interrupts for {ROUNDS} mappings");
        Ok(())
    })
}

/// Runs `body` while another thread runs on the second CPU.
fn beside_a_thread(body: impl FnOnce() -> Outcome) -> Outcome {
    two_cpus()?;
    let stop = Arc::new(AtomicBool::new(false));
    let runs = Arc::new(AtomicBool::new(false));
    let thread = thread::spawn({
        let (stop, runs) = (stop.clone(), runs.clone());
        move || -> Outcome {
            pin(1)?;
            runs.store(true, Release);
            while !stop.load(Relaxed) {
                std::hint::spin_loop();
            }
            Ok(())
        }
    });
    while !runs.load(Acquire) && !thread.is_finished() {
        pause_ms(1);
    }
    let outcome = body();
    stop.store(true, Relaxed);
    thread
        .join()
        .unwrap_or_else(|_| Err("the thread panicked".into()))?;
    outcome
}
