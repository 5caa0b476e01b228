//! Large pages: what is filled 2 MiB at a time, and split by whatever needs single pages. What they save shows in the number of
//! page faults.

use std::fs;

use libc::{MADV_DONTNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, PROT_READ, PROT_WRITE, SIGSEGV, c_int};

use crate::locking::{kib, resident};
use crate::support::{Outcome, PAGE, child, faults, map, peek, poke};
use crate::{SKIP, Test, call, ensure, refused};

pub const TESTS: &[Test] = &[
    ("large: 64 MiB by a fault for each 2 MiB", few_faults),
    ("large: split wherever a part changes", split),
    ("large: parents and children", forks),
    ("large: who refuses them", refusals),
];

const SPAN: usize = 512 * PAGE;
const SWITCH: &str = "/proc/causeway/large";

/// Large pages for who asks while this lives.
struct Advised(String);

impl Advised {
    fn begin() -> Result<Advised, String> {
        let was = fs::read_to_string(SWITCH);
        let was = was.map_err(|_| format!("{SKIP}there is no {SWITCH}"))?;
        fs::write(SWITCH, "advised").map_err(|error| error.to_string())?;
        Ok(Advised(was))
    }
}

impl Drop for Advised {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, &self.0);
    }
}

/// `spans` times 2 MiB at a multiple of that size; the whole mapping is not given back.
fn aligned(spans: usize, advice: c_int) -> Result<*mut u8, String> {
    let whole = map((spans + 1) * SPAN)?;
    let memory = whole.wrapping_add(whole.align_offset(SPAN));
    call!(madvise(memory.cast(), spans * SPAN, advice));
    Ok(memory)
}

fn minor_faults() -> Result<i64, String> {
    // SAFETY: plain numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    call!(getrusage(libc::RUSAGE_SELF, &mut usage));
    Ok(usage.ru_minflt)
}

fn large_kib() -> Result<usize, String> {
    kib("/proc/self/smaps_rollup", "AnonHugePages")
}

/// Every page gets its number, 1 at least.
fn fill(memory: *mut u8, pages: usize) {
    for page in 0..pages {
        poke(memory.wrapping_add(page * PAGE), byte(page));
    }
}

fn byte(page: usize) -> u8 {
    (page % 251) as u8 + 1
}

fn check(memory: *mut u8, pages: impl Iterator<Item = usize>) -> Outcome {
    for page in pages {
        let found = peek(memory.wrapping_add(page * PAGE));
        ensure!(
            found == byte(page),
            "page {page} has {found} instead of {}",
            byte(page)
        );
    }
    Ok(())
}

/// How many of the spans came as large pages: all, unless memory is short or in pieces.
fn expect_large(before: usize, spans: usize) -> Result<usize, String> {
    let large = (large_kib()? - before) / 2048;
    ensure!(
        large > 0 && large <= spans,
        "{large} of {spans} spans are large"
    );
    Ok(large)
}

fn few_faults() -> Outcome {
    let _advised = Advised::begin()?;
    let before = large_kib()?;
    let memory = aligned(32, MADV_HUGEPAGE)?;
    let faults = minor_faults()?;
    fill(memory, 32 * 512);
    let faults = (minor_faults()? - faults) as usize;
    let large = expect_large(before, 32)?;
    // A small page's fault may bring more along; each of the rest costs 512 at most.
    let most = large + (32 - large) * 512 + 8;
    ensure!(
        faults <= most,
        "{faults} faults for {large} large pages of 32"
    );
    let all = kib("/proc/meminfo", "AnonHugePages")?;
    ensure!(all >= large * 2048, "all processes have {all} KiB");
    check(memory, 0..32 * 512)?;
    call!(munmap(memory.cast(), 32 * SPAN));
    ensure!(large_kib()? == before, "they are still there");
    Ok(())
}

fn split() -> Outcome {
    let _advised = Advised::begin()?;
    let before = large_kib()?;
    let memory = aligned(4, MADV_HUGEPAGE)?;
    fill(memory, 4 * 512);
    let large = expect_large(before, 4)?;
    let at = |span: usize, page: usize| memory.wrapping_add(span * SPAN + page * PAGE);
    // One page each of the first three.
    call!(munmap(at(0, 200).cast(), PAGE));
    // Before anything else is mapped there.
    refused!(ENOMEM, msync(at(0, 200).cast(), PAGE, libc::MS_ASYNC));
    call!(mprotect(at(1, 511).cast(), PAGE, PROT_READ));
    call!(madvise(at(2, 0).cast(), PAGE, MADV_DONTNEED));
    faults(SIGSEGV, 2, at(1, 511) as usize, || poke(at(1, 511), 0))?;
    ensure!(peek(at(2, 0)) == 0, "what was given up is still there");
    let untouched = |page: &usize| ![200, 2 * 512].contains(page);
    check(memory, (0..4 * 512).filter(untouched))?;
    ensure!(
        resident(at(1, 0), 1024)?.iter().all(|&it| it),
        "pages have gone"
    );
    if large == 4 {
        // The children that made the faults had the last one split.
        let left = large_kib()? - before;
        ensure!(left <= 2048, "{left} KiB are large after the splits");
    }
    // Whole spans at once, and what lies across two.
    call!(mprotect(at(1, 0).cast(), SPAN, PROT_READ));
    call!(mprotect(at(1, 0).cast(), SPAN, PROT_READ | PROT_WRITE));
    call!(munmap(at(2, 500).cast(), 24 * PAGE));
    fill(at(1, 0), 512);
    check(at(1, 0), 0..512)?;
    call!(munmap(memory.cast(), 4 * SPAN));
    ensure!(large_kib()? == before, "they are still there");
    Ok(())
}

fn forks() -> Outcome {
    let _advised = Advised::begin()?;
    let before = large_kib()?;
    let memory = aligned(2, MADV_HUGEPAGE)?;
    fill(memory, 1024);
    expect_large(before, 2)?;
    child(|| {
        check(memory, 0..1024)?;
        for page in (0..1024).step_by(7) {
            poke(memory.wrapping_add(page * PAGE), 0);
        }
        child(|| check(memory, (0..1024).filter(|page| page % 7 != 0)))?;
        // New ones of its own.
        let own = aligned(1, MADV_HUGEPAGE)?;
        fill(own, 512);
        child(|| check(own, 0..512))?;
        check(own, 0..512)
    })?;
    check(memory, 0..1024)?;
    fill(memory, 1024);
    check(memory, 0..1024)?;
    call!(munmap(memory.cast(), 2 * SPAN));
    Ok(())
}

fn refusals() -> Outcome {
    let _advised = Advised::begin()?;
    let before = large_kib()?;
    let none = |memory: *mut u8, what: &str| {
        poke(memory, 1);
        let large = large_kib()? - before;
        ensure!(large == 0, "{large} KiB are large in {what}");
        call!(munmap(memory.cast(), SPAN));
        Ok(())
    };
    none(aligned(1, MADV_NOHUGEPAGE)?, "memory that refuses it")?;
    none(aligned(1, libc::MADV_NORMAL)?, "memory that did not ask")?;
    child(|| {
        call!(prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0));
        none(aligned(1, MADV_HUGEPAGE)?, "a process that refuses it")?;
        child(|| none(aligned(1, MADV_HUGEPAGE)?, "its child"))?;
        call!(prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0));
        poke(aligned(1, MADV_HUGEPAGE)?, 1);
        expect_large(before, 1).map(drop)
    })
}
