//! More pages than fit into the machine's memory.

use super::devices::{instead, prepare};
use super::state::{DEVICE, check, expect_slots, fill, needs_swap, state};
use support::prelude::*;

/// When swap is full, the largest process is killed; others lose nothing, and its slots are freed.
pub fn full() -> Outcome {
    const SMALL: &str = "/dev/md0";
    const KILLS: (&str, &str) = ("/proc/causeway/counters", "out_of_memory_kills");
    needs_swap()?;
    if !fs::exists(SMALL).unwrap_or(false) {
        return Err(skip(format!("there is no {SMALL}")));
    }
    prepare(SMALL, 1024)?;
    instead(SMALL, || {
        let pages = 200;
        let memory = map(pages * PAGE)?;
        fill(memory, pages, 6);
        let kills = field(KILLS.0, KILLS.1)?;
        let greedy = spawn(|| {
            for _ in 0..64 {
                fill(map(2048 * PAGE)?, 2048, 2);
            }
            Err("it got half a gigabyte".into())
        })?;
        let end = wait(greedy)?;
        ensure!(end == End::Signal(SIGKILL), "it ended with {end:?}");
        let kills = field(KILLS.0, KILLS.1)? - kills;
        ensure!(kills == 1, "{kills} processes were ended");
        for page in 0..pages {
            check(memory, page, 6)?;
        }
        call!(munmap(memory.cast(), pages * PAGE));
        expect_slots(None)
    })
}

/// Returns the number of pages of one and a half times the machine's memory.
fn too_many() -> Result<usize> {
    let total = field("/proc/meminfo", "MemTotal")?;
    Ok(total as usize * 1024 / PAGE * 3 / 2)
}

pub fn larger() -> Outcome {
    needs_swap()?;
    let out = field("/proc/vmstat", "pswpout")?;
    let pages = too_many()?;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 7);
    // Not all of that fits.
    let (name, kills) = (
        c(DEVICE),
        field("/proc/causeway/counters", "out_of_memory_kills")?,
    );
    refused!(ENOMEM, swapoff(name.as_ptr()));
    ensure!(state()?.is_some(), "it is not in /proc/swaps any more");
    let more = field("/proc/causeway/counters", "out_of_memory_kills")? - kills;
    ensure!(more == 0, "{more} processes were ended for that");
    for page in (0..pages).rev().step_by(3) {
        check(memory, page, 7)?;
    }
    child(|| {
        for page in (0..pages).step_by(61) {
            check(memory, page, 7)?;
            poke(memory.wrapping_add(page * PAGE), 1);
        }
        Ok(())
    })?;
    for page in (0..pages).step_by(5) {
        check(memory, page, 7)?;
    }
    let out = field("/proc/vmstat", "pswpout")? - out;
    ensure!(out as usize > pages / 3, "{out} pages went out");
    call!(munmap(memory.cast(), pages * PAGE));
    // Other processes' pages may have been swapped out, too.
    expect_slots(None)
}

pub fn larger_shared() -> Outcome {
    needs_swap()?;
    let pages = too_many()?;
    let memory = shared_map(pages * PAGE)?;
    child(|| {
        fill(memory, pages, 8);
        Ok(())
    })?;
    for page in (0..pages).step_by(3) {
        check(memory, page, 8)?;
    }
    call!(munmap(memory.cast(), pages * PAGE));
    // Other processes' pages may have been swapped out, too.
    expect_slots(None)
}

/// Returns the major faults of this process and its ended children.
fn waited() -> Result<i64> {
    let mut sum = 0;
    for who in [RUSAGE_SELF, RUSAGE_CHILDREN] {
        // SAFETY: plain numbers, for the call to fill.
        let mut usage: rusage = unsafe { zeroed() };
        call!(getrusage(who, &mut usage));
        sum += usage.ru_majflt;
    }
    Ok(sum)
}

/// Returns the major faults of another process alone.
fn major_faults(process: pid_t) -> Result<i64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let behind = text.rsplit(") ").next().unwrap_or_default();
    let field = behind.split_ascii_whitespace().nth(9);
    field
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| format!("no major faults in {text:?}").into())
}

/// Behaves as a shell: reads its working set, and runs a command.
fn round_trip(memory: *mut u8, pages: usize) -> Outcome {
    for page in 0..pages {
        check(memory, page, 2)?;
    }
    let command = [c("/bin/busybox"), c("true")];
    let words = [command[0].as_ptr(), command[1].as_ptr(), null()];
    let ended = wait(spawn(|| {
        // SAFETY: the words and the list end as they must.
        unsafe { libc::execv(words[0], words.as_ptr()) };
        exit(9)
    })?)?;
    ensure!(ended == End::Exit(0), "{ended:?}");
    Ok(())
}

/// A shell's working set must stay in memory beside a larger program. Between two commands a person
/// thinks for so long that the pagedaemon passes all pages twice: no referenced bit is set then.
pub fn beside() -> Outcome {
    const PAGES: usize = 64;
    const ROUNDS: i64 = 5;
    /// Pages that the other process writes per step.
    const PIECE: usize = 256;
    needs_swap()?;
    let large = too_many()?;
    let shared = shared_map(PAGE)?;
    // SAFETY: the memory is aligned, and stays until the process ends.
    let written = unsafe { AtomicUsize::from_ptr(shared.cast()) };
    let own = map(PAGES * PAGE)?;
    fill(own, PAGES, 2);
    let other = spawn(|| {
        let memory = map(large * PAGE)?;
        for pass in 1.. {
            for first in (0..large).step_by(PIECE) {
                let pages = PIECE.min(large - first);
                fill(memory.wrapping_add(first * PAGE), pages, pass);
                written.fetch_add(pages, SeqCst);
            }
        }
        Ok(())
    })?;
    let pause = |until: usize| {
        pause_ms(250);
        while written.load(SeqCst) < until {
            pause_ms(10);
        }
    };
    // From the second pass on, each page has to be paged in before it is written.
    while written.load(SeqCst) < large {
        round_trip(own, PAGES)?;
        pause(0);
    }
    let (before, read_in) = (waited()?, major_faults(other)?);
    for _ in 0..ROUNDS {
        round_trip(own, PAGES)?;
        pause(written.load(SeqCst) + large / 2);
    }
    let (waits, read_in) = (waited()? - before, major_faults(other)? - read_in);
    kill_child(other)?;
    call!(munmap(own.cast(), PAGES * PAGE));
    // Each process pages in some.
    ensure!(read_in as usize > large / 100, read_in);
    ensure!(waits <= ROUNDS, waits, ROUNDS, read_in);
    expect_slots(None)
}
