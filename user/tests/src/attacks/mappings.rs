//! Mappings without end: what one program builds, others must not wait for.

use crate::{beside, while_attacking};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("attacks: forks of thousands of page tables", sparse_forks),
    ("attacks: as many mappings as there may be", many_mappings),
    ("attacks: one page mapped everywhere", one_page),
    ("attacks: a file that is cut below its mappings", cut_files),
    ("attacks: threads that unmap what others touch", unmapped),
    ("attacks: memory that is locked and released", locked),
];

/// The span of one page table.
const TABLE: usize = 2 << 20;

/// Makes a file in memory of this size.
fn memory_file(size: usize) -> Result<c_int> {
    let file = call!(memfd_create(c"attack".as_ptr(), 0));
    call!(ftruncate(file, size as off_t));
    Ok(file)
}

/// Maps the file's first bytes for reading, at any place or at a given one.
fn map_file(file: c_int, at: usize, size: usize, flags: c_int) -> Result<*mut c_void> {
    // SAFETY: a new mapping, or one in a range of this program's own.
    let found = unsafe {
        mmap(
            ptr::without_provenance_mut(at),
            size,
            PROT_READ,
            MAP_SHARED | flags,
            file,
            0,
        )
    };
    ensure!(found != MAP_FAILED, errno());
    Ok(found)
}

/// Each table maps a quarter of its span, which is enough to be shared by a fork.
fn sparse_forks() -> Outcome {
    const TABLES: usize = 4000;
    beside(|| {
        let file = memory_file(TABLE / 2)?;
        let area = map_with(
            TABLES * TABLE,
            PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
            -1,
        )?;
        let first = (area as usize).next_multiple_of(TABLE);
        for table in 0..TABLES - 1 {
            let flags = MAP_FIXED | MAP_POPULATE;
            map_file(file, first + table * TABLE, TABLE / 2, flags)?;
        }
        while_attacking(|| child(|| Ok(())))
    })
}

/// Every other page has other rights; then all of them change at once.
fn many_mappings() -> Outcome {
    beside(|| {
        let size = 65_000 * PAGE;
        let area = map_with(size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1)?;
        let mut made = 0;
        while made < size {
            // SAFETY: pages of this program's own mapping.
            if unsafe { mprotect(area.wrapping_add(made).cast(), PAGE, PROT_READ) } == -1 {
                equal!(errno(), ENOMEM);
                break;
            }
            made += 2 * PAGE;
        }
        ensure!(made > 1000 * PAGE, made);
        while_attacking(|| {
            for rights in [PROT_READ | PROT_WRITE, PROT_NONE] {
                call!(mprotect(area.cast(), made, rights));
            }
            for page in (0..made.min(20_000 * PAGE)).step_by(2 * PAGE) {
                call!(mprotect(area.wrapping_add(page).cast(), PAGE, PROT_READ));
            }
            child(|| Ok(()))
        })
    })
}

/// One frame has a hundred thousand mappings, all of which a write to its file's end takes away.
fn one_page() -> Outcome {
    const PLACES: usize = 12_000;
    beside(|| {
        let file = memory_file(PAGE)?;
        let mapper = || -> Outcome {
            for _ in 0..PLACES {
                map_file(file, 0, PAGE, MAP_POPULATE)?;
            }
            Ok(())
        };
        mapper()?;
        let mut children = Vec::new();
        for _ in 0..4 {
            children.push(spawn_sleeper()?);
        }
        while_attacking(|| {
            call!(ftruncate(file, 0));
            call!(ftruncate(file, PAGE as off_t));
            child(mapper)
        })?;
        for pid in children {
            kill_child(pid)?;
        }
        Ok(())
    })
}

/// A file grows and is cut while others read its mapping; SIGBUS is theirs.
fn cut_files() -> Outcome {
    beside(|| {
        let size = 16 << 20;
        let file = memory_file(size)?;
        let mapped = map_file(file, 0, size, 0)? as usize;
        let mut readers = Vec::new();
        for reader in 0..4 {
            readers.push(spawn(move || {
                loop {
                    let _ = fault_of(|| {
                        for page in (reader * PAGE..size).step_by(PAGE) {
                            peek((mapped + page) as *const u8);
                        }
                    });
                }
            })?);
        }
        while_attacking(|| {
            call!(ftruncate(file, 0));
            call!(ftruncate(file, size as off_t));
            Ok(())
        })?;
        for pid in readers {
            kill_child(pid)?;
        }
        Ok(())
    })
}

/// Threads map, touch, give back and unmap the same memory.
fn unmapped() -> Outcome {
    beside(|| {
        let size = 4 << 20;
        let area = map(size)? as usize;
        let mut workers = Vec::new();
        for worker in 0..6usize {
            workers.push(thread::spawn(move || {
                let mut numbers = Numbers::new(worker as u64);
                while_attacking(|| {
                    let at = area + numbers.below((size / PAGE) as u64) as usize * PAGE;
                    let len = (1 + numbers.below(64) as usize) * PAGE;
                    let len = len.min(area + size - at);
                    let place = at as *mut c_void;
                    match worker % 3 {
                        // SAFETY: the memory is nobody's but these threads'.
                        0 => unsafe { madvise(place, len, MADV_DONTNEED) },
                        // SAFETY: the same.
                        1 => unsafe {
                            let (rights, flags) = (READ_WRITE, MAP_FIXED);
                            let flags = flags | MAP_PRIVATE | MAP_ANONYMOUS;
                            mmap(place, len, rights, flags, -1, 0);
                            0
                        },
                        _ => {
                            (at..at + len)
                                .step_by(PAGE)
                                .for_each(|at| poke(at as *mut u8, 1));
                            0
                        }
                    };
                    Ok(())
                })
            }));
        }
        for worker in workers {
            worker.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}

/// What may be locked is limited, and locking it again and again stops only the program itself.
fn locked() -> Outcome {
    beside(|| {
        let size = 64 << 20;
        let area = map(size)?;
        // SAFETY: the memory is this program's own.
        let refused = unsafe { mlock(area.cast(), size) };
        ensure!(refused == -1, "all memory may be locked");
        while_attacking(|| {
            // SAFETY: the same; what is refused is refused.
            unsafe {
                mlock(area.cast(), 32 << 10);
                mlock2(area.cast(), 4 << 20, MLOCK_ONFAULT);
                mlockall(MCL_FUTURE);
                munlockall();
                munlock(area.cast(), size);
            }
            Ok(())
        })
    })
}
