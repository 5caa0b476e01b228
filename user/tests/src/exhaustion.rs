//! Out of memory: errors or a kill, and all memory is freed afterwards.

use crate::proc::only_causeway;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("exhaustion: a hog is killed, the others live", hog),
    ("exhaustion: several hogs", hogs),
    ("exhaustion: a full file system", full),
    ("exhaustion: endless forks", fork_bomb),
    ("exhaustion: pipes take no endless memory", pipe_bomb),
    ("exhaustion: endless maps", map_bomb),
];

/// Runs `storm` twice: nearly as much memory must be free after the second run as after the first,
/// which grows the kernel's own caches to the size that such a storm needs.
fn comes_back(storm: fn() -> Outcome) -> Outcome {
    only_causeway()?;
    storm()?;
    let mut before = 0;
    // Memory of dead processes is freed asynchronously.
    loop {
        let free = field("/proc/meminfo", "MemFree")?;
        if free <= before {
            break;
        }
        before = free;
        pause_ms(100);
    }
    storm()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let after = field("/proc/meminfo", "MemFree")?;
        // Frames in the kernel's own caches do not count as free.
        if after + 2048 >= before {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, before, after);
        pause_ms(50);
    }
}

fn devour() -> Outcome {
    loop {
        let memory = map(256 * PAGE)?;
        (0..256).for_each(|page| poke(memory.wrapping_add(page * PAGE), 1));
    }
}

fn hog() -> Outcome {
    comes_back(|| {
        let kills = counter("out_of_memory_kills")?;
        let other = spawn(|| {
            loop {
                pause_ms(10);
                poke(map(PAGE)?, 1);
            }
        })?;
        let end = wait(spawn(devour)?)?;
        equal!(end, End::Signal(SIGKILL));
        equal!(counter("out_of_memory_kills")?, kills + 1);
        let mut status = 0;
        let found = call!(waitpid(other, &mut status, WNOHANG));
        equal!(found, 0, End::of(status));
        kill_child(other)?;
        Ok(())
    })
}

fn hogs() -> Outcome {
    comes_back(|| {
        let hogs: Vec<_> = (0..4).map(|_| spawn(devour)).collect::<Result<_, _>>()?;
        for hog in hogs {
            let end = wait(hog)?;
            equal!(end, End::Signal(SIGKILL));
        }
        Ok(())
    })
}

fn full() -> Outcome {
    comes_back(|| {
        let path = c("/tmp/full");
        let open = call!(open(path.as_ptr(), O_RDWR | O_CREAT, 0o600));
        let bytes = vec![1u8; 1 << 20];
        let mut total = 0usize;
        let error = loop {
            // SAFETY: writes from a live buffer.
            let count = unsafe { libc::write(open, bytes.as_ptr().cast(), bytes.len()) };
            if count == -1 {
                break errno();
            }
            total += count as usize;
            if total > 8 << 30 {
                break 0;
            }
        };
        call!(close(open));
        call!(unlink(path.as_ptr()));
        ensure!([ENOSPC, ENOMEM].contains(&error), error, total);
        Ok(())
    })
}

fn fork_bomb() -> Outcome {
    comes_back(|| {
        let mut children = Vec::new();
        let failed = loop {
            // SAFETY: the child only waits.
            match unsafe { libc::fork() } {
                -1 => break errno(),
                0 => loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                },
                child => children.push(child),
            }
            if children.len() == 3000 {
                break 0;
            }
        };
        for &child in &children {
            call!(kill(child, SIGKILL));
        }
        for &child in &children {
            wait(child)?;
        }
        ensure!([0, EAGAIN, ENOMEM].contains(&failed), failed);
        ensure!(children.len() > 50, "only {} children", children.len());
        Ok(())
    })
}

fn pipe_bomb() -> Outcome {
    comes_back(|| {
        let child = spawn(|| {
            let bytes = vec![1u8; 65536];
            loop {
                let (_reader, writer) = match pipe(O_NONBLOCK) {
                    Ok(ends) => ends,
                    Err(_) => return Ok(()),
                };
                // SAFETY: writes from a live buffer; failing is part of the test.
                unsafe { libc::write(writer, bytes.as_ptr().cast(), bytes.len()) };
            }
        })?;
        let end = wait(child)?;
        let fine = end == End::Exit(0) || end == End::Signal(SIGKILL);
        ensure!(fine, "ended with {end:?}");
        Ok(())
    })
}

fn map_bomb() -> Outcome {
    comes_back(|| {
        let child = spawn(|| {
            for round in 0..2_000_000u64 {
                // Alternating protections: no two neighbours can be merged.
                let protection = if round % 2 == 0 { PROT_READ } else { PROT_NONE };
                let flags = MAP_PRIVATE | MAP_ANONYMOUS;
                // SAFETY: a new map, never used.
                let map = unsafe { libc::mmap(null_mut(), PAGE, protection, flags, -1, 0) };
                if map == MAP_FAILED {
                    return Ok(());
                }
            }
            Ok(())
        })?;
        let end = wait(child)?;
        let fine = end == End::Exit(0) || end == End::Signal(SIGKILL);
        ensure!(fine, "ended with {end:?}");
        Ok(())
    })
}
