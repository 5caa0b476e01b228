//! Locked memory: `mlock` and its relatives, their limits, `/proc`.

use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("locking: pages come in and are counted", counted),
    ("locking: on fault", on_fault),
    ("locking: all that is and all that comes", all),
    ("locking: children have nothing locked", children),
    ("locking: limits", limits),
    ("locking: refusals", refusals),
];

const READ_WRITE: i32 = PROT_READ | PROT_WRITE;

/// Returns a number of KiB from a file in `/proc`.
pub fn kib(file: &str, name: &str) -> Result<usize> {
    Ok(field(file, name)? as usize)
}

fn locked_kib() -> Result<usize> {
    kib("/proc/self/status", "VmLck")
}

/// Returns which of the pages are resident.
pub fn resident(memory: *mut u8, pages: usize) -> Result<Vec<bool>> {
    let mut bytes = vec![0xffu8; pages];
    call!(mincore(memory.cast(), pages * PAGE, bytes.as_mut_ptr()));
    Ok(bytes.iter().map(|byte| byte & 1 != 0).collect())
}

fn counted() -> Outcome {
    let memory = map(16 * PAGE)?;
    let before = locked_kib()?;
    call!(mlock(memory.wrapping_add(4 * PAGE + 1).cast(), 3 * PAGE));
    equal!(locked_kib()? - before, 16);
    let there = resident(memory, 16)?;
    ensure!(there[4..8].iter().all(|&it| it), there);
    let mapped = kib("/proc/self/smaps_rollup", "Locked")?;
    ensure!(mapped >= 16, "smaps says that {mapped} KiB are locked");
    refused!(EINVAL, madvise(memory.cast(), 16 * PAGE, MADV_DONTNEED));
    // Unmapped memory is not locked any more.
    call!(munmap(memory.wrapping_add(4 * PAGE).cast(), PAGE));
    ensure!(locked_kib()? - before == 12, "what was unmapped counts");
    call!(munlock(memory.wrapping_add(5 * PAGE).cast(), 3 * PAGE));
    ensure!(locked_kib()? == before, "what was unlocked counts");
    call!(munmap(memory.cast(), 16 * PAGE));
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED;
    let memory = map_with(8 * PAGE, READ_WRITE, flags, -1)?;
    ensure!(resident(memory, 8)?.iter().all(|&it| it));
    ensure!(locked_kib()? - before == 32, "MAP_LOCKED is not counted");
    const MADV_DONTNEED_LOCKED: i32 = 24;
    poke(memory, 7);
    call!(madvise(memory.cast(), PAGE, MADV_DONTNEED_LOCKED));
    ensure!(peek(memory) == 0, "MADV_DONTNEED_LOCKED left the page");
    let bigger = call!(mremap(memory.cast(), 8 * PAGE, 12 * PAGE, MREMAP_MAYMOVE));
    ensure!(resident(bigger.cast(), 12)?.iter().all(|&it| it));
    equal!(locked_kib()? - before, 48);
    call!(munmap(bigger, 12 * PAGE));
    ensure!(locked_kib()? == before, "what was unmapped counts");
    Ok(())
}

fn on_fault() -> Outcome {
    const MLOCK_ONFAULT: i32 = 1;
    let memory = map(64 * PAGE)?;
    let before = locked_kib()?;
    // SAFETY: a system call on memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_mlock2, memory, 64 * PAGE, MLOCK_ONFAULT) };
    ensure!(result == 0, "mlock2 failed");
    ensure!(locked_kib()? - before == 256, "all of it counts at once");
    poke(memory.wrapping_add(9 * PAGE), 1);
    let there = resident(memory, 64)?;
    ensure!(there[9] && !there[40], "{there:?}");
    // SAFETY: as above.
    let refused = unsafe { libc::syscall(libc::SYS_mlock2, memory, PAGE, 2) };
    ensure!(refused == -1, "mlock2 knows a flag that there is not");
    call!(munmap(memory.cast(), 64 * PAGE));
    Ok(())
}

fn all() -> Outcome {
    child(|| {
        let before = map(4 * PAGE)?;
        call!(mlockall(MCL_CURRENT | MCL_FUTURE));
        ensure!(resident(before, 4)?.iter().all(|&it| it));
        let (size, locked) = (kib("/proc/self/status", "VmSize")?, locked_kib()?);
        ensure!(size - locked <= 64, "{locked} of {size} KiB are locked");
        let after = map(4 * PAGE)?;
        ensure!(resident(after, 4)?.iter().all(|&it| it));
        // SAFETY: the break is moved up, and nothing uses the memory behind it.
        let heap = unsafe { libc::sbrk(4 * PAGE as isize) } as usize;
        let first = heap.next_multiple_of(PAGE);
        ensure!(resident(first as *mut u8, 3)?.iter().all(|&it| it));
        call!(munlockall());
        ensure!(locked_kib()? == 0, "{} KiB are still locked", locked_kib()?);
        let later = map(64 * PAGE)?;
        ensure!(!resident(later, 64)?[40], "what comes is still locked");
        call!(mlockall(MCL_FUTURE));
        ensure!(locked_kib()? == 0, "what was there is locked");
        map(4 * PAGE)?;
        ensure!(locked_kib()? == 16, "what came is not");
        Ok(())
    })
}

fn children() -> Outcome {
    child(|| {
        let memory = map(4 * PAGE)?;
        call!(mlockall(MCL_CURRENT | MCL_FUTURE));
        poke(memory, 1);
        child(|| {
            ensure!(locked_kib()? == 0, "a child inherited locks");
            map(4 * PAGE)?;
            ensure!(locked_kib()? == 0, "a child inherited that all is locked");
            poke(memory, 2);
            Ok(())
        })?;
        ensure!(peek(memory) == 1, "the child wrote to the parent's page");
        ensure!(locked_kib()? > 16, "the parent lost its locks");
        Ok(())
    })
}

fn limits() -> Outcome {
    // As a user whose locked memory is limited.
    let limited = |bytes: usize, body: fn(*mut u8) -> Outcome| {
        let end = wait(spawn(move || {
            let memory = map(64 * PAGE)?;
            let limit = limit_of(bytes as u64);
            call!(setrlimit(RLIMIT_MEMLOCK, &limit));
            call!(setgid(1000));
            call!(setuid(1000));
            body(memory)
        })?)?;
        equal!(end, End::Exit(0), bytes);
        Ok(())
    };
    limited(0, |memory| {
        refused!(EPERM, mlock(memory.cast(), PAGE));
        refused!(EPERM, mlockall(MCL_CURRENT));
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED;
        refused!(EPERM, mmap(null_mut(), PAGE, READ_WRITE, flags, -1, 0));
        call!(munlock(memory.cast(), PAGE));
        Ok(())
    })?;
    limited(16 * PAGE, |memory| {
        refused!(ENOMEM, mlock(memory.cast(), 17 * PAGE));
        refused!(ENOMEM, mlockall(MCL_CURRENT));
        call!(mlock(memory.cast(), 12 * PAGE));
        // Memory locked already does not count twice.
        call!(mlock(memory.wrapping_add(2 * PAGE).cast(), 14 * PAGE));
        refused!(ENOMEM, mlock(memory.wrapping_add(20 * PAGE).cast(), PAGE));
        call!(munlock(memory.cast(), 4 * PAGE));
        call!(mlockall(MCL_FUTURE));
        let flags = MAP_PRIVATE | MAP_ANONYMOUS;
        refused!(EAGAIN, mmap(null_mut(), 5 * PAGE, READ_WRITE, flags, -1, 0));
        call!(mmap(null_mut(), 3 * PAGE, READ_WRITE, flags, -1, 0));
        // SAFETY: the break is to stay where it is.
        let heap = unsafe { libc::sbrk(64 * PAGE as isize) };
        ensure!(heap as isize == -1, "the heap grew beyond the limit");
        Ok(())
    })
}

fn refusals() -> Outcome {
    refused!(EINVAL, mlockall(0));
    refused!(EINVAL, mlockall(4));
    refused!(EINVAL, mlockall(64));
    let memory = map(4 * PAGE)?;
    call!(munmap(memory.wrapping_add(PAGE).cast(), PAGE));
    refused!(ENOMEM, mlock(memory.cast(), 4 * PAGE));
    refused!(ENOMEM, munlock(memory.cast(), 4 * PAGE));
    call!(mprotect(memory.cast(), PAGE, PROT_NONE));
    refused!(ENOMEM, mlock(memory.cast(), PAGE));
    call!(munlock(memory.cast(), PAGE));
    refused!(EINVAL, mlock(memory.cast(), usize::MAX - PAGE));
    call!(mlock(memory.wrapping_add(2 * PAGE).cast(), 0));
    Ok(())
}
