//! Everything that a program used is freed when it exits.

use std::collections::BTreeMap;

use crate::proc::only_causeway;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("leaks: forks and exits", forks),
    ("leaks: execs", execs),
    ("leaks: maps and unmaps", maps),
    ("leaks: killed in the middle", killed),
    ("leaks: pipes", pipes),
    ("leaks: files", files),
    ("leaks: threads", threads),
    ("leaks: page tables", page_tables),
    ("leaks: packet sockets that find no tap", taps),
];

/// Memory in use, in bytes, by kind: frames, and objects of the heap by size. Objects in per-CPU
/// caches, and free objects in the frames that these pin, do not count as used: such frames are
/// freed late.
type InUse = BTreeMap<String, i64>;

fn in_use() -> Result<InUse> {
    let lines = |path: &str| -> Result<Vec<Vec<String>>> {
        let text = fs::read_to_string(path)?;
        let words = |line: &str| line.split(' ').map(str::to_owned).collect();
        Ok(text.lines().map(words).collect())
    };
    let number = |word: &String| word.parse::<i64>().map_err(|error| error.to_string());
    let memory = lines("/proc/causeway/memory")?;
    let frames = |name: &str| {
        let line = memory.iter().find(|line| line[0] == name);
        number(&line.ok_or("no such line")?[1]).map(|frames| frames * PAGE as i64)
    };
    let mut in_use = InUse::new();
    let mut slabs = 0;
    // For each size: bytes, frames, objects in use, objects in per-CPU caches.
    for line in lines("/proc/causeway/heap")? {
        slabs += number(&line[1])? * PAGE as i64;
        let kind = format!("objects of {} bytes", line[0]);
        in_use.insert(kind, number(&line[0])? * number(&line[2])?);
    }
    for kind in ["data", "page_tables", "kernel"] {
        in_use.insert(kind.to_owned(), frames(kind)?);
    }
    in_use.insert("large pieces of heap".to_owned(), frames("heap")? - slabs);
    Ok(in_use)
}

/// Waits for a moment on so many words that every wait queue had a waiter: a queue keeps its
/// memory.
fn wait_for_many_words() -> Outcome {
    let words = vec![0u32; 4096];
    let moment = time_spec(0, 1);
    for word in &words {
        // SAFETY: the word and the time are there while the call runs.
        let ended = unsafe {
            libc::syscall(
                libc::SYS_futex,
                word,
                FUTEX_WAIT | FUTEX_PRIVATE_FLAG,
                0,
                &raw const moment,
            )
        };
        let error = io::Error::last_os_error();
        ensure!(
            ended == -1 && error.raw_os_error() == Some(ETIMEDOUT),
            "{ended}: {error}"
        );
    }
    Ok(())
}

/// Runs `storm` twice to fill caches, then several times more: for each kind of memory at least one
/// of these runs must lose nothing.
fn nothing_lost(storm: fn() -> Outcome) -> Outcome {
    only_causeway()?;
    let settled = || {
        pause_ms(100);
        in_use()
    };
    wait_for_many_words()?;
    settled()?;
    child(storm)?;
    child(storm)?;
    // A leak shows in every run.
    let mut losses = BTreeMap::<String, Vec<i64>>::new();
    for _ in 0..4 {
        let before = settled()?;
        child(storm)?;
        for (kind, after) in settled()? {
            let lost = after - before[&kind];
            losses.entry(kind).or_default().push(lost);
        }
    }
    for (kind, losses) in losses {
        ensure!(losses.iter().any(|lost| *lost <= 0), kind, losses);
    }
    Ok(())
}

fn forks() -> Outcome {
    nothing_lost(|| {
        let memory = map(64 * PAGE)?;
        for round in 0..40 {
            (0..64).for_each(|page| poke(memory.wrapping_add(page * PAGE), round));
            let one = spawn(|| {
                (0..64).for_each(|page| poke(memory.wrapping_add(page * PAGE), 9));
                child(|| Ok(()))
            })?;
            (0..64).for_each(|page| poke(memory.wrapping_add(page * PAGE), 7));
            wait_ok(one)?;
        }
        Ok(())
    })
}

fn execs() -> Outcome {
    nothing_lost(|| {
        for _ in 0..30 {
            let status = std::process::Command::new("/proc/self/exe")
                .args(["--as", "exit", "0"])
                .status();
            ensure!(status.is_ok_and(|status| status.success()), "exec failed");
        }
        Ok(())
    })
}

fn maps() -> Outcome {
    nothing_lost(|| {
        for round in 1..40usize {
            let memory = map(round * 16 * PAGE)?;
            (0..round * 16).for_each(|page| poke(memory.wrapping_add(page * PAGE), 1));
            for hole in (0..round * 16).step_by(5) {
                call!(munmap(memory.wrapping_add(hole * PAGE).cast(), PAGE));
            }
            call!(mprotect(memory.wrapping_add(PAGE).cast(), PAGE, PROT_READ));
            if round % 2 == 0 {
                call!(munmap(memory.cast(), round * 16 * PAGE));
            }
        }
        Ok(())
    })
}

fn killed() -> Outcome {
    nothing_lost(|| {
        for round in 0..25 {
            let child = spawn(|| {
                loop {
                    let memory = map(40 * PAGE)?;
                    (0..40).for_each(|page| poke(memory.wrapping_add(page * PAGE), 1));
                    let (_reader, writer) = pipe(O_NONBLOCK)?;
                    call!(write(writer, memory.cast(), 10 * PAGE));
                    spawn(|| {
                        loop {
                            pause_ms(1);
                            if call!(getppid()) == 1 {
                                return Ok(());
                            }
                        }
                    })?;
                    pause_ms(1);
                }
            })?;
            pause_ms(2 + round % 5);
            kill_child(child)?;
        }
        pause_ms(100);
        Ok(())
    })
}

fn pipes() -> Outcome {
    nothing_lost(|| {
        let memory = map(16 * PAGE)?;
        for _ in 0..50 {
            let (reader, writer) = pipe(0)?;
            call!(write(writer, memory.cast(), 16 * PAGE));
            call!(read(reader, memory.cast(), 5 * PAGE));
            call!(close(reader));
            call!(close(writer));
        }
        Ok(())
    })
}

fn files() -> Outcome {
    nothing_lost(|| {
        let folder = folder("leaks")?;
        for number in 0..50 {
            let path = format!("{folder}/{number}");
            fs::write(&path, vec![1; 50_000])?;
            fs::rename(&path, format!("{path}-renamed"))?;
        }
        Ok(fs::remove_dir_all(&folder)?)
    })
}

fn threads() -> Outcome {
    nothing_lost(|| {
        for _ in 0..10 {
            let threads: Vec<_> = (0..16).map(|_| thread::spawn(|| ())).collect();
            for thread in threads {
                thread.join()?;
            }
        }
        Ok(())
    })
}

fn page_tables() -> Outcome {
    nothing_lost(|| {
        // A page in each of many 2 MiB regions takes a page table each.
        let regions = 200;
        let size = regions << 21;
        let memory = map(size)?;
        (0..regions).for_each(|region| poke(memory.wrapping_add(region << 21), 1));
        child(|| {
            (0..regions).for_each(|region| poke(memory.wrapping_add(region << 21), 2));
            Ok(())
        })?;
        call!(munmap(memory.cast(), size / 2));
        Ok(())
    })
}

fn taps() -> Outcome {
    nothing_lost(|| {
        for _ in 0..4 {
            let mut sockets = Vec::new();
            let mut refused = 0;
            for _ in 0..400 {
                // SAFETY: the call has no pointers.
                match unsafe { libc::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0x300) } {
                    -1 => refused += 1,
                    // SAFETY: the descriptor is new, and nothing else owns it.
                    fd => sockets.push(unsafe { OwnedFd::from_raw_fd(fd) }),
                }
            }
            equal!((sockets.len(), refused), (256, 144));
        }
        Ok(())
    })
}
