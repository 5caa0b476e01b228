//! Memory calls beside mapping: move, grow, lock, discard, split.

use std::os::fd::AsRawFd;
use std::ptr;

use crate::mapping::{self, Mapping, PAGE};
use crate::{Bench, Experiment, Failure, call};

/// Calls about memory.
pub const EXPERIMENT: Experiment = Experiment {
    name: "memory-calls",
    title: "Calls about memory: move, grow, lock, give up, split",
    help: "\
Rows, and what one operation is:
  memory-calls/touch-1MiB        zero-fill memory is mapped, each page written, and unmapped, in
                                 pages of 4 KiB
  memory-calls/touch-1MiB-large  the same where the kernel may use large pages (aligned 2 MiB of
                                 which 1 is touched)
  memory-calls/touch-64MiB       64 MiB are mapped, each page written in order, and unmapped; the
                                 kernel may use large pages
  memory-calls/touch-64MiB-shared  the same, by MAP_SHARED
  memory-calls/populate-1MiB     mapped with MAP_POPULATE, and unmapped
  memory-calls/dontneed-1MiB     each page of a mapping written, then given up by MADV_DONTNEED
  memory-calls/move-4KiB         mremap moves a written page to another place, where it is read
  memory-calls/move-1MiB         the same with 1 MiB
  memory-calls/brk-64KiB         the heap grows, its new pages are written, and it shrinks
  memory-calls/read-fresh-1MiB   read of a file in memory into memory just mapped, which is then
                                 unmapped
  memory-calls/mlock-1MiB        memory is mapped, locked by mlock, and unmapped
  memory-calls/split-64-pages    each second page of a mapping is made read-only and writable again:
                                 entries split
  memory-calls/sparse-2MiB       64 pages, 2 MiB apart, are written, and all is unmapped: a page
                                 table for each
  memory-calls/sparse-1GiB       16 pages, 1 GiB apart: two page tables for each",
    run,
};

const MIB: usize = 1 << 20;

fn run(bench: &mut Bench) -> Result<(), Failure> {
    touch(bench)?;
    moving(bench)?;
    heap(bench)?;
    bench
        .row("memory-calls/read-fresh-1MiB")
        .batch(5)
        .run(|meter| {
            let file = mapping::file(MIB)?;
            meter.measure(|n| {
                for _ in 0..n {
                    let memory = Mapping::zero_fill(MIB)?.small();
                    let got = call!(pread(file.as_raw_fd(), memory.at().cast(), MIB, 0))?;
                    if got as usize != MIB {
                        return Err(format!("read gave {got} bytes of 1 MiB").into());
                    }
                }
                Ok(())
            })
        })?;
    bench.row("memory-calls/mlock-1MiB").batch(5).measure(|n| {
        for _ in 0..n {
            let memory = Mapping::zero_fill(MIB)?.small();
            call!(mlock(memory.at().cast(), MIB))?;
        }
        Ok(())
    })?;
    bench
        .row("memory-calls/split-64-pages")
        .batch(10)
        .run(|meter| {
            let memory = Mapping::zero_fill(64 * PAGE)?.small();
            memory.write_pages();
            meter.measure(|n| {
                for _ in 0..n {
                    for protection in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
                        for page in (0..64).step_by(2) {
                            // SAFETY: inside the mapping.
                            let at = unsafe { memory.at().add(page * PAGE) };
                            call!(mprotect(at.cast(), PAGE, protection))?;
                        }
                    }
                }
                Ok(())
            })
        })?;
    sparse(bench, "sparse-2MiB", 64, 2 << 20)?;
    sparse(bench, "sparse-1GiB", 16, 1 << 30)
}

fn touch(bench: &mut Bench) -> Result<(), Failure> {
    bench.row("memory-calls/touch-1MiB").batch(5).measure(|n| {
        for _ in 0..n {
            Mapping::zero_fill(MIB)?.small().write_pages();
        }
        Ok(())
    })?;
    bench
        .row("memory-calls/touch-1MiB-large")
        .batch(5)
        .measure(|n| {
            for _ in 0..n {
                let memory = Mapping::zero_fill(4 * MIB)?;
                let from = memory.at().align_offset(2 * MIB);
                memory.write_part(from, from + MIB);
            }
            Ok(())
        })?;
    for (name, kind) in [
        ("touch-64MiB", libc::MAP_PRIVATE),
        ("touch-64MiB-shared", libc::MAP_SHARED),
    ] {
        let row = bench.row(format!("memory-calls/{name}"));
        row.batch(1).measure(|n| {
            let flags = kind | libc::MAP_ANONYMOUS;
            for _ in 0..n {
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                Mapping::new(None, 64 * MIB, rights, flags)?.write_pages();
            }
            Ok(())
        })?;
    }
    bench
        .row("memory-calls/populate-1MiB")
        .batch(5)
        .measure(|n| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
            for _ in 0..n {
                Mapping::new(None, MIB, libc::PROT_READ | libc::PROT_WRITE, flags)?;
            }
            Ok(())
        })?;
    bench
        .row("memory-calls/dontneed-1MiB")
        .batch(5)
        .run(|meter| {
            let memory = Mapping::zero_fill(MIB)?.small();
            meter.measure(|n| {
                for _ in 0..n {
                    memory.write_pages();
                    memory.advise(libc::MADV_DONTNEED)?;
                }
                Ok(())
            })
        })
}

fn moving(bench: &mut Bench) -> Result<(), Failure> {
    for (name, len, batch) in [("move-4KiB", PAGE, 100), ("move-1MiB", MIB, 10)] {
        bench
            .row(format!("memory-calls/{name}"))
            .batch(batch)
            .run(|meter| {
                // Two addresses to move between, where nothing else is mapped meanwhile.
                let places = [0x10_0000_0000, 0x10_4000_0000]
                    .map(ptr::without_provenance_mut::<libc::c_void>);
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                call!(mmap(places[0], len, rights, kind, -1, 0))?;
                call!(madvise(places[0], len, libc::MADV_NOHUGEPAGE))
                    .or_else(|_| Ok::<_, Failure>(0))?;
                for offset in (0..len).step_by(PAGE) {
                    // SAFETY: mapped above.
                    unsafe { places[0].cast::<u8>().add(offset).write_volatile(1) };
                }
                let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                let mut at = 0;
                meter.measure(|n| {
                    for _ in 0..n {
                        call!(mremap(places[at], len, len, flags, places[1 - at]))?;
                        at = 1 - at;
                        for offset in (0..len).step_by(PAGE) {
                            // SAFETY: it was moved here.
                            unsafe { places[at].cast::<u8>().add(offset).read_volatile() };
                        }
                    }
                    Ok(())
                })
            })?;
    }
    Ok(())
}

fn heap(bench: &mut Bench) -> Result<(), Failure> {
    const GROWS: usize = 64 << 10;
    const LARGE_PAGE: usize = 2 * MIB;
    // Bypasses the C library, whose own heap ends where the operation starts and ends.
    let set_end = |end: usize| call!(syscall(libc::SYS_brk, end)).map(|end| end as usize);
    // Behind a page table's first page, which stays: where the program's own data ends decides
    // neither how many pages an operation writes nor whether it needs a table.
    let begin = set_end(0)?.next_multiple_of(LARGE_PAGE) + PAGE;
    if set_end(begin)? != begin {
        return Err("the heap does not grow".into());
    }
    // SAFETY: the heap has just grown over it.
    unsafe { ptr::without_provenance_mut::<u8>(begin - PAGE).write_volatile(1) };
    bench.row("memory-calls/brk-64KiB").batch(20).measure(|n| {
        for _ in 0..n {
            let end = set_end(0)?;
            if set_end(end + GROWS)? != end + GROWS {
                return Err("the heap does not grow".into());
            }
            for at in (end.next_multiple_of(PAGE)..end + GROWS).step_by(PAGE) {
                // SAFETY: the heap has just grown over it.
                unsafe { ptr::without_provenance_mut::<u8>(at).write_volatile(1) };
            }
            set_end(end)?;
        }
        Ok(())
    })
}

fn sparse(bench: &mut Bench, name: &str, pages: usize, apart: usize) -> Result<(), Failure> {
    bench
        .row(format!("memory-calls/{name}"))
        .batch(5)
        .measure(|n| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            for _ in 0..n {
                let rights = libc::PROT_READ | libc::PROT_WRITE;
                let memory = Mapping::new(None, pages * apart, rights, flags)?.small();
                for page in 0..pages {
                    // SAFETY: inside the mapping.
                    unsafe { ptr::write_volatile(memory.at().add(page * apart), 1) };
                }
            }
            Ok(())
        })
}
