//! Swap space: programs larger than the machine, and devices that come and go. The host gives swap space as `/dev/vda` to
//! a small machine; elsewhere these tests are left out.

use std::fs;

use libc::{MADV_PAGEOUT, SIGKILL, c_int};

use crate::support::{Outcome, PAGE, c, child, exit, file, map, peek, poke, shared_map, spawn};
use crate::{SKIP, Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("swap: what can't be swap space", refusals),
    ("swap: pages that are sent away come back", away),
    ("swap: a device is given up and taken again", off_and_on),
    ("swap: a fork tree loses no slot", fork_tree),
    ("swap: a program larger than the machine", larger),
    ("swap: shared memory larger than the machine", larger_shared),
    (
        "swap: a shell beside a program larger than the machine",
        beside,
    ),
];

const DEVICE: &str = "/dev/vda";
const SWAP_FLAG_PREFER: c_int = 0x8000;

/// What `/proc/swaps` says of the device: size and use in KiB, and the priority.
fn state() -> Result<Option<[i64; 3]>, String> {
    let text = fs::read_to_string("/proc/swaps").map_err(|error| error.to_string())?;
    let Some(line) = text.lines().find(|line| line.starts_with(DEVICE)) else {
        return Ok(None);
    };
    let mut words = line.split_ascii_whitespace().skip(2).map(str::parse::<i64>);
    let mut next = || match words.next() {
        Some(Ok(number)) => Ok(number),
        _ => Err(format!("/proc/swaps has {line:?}")),
    };
    Ok(Some([next()?, next()?, next()?]))
}

fn needs_swap() -> Outcome {
    match state()? {
        Some(_) => Ok(()),
        None => Err(format!("{SKIP}there is no swap space")),
    }
}

/// A number of `file` in the line that begins with `name`.
fn number(file: &str, name: &str) -> Result<u64, String> {
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_ascii_whitespace().nth(1)?.parse().ok())
        .ok_or_else(|| format!("{file} has no {name}"))
}

/// Waits until the slots that are in use are those that pages have, and `used` of them if that is known.
fn expect_slots(used: Option<u64>) -> Outcome {
    const COUNTS: &str = "/proc/causeway/swap";
    let mut seen = (0, 0);
    for _ in 0..100 {
        seen = (number(COUNTS, "used")?, number(COUNTS, "found")?);
        if seen.0 == seen.1 && used.is_none_or(|used| used == seen.0) {
            return Ok(());
        }
        crate::support::pause_ms(20);
    }
    Err(format!(
        "{} slots in use, {} that pages have, expected {used:?}",
        seen.0, seen.1
    ))
}

/// The byte of a page that the tests write.
fn byte(page: usize, salt: usize) -> u8 {
    (page.wrapping_mul(2_654_435_761) >> 9) as u8 ^ salt as u8
}

fn fill(memory: *mut u8, pages: usize, salt: usize) {
    for page in 0..pages {
        poke(
            memory.wrapping_add(page * PAGE + page % PAGE),
            byte(page, salt),
        );
    }
}

fn check(memory: *mut u8, page: usize, salt: usize) -> Outcome {
    let found = peek(memory.wrapping_add(page * PAGE + page % PAGE));
    let wanted = byte(page, salt);
    ensure!(
        found == wanted,
        "page {page} has {found:#x} instead of {wanted:#x}"
    );
    Ok(())
}

fn send_away(memory: *mut u8, pages: usize) -> Outcome {
    for _ in 0..3 {
        call!(madvise(memory.cast(), pages * PAGE, MADV_PAGEOUT));
        crate::support::pause_ms(30);
    }
    Ok(())
}

fn refusals() -> Outcome {
    needs_swap()?;
    let (plain, descriptor) = file("plain", &[0; 16 * PAGE])?;
    call!(close(descriptor));
    // A file in memory has no blocks.
    for path in ["/dev/null", "/", plain.as_str()] {
        let name = c(path);
        refused!(EINVAL, swapon(name.as_ptr(), 0));
    }
    let (device, nothing) = (c(DEVICE), c("/nowhere"));
    refused!(EBUSY, swapon(device.as_ptr(), 0));
    refused!(EINVAL, swapon(device.as_ptr(), 1 << 20));
    refused!(ENOENT, swapon(nothing.as_ptr(), 0));
    refused!(ENOENT, swapoff(nothing.as_ptr()));
    let null = c("/dev/null");
    refused!(EINVAL, swapoff(null.as_ptr()));
    child(|| {
        call!(setuid(1000));
        let name = c(DEVICE);
        refused!(EPERM, swapoff(name.as_ptr()));
        refused!(EPERM, swapon(name.as_ptr(), 0));
        Ok(())
    })
}

fn away() -> Outcome {
    needs_swap()?;
    expect_slots(Some(0))?;
    let pages = 500;
    for shared in [false, true] {
        let memory = if shared {
            shared_map(pages * PAGE)?
        } else {
            map(pages * PAGE)?
        };
        fill(memory, pages, 3);
        send_away(memory, pages)?;
        let out = number("/proc/meminfo", "SwapTotal")? - number("/proc/meminfo", "SwapFree")?;
        ensure!(out >= 1900, "only {out} KiB went");
        let mut residency = vec![0u8; pages];
        call!(mincore(memory.cast(), pages * PAGE, residency.as_mut_ptr()));
        let gone = residency.iter().filter(|it| **it & 1 == 0).count();
        ensure!(gone > 450, "{gone} pages are gone");
        if !shared {
            let swapped = number("/proc/self/status", "VmSwap")?;
            ensure!(swapped >= 1800, "VmSwap is {swapped}");
        }
        // From the end: read, then write every other.
        for page in (0..pages).rev() {
            check(memory, page, 3)?;
        }
        for page in (0..pages).step_by(2) {
            let at = memory.wrapping_add(page * PAGE + page % PAGE);
            poke(at, byte(page, 9));
        }
        send_away(memory, pages)?;
        for page in 0..pages {
            check(memory, page, if page % 2 == 0 { 9 } else { 3 })?;
        }
        call!(munmap(memory.cast(), pages * PAGE));
        expect_slots(Some(0))?;
    }
    Ok(())
}

fn off_and_on() -> Outcome {
    needs_swap()?;
    let pages = 300;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 5);
    send_away(memory, pages)?;
    let name = c(DEVICE);
    call!(swapoff(name.as_ptr()));
    ensure!(state()?.is_none(), "it is still in /proc/swaps");
    ensure!(
        number("/proc/meminfo", "SwapTotal")? == 0,
        "there is swap space"
    );
    refused!(EINVAL, swapoff(name.as_ptr()));
    for page in 0..pages {
        check(memory, page, 5)?;
    }
    call!(swapon(name.as_ptr(), SWAP_FLAG_PREFER | 7));
    let [size, used, priority] = state()?.ok_or("it is not in /proc/swaps")?;
    ensure!(
        size > 0 && used == 0 && priority == 7,
        "{size} {used} {priority}"
    );
    send_away(memory, pages)?;
    for page in 0..pages {
        check(memory, page, 5)?;
    }
    Ok(())
}

/// Children that write, go to swap and exit, of parents that do.
fn fork_tree() -> Outcome {
    needs_swap()?;
    expect_slots(Some(0))?;
    let pages = 64;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 1);
    for round in 0..6 {
        child(|| {
            send_away(memory, pages)?;
            fill(memory, pages / 2, 20 + round);
            child(|| {
                for page in 0..pages {
                    check(memory, page, if page < pages / 2 { 20 + round } else { 1 })?;
                }
                fill(memory, pages, 40);
                send_away(memory, pages)
            })?;
            for page in 0..pages {
                check(memory, page, if page < pages / 2 { 20 + round } else { 1 })?;
            }
            expect_slots(None)
        })?;
        for page in 0..pages {
            check(memory, page, 1)?;
        }
        if round % 2 == 0 {
            fill(memory, pages, 1);
        }
        expect_slots(None)?;
    }
    call!(munmap(memory.cast(), pages * PAGE));
    expect_slots(Some(0))
}

/// Pages of one and a half times the machine's memory.
fn too_many() -> Result<usize, String> {
    let total = number("/proc/meminfo", "MemTotal")?;
    Ok(total as usize * 1024 / PAGE * 3 / 2)
}

fn larger() -> Outcome {
    needs_swap()?;
    let out = number("/proc/vmstat", "pswpout")?;
    let pages = too_many()?;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 7);
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

fn larger_shared() -> Outcome {
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
    let ended = crate::support::wait(spawn(|| {
        // SAFETY: the words and the list end as they must.
        unsafe { libc::execv(words[0], words.as_ptr()) };
        exit(9)
    })?)?;
    ensure!(ended == crate::support::End::Exit(0), "{ended:?}");
    Ok(())
}

/// A shell is as slow as what it waits for: whatever the other does, nearly nothing of what it uses all the time may go.
fn beside() -> Outcome {
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
    crate::support::wait(other)?;
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
