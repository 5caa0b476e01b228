//! Large pages of shared memory, and large pages that go to swap.

use crate::large::{SPAN, Switched, aligned, byte, check, fill, large_kib};
use crate::locking::kib;
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("large: shared by processes", shared),
    ("large: a file in memory that is cut", cut),
    ("swap: large pages leave and come back", paged),
];

fn shared_kib() -> Result<usize> {
    kib("/proc/self/smaps_rollup", "ShmemPmdMapped")
}

/// Maps `spans` times 2 MiB of a file, or of anonymous shared memory, and asks for large pages.
fn shared_map(spans: usize, descriptor: c_int) -> Result<*mut u8> {
    let flags = match descriptor {
        -1 => MAP_SHARED | MAP_ANONYMOUS,
        _ => MAP_SHARED,
    };
    let memory = map_with(spans * SPAN, PROT_READ | PROT_WRITE, flags, descriptor)?;
    let is_aligned = memory as usize % SPAN == 0;
    ensure!(is_aligned, "{memory:?} is no place for large pages");
    call!(madvise(memory.cast(), spans * SPAN, MADV_HUGEPAGE));
    Ok(memory)
}

fn shared() -> Outcome {
    let _switched = Switched::to("large", "advised")?;
    let before = shared_kib()?;
    let memfd = call!(memfd_create(c"large".as_ptr(), 0));
    call!(ftruncate(memfd, 3 * SPAN as i64));
    for descriptor in [-1, memfd] {
        let memory = shared_map(3, descriptor)?;
        fill(memory, 3 * 512);
        let large = (shared_kib()? - before) / 2048;
        ensure!((1..=3).contains(&large), "{large} of 3 spans are large");
        ensure!(kib("/proc/meminfo", "ShmemPmdMapped")? >= large * 2048);
        ensure!(large_kib()? == 0 || descriptor != -1);
        child(|| {
            check(memory, 0..3 * 512)?;
            for page in (0..3 * 512).step_by(5) {
                poke(memory.wrapping_add(page * PAGE), 255);
            }
            Ok(())
        })?;
        for page in 0..3 * 512 {
            let wanted = if page % 5 == 0 { 255 } else { byte(page) };
            let found = peek(memory.wrapping_add(page * PAGE));
            ensure!(found == wanted, "page {page} has {found}");
        }
        if descriptor == memfd {
            // Another mapping of it has large pages of its own.
            let again = shared_map(3, memfd)?;
            poke(again.wrapping_add(7 * PAGE), 77);
            equal!(peek(memory.wrapping_add(7 * PAGE)), 77);
            call!(munmap(again.cast(), 3 * SPAN));
        }
        call!(munmap(memory.cast(), 3 * SPAN));
    }
    call!(close(memfd));
    // A System V segment, attached by each process.
    let id = call!(shmget(IPC_PRIVATE, 2 * SPAN, 0o600 | IPC_CREAT));
    let attach = || -> Result<*mut u8> {
        let memory = call!(shmat(id, null(), 0));
        call!(madvise(memory, 2 * SPAN, MADV_HUGEPAGE));
        Ok(memory.cast())
    };
    let memory = attach()?;
    fill(memory, 1024);
    let large = (shared_kib()? - before) / 2048;
    ensure!((1..=2).contains(&large), "{large} of 2 spans of a segment");
    child(|| {
        let own = attach()?;
        check(own, 0..1024)?;
        poke(own, 99);
        Ok(())
    })?;
    ensure!(peek(memory) == 99, "the child has written elsewhere");
    call!(shmctl(id, IPC_RMID, null_mut()));
    call!(shmdt(memory.cast()));
    ensure!(shared_kib()? == before, "they are still there");
    Ok(())
}

/// Truncates in the middle, grows, punches a hole, reads and writes by calls.
fn cut() -> Outcome {
    let _switched = Switched::to("large", "advised")?;
    let before = shared_kib()?;
    let memfd = call!(memfd_create(c"cut".as_ptr(), 0));
    call!(ftruncate(memfd, 2 * SPAN as i64 + 5));
    let memory = shared_map(3, memfd)?;
    fill(memory, 1024);
    let large = (shared_kib()? - before) / 2048;
    ensure!((1..=2).contains(&large), "{large} of 2 spans are large");
    let mut bytes = [0u8; 3];
    let at = |page: usize| (page * PAGE) as i64;
    call!(pread(memfd, bytes.as_mut_ptr().cast(), 3, at(600)));
    ensure!(bytes == [byte(600), 0, 0], "{bytes:?}");
    call!(pwrite(memfd, [200u8].as_ptr().cast(), 1, at(600)));
    equal!(peek(memory.wrapping_add(600 * PAGE)), 200);
    poke(memory.wrapping_add(600 * PAGE), byte(600));
    let punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    call!(fallocate(memfd, punch, at(700), at(10)));
    ensure!(
        (700..710).all(|page| peek(memory.wrapping_add(page * PAGE)) == 0),
        "the hole is not empty"
    );
    check(memory, (0..700).chain(710..1024))?;
    call!(ftruncate(memfd, at(200) + 1));
    faults(SIGBUS, 2, memory as usize + 201 * PAGE, || {
        poke(memory.wrapping_add(201 * PAGE), 1);
    })?;
    check(memory, 0..201)?;
    call!(ftruncate(memfd, 2 * SPAN as i64));
    ensure!(
        (201..1024).all(|page| peek(memory.wrapping_add(page * PAGE)) == 0),
        "what was cut off came back"
    );
    fill(memory, 1024);
    check(memory, 0..1024)?;
    call!(munmap(memory.cast(), 3 * SPAN));
    call!(close(memfd));
    ensure!(shared_kib()? == before, "they are still there");
    Ok(())
}

/// Private and shared large pages go to swap page by page and come back unchanged.
fn paged() -> Outcome {
    let swaps = fs::read_to_string("/proc/swaps")?;
    if swaps.lines().count() < 2 {
        return Err(skip("there is no swap space"));
    }
    let _switched = Switched::to("large", "advised")?;
    for memory in [aligned(2, MADV_HUGEPAGE)?, shared_map(2, -1)?] {
        let out = field("/proc/vmstat", "pswpout")?;
        fill(memory, 1024);
        ensure!(large_kib()? + shared_kib()? > 0, "none is large");
        for _ in 0..3 {
            call!(madvise(memory.cast(), 2 * SPAN, MADV_PAGEOUT));
            pause_ms(30);
        }
        let gone = field("/proc/vmstat", "pswpout")? - out;
        ensure!(gone >= 512, "{gone} pages of 1024 were sent away");
        ensure!(large_kib()? + shared_kib()? == 0, "some are large still");
        child(|| check(memory, 0..1024))?;
        check(memory, (0..1024).rev())?;
        call!(munmap(memory.cast(), 2 * SPAN));
    }
    Ok(())
}
