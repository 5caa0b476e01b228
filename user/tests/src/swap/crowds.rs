//! More pages than the machine has room for.

use std::fs;

use libc::SIGKILL;

use super::devices::{instead, prepare};
use super::state::{DEVICE, check, expect_slots, fill, needs_swap, number, state};
use crate::support::{
    End, Outcome, PAGE, c, child, exit, map, peek, poke, shared_map, spawn, wait,
};
use crate::{SKIP, call, ensure, refused};

/// When nothing goes to swap any more, the largest process is ended; others lose nothing, and the slots come back.
pub fn full() -> Outcome {
    const SMALL: &str = "/dev/md0";
    const KILLS: (&str, &str) = ("/proc/causeway/counters", "out_of_memory_kills");
    needs_swap()?;
    if !fs::exists(SMALL).unwrap_or(false) {
        return Err(format!("{SKIP}there is no {SMALL}"));
    }
    prepare(SMALL, 1024)?;
    instead(SMALL, || {
        let pages = 200;
        let memory = map(pages * PAGE)?;
        fill(memory, pages, 6);
        let kills = number(KILLS.0, KILLS.1)?;
        let greedy = spawn(|| {
            for _ in 0..64 {
                fill(map(2048 * PAGE)?, 2048, 2);
            }
            Err("it got half a gigabyte".into())
        })?;
        let end = wait(greedy)?;
        ensure!(end == End::Signal(libc::SIGKILL), "it ended with {end:?}");
        let kills = number(KILLS.0, KILLS.1)? - kills;
        ensure!(kills == 1, "{kills} processes were ended");
        for page in 0..pages {
            check(memory, page, 6)?;
        }
        call!(munmap(memory.cast(), pages * PAGE));
        expect_slots(None)
    })
}

/// Pages of one and a half times the machine's memory.
fn too_many() -> Result<usize, String> {
    let total = number("/proc/meminfo", "MemTotal")?;
    Ok(total as usize * 1024 / PAGE * 3 / 2)
}

pub fn larger() -> Outcome {
    needs_swap()?;
    let out = number("/proc/vmstat", "pswpout")?;
    let pages = too_many()?;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 7);
    // There is no room for all of that.
    let (name, kills) = (
        c(DEVICE),
        number("/proc/causeway/counters", "out_of_memory_kills")?,
    );
    refused!(ENOMEM, swapoff(name.as_ptr()));
    ensure!(state()?.is_some(), "it is not in /proc/swaps any more");
    let more = number("/proc/causeway/counters", "out_of_memory_kills")? - kills;
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
    let out = number("/proc/vmstat", "pswpout")? - out;
    ensure!(out as usize > pages / 3, "{out} pages went out");
    call!(munmap(memory.cast(), pages * PAGE));
    // Others' pages may have gone, too.
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
    // Others' pages may have gone, too.
    expect_slots(None)
}

/// Faults for which this process and its children that ended waited for a disk.
fn waited() -> Result<i64, String> {
    let mut sum = 0;
    for who in [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN] {
        // SAFETY: plain numbers, for the call to fill.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        call!(getrusage(who, &mut usage));
        sum += usage.ru_majflt;
    }
    Ok(sum)
}

/// The same of another process, alone.
fn major_faults(process: libc::pid_t) -> Result<i64, String> {
    let text =
        fs::read_to_string(format!("/proc/{process}/stat")).map_err(|error| error.to_string())?;
    let behind = text.rsplit(") ").next().unwrap_or_default();
    let field = behind.split_ascii_whitespace().nth(9);
    field
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| format!("no major faults in {text:?}"))
}

/// What a person at a shell does: looks at what it has in memory, and runs a command.
fn round_trip(memory: *mut u8, pages: usize) -> Outcome {
    for page in 0..pages {
        check(memory, page, 2)?;
    }
    let command = [c("/bin/busybox"), c("true")];
    let words = [command[0].as_ptr(), command[1].as_ptr(), std::ptr::null()];
    let ended = wait(spawn(|| {
        // SAFETY: the words and the list end as they must.
        unsafe { libc::execv(words[0], words.as_ptr()) };
        exit(9)
    })?)?;
    ensure!(ended == End::Exit(0), "{ended:?}");
    Ok(())
}

/// A shell is as slow as what it waits for: whatever the other does, nearly nothing of what it uses all the time may go.
pub fn beside() -> Outcome {
    const PAGES: usize = 64;
    const ROUNDS: i64 = 30;
    needs_swap()?;
    let large = too_many()?;
    let passes = shared_map(PAGE)?;
    let own = map(PAGES * PAGE)?;
    fill(own, PAGES, 2);
    let other = spawn(|| {
        let memory = map(large * PAGE)?;
        for pass in 1.. {
            fill(memory, large, pass);
            poke(passes, pass.min(255) as u8);
        }
        Ok(())
    })?;
    // From the first pass on each page that it writes has to come back first.
    while peek(passes) == 0 {
        round_trip(own, PAGES)?;
        crate::support::pause_ms(20);
    }
    let (before, read_in) = (waited()?, major_faults(other)?);
    let mut rounds = 0;
    while rounds < ROUNDS || peek(passes) < 2 {
        round_trip(own, PAGES)?;
        crate::support::pause_ms(10);
        rounds += 1;
    }
    let (waits, read_in) = (waited()? - before, major_faults(other)? - read_in);
    call!(kill(other, SIGKILL));
    wait(other)?;
    call!(munmap(own.cast(), PAGES * PAGE));
    // Some pages come by each.
    ensure!(
        read_in as usize > large / 100,
        "the other program waited {read_in} times only"
    );
    ensure!(
        waits <= rounds,
        "{waits} faults of {rounds} round trips waited, and {read_in} of the other program"
    );
    expect_slots(None)
}
