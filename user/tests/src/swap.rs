//! Swap space: programs larger than the machine, and devices that come and go. The host gives swap space as `/dev/vda` to
//! a small machine; elsewhere these tests are left out.

use std::fs;
use std::io::Write;

use libc::{MADV_PAGEOUT, SIGKILL, c_int};

use crate::support::{
    End, Outcome, PAGE, c, child, exit, fault_of, file, map, peek, poke, shared_map, spawn, wait,
};
use crate::{SKIP, Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("swap: what can't be swap space", refusals),
    ("swap: pages that are sent away come back", away),
    ("swap: a device is given up and taken again", off_and_on),
    ("swap: a fork tree loses no slot", fork_tree),
    ("swap: a file that is swap space", on_a_file),
    ("swap: full", full),
    ("swap: a program larger than the machine", larger),
    ("swap: shared memory larger than the machine", larger_shared),
    (
        "swap: a shell beside a program larger than the machine",
        beside,
    ),
    // With a disk of which the host can't read a sector.
    (
        "unreadable: only who needs the page hears of it",
        unreadable,
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

/// Makes a swap space of so many pages of a file or device, as `mkswap` does.
fn prepare(path: &str, pages: usize) -> Outcome {
    let mut header = vec![0; PAGE];
    header[1024] = 1;
    header[1028..1032].copy_from_slice(&(pages as u32 - 1).to_le_bytes());
    header[PAGE - 10..].copy_from_slice(b"SWAPSPACE2");
    let mut open = fs::OpenOptions::new();
    let mut write = || -> std::io::Result<()> {
        let mut file = open.write(true).create(true).open(path)?;
        for page in 0..pages {
            match page {
                0 => file.write_all(&header)?,
                _ => file.write_all(&[7; PAGE])?,
            }
        }
        file.sync_all()
    };
    write().map_err(|error| format!("{path}: {error}"))
}

/// Takes the host's device out and another one in for the time of `body`.
fn instead(path: &str, body: impl FnOnce() -> Outcome) -> Outcome {
    let (device, other) = (c(DEVICE), c(path));
    call!(swapoff(device.as_ptr()));
    call!(swapon(other.as_ptr(), 0));
    let outcome = body();
    let off = || {
        call!(swapoff(other.as_ptr()));
        call!(swapon(device.as_ptr(), 0));
        Ok(())
    };
    outcome.and(off())
}

/// The file keeps its name and its bytes as long as it is in use.
fn on_a_file() -> Outcome {
    const DISK: &str = "/dev/vdb";
    needs_swap()?;
    if !fs::exists(DISK).unwrap_or(false) {
        return Err(format!("{SKIP}there is no {DISK}"));
    }
    let folder = crate::support::folder("swap-file")?;
    let (disk, at, kind) = (c(DISK), c(&folder), c("ext2"));
    call!(mount(
        disk.as_ptr(),
        at.as_ptr(),
        kind.as_ptr(),
        0,
        std::ptr::null()
    ));
    let (path, other) = (format!("{folder}/swap"), format!("{folder}/other"));
    prepare(&path, 600)?;
    fs::write(&other, "other").map_err(|error| error.to_string())?;
    let (name, new) = (c(&path), c(&other));
    instead(&path, || {
        let pages = 400;
        let memory = map(pages * PAGE)?;
        fill(memory, pages, 4);
        send_away(memory, pages)?;
        let out = number("/proc/meminfo", "SwapTotal")? - number("/proc/meminfo", "SwapFree")?;
        ensure!(out >= 1500, "only {out} KiB went");
        refused!(EPERM, unlink(name.as_ptr()));
        refused!(EPERM, rename(name.as_ptr(), new.as_ptr()));
        refused!(EPERM, rename(new.as_ptr(), name.as_ptr()));
        refused!(ETXTBSY, truncate(name.as_ptr(), 0));
        refused!(EBUSY, umount2(at.as_ptr(), 0));
        for page in (0..pages).rev() {
            check(memory, page, 4)?;
        }
        send_away(memory, pages)?;
        for page in 0..pages / 2 {
            check(memory, page, 4)?;
        }
        call!(munmap(memory.cast(), pages * PAGE));
        expect_slots(None)
    })?;
    call!(unlink(name.as_ptr()));
    call!(umount2(at.as_ptr(), 0));
    Ok(())
}

/// When nothing goes to swap any more, the largest process is ended; others lose nothing, and the slots come back.
fn full() -> Outcome {
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

/// One slot can't be read: the fault on its page is an error, all others are none.
fn unreadable() -> Outcome {
    needs_swap()?;
    let pages = 256;
    let memory = map(pages * PAGE)?;
    fill(memory, pages, 5);
    send_away(memory, pages)?;
    let before = number("/proc/vmstat", "pswpin")?;
    let mut failed = Vec::new();
    for page in 0..pages {
        let at = memory.wrapping_add(page * PAGE + page % PAGE);
        let read = || {
            peek(at);
        };
        match fault_of(read)? {
            None => check(memory, page, 5)?,
            Some(fault) => failed.push((page, fault.signal)),
        }
    }
    let read = number("/proc/vmstat", "pswpin")? - before;
    ensure!(
        matches!(failed[..], [(_, libc::SIGBUS)]),
        "these pages failed: {failed:?}, {read} were read"
    );
    let name = c(DEVICE);
    // It can't be brought back.
    refused!(EIO, swapoff(name.as_ptr()));
    ensure!(state()?.is_some(), "it is not in /proc/swaps any more");
    call!(munmap(memory.cast(), pages * PAGE));
    expect_slots(None)?;
    call!(swapoff(name.as_ptr()));
    Ok(())
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
