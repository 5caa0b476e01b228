//! Large pages: regions filled 2 MiB at a time and split where single pages are needed. The number
//! of page faults shows the savings.

use crate::locking::{kib, resident};
use support::prelude::*;

pub const TESTS: &[Test] = &[
    ("large: 64 MiB by a fault for each 2 MiB", few_faults),
    ("large: split wherever a part changes", split),
    ("large: parents and children", forks),
    ("large: who refuses them", refusals),
    ("large: who writes in order gets them unasked", in_order),
    ("large: across their borders", borders),
    ("large: what the kernel says of them", said),
];

pub const SPAN: usize = 512 * PAGE;

/// Sets a switch to another word while this lives.
pub struct Switched {
    file: String,
    was: String,
}

impl Switched {
    pub fn to(name: &str, word: &str) -> Result<Switched> {
        let file = format!("/proc/causeway/{name}");
        let was = fs::read_to_string(&file);
        let was = was.map_err(|_| skip(format!("there is no {file}")))?;
        fs::write(&file, word)?;
        Ok(Switched { file, was })
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        let _ = fs::write(&self.file, &self.was);
    }
}

/// Maps `spans` times 2 MiB at a multiple of that size; the rest of the mapping is leaked.
pub fn aligned(spans: usize, advice: c_int) -> Result<*mut u8> {
    let whole = map((spans + 1) * SPAN)?;
    let memory = whole.wrapping_add(whole.align_offset(SPAN));
    call!(madvise(memory.cast(), spans * SPAN, advice));
    Ok(memory)
}

fn minor_faults() -> Result<i64> {
    // SAFETY: plain numbers.
    let mut usage: rusage = unsafe { zeroed() };
    call!(getrusage(RUSAGE_SELF, &mut usage));
    Ok(usage.ru_minflt)
}

pub fn large_kib() -> Result<usize> {
    kib("/proc/self/smaps_rollup", "AnonHugePages")
}

/// Writes each page's number, at least 1, into it.
pub fn fill(memory: *mut u8, pages: usize) {
    for page in 0..pages {
        poke(memory.wrapping_add(page * PAGE), byte(page));
    }
}

pub fn byte(page: usize) -> u8 {
    (page % 251) as u8 + 1
}

pub fn check(memory: *mut u8, pages: impl Iterator<Item = usize>) -> Outcome {
    for page in pages {
        let found = peek(memory.wrapping_add(page * PAGE));
        equal!(found, byte(page), page);
    }
    Ok(())
}

/// Returns how many of the spans are large pages: all, unless memory is short or fragmented.
fn expect_large(before: usize, spans: usize) -> Result<usize> {
    let large = (large_kib()? - before) / 2048;
    ensure!(large > 0 && large <= spans, large, spans);
    Ok(large)
}

fn few_faults() -> Outcome {
    let _switched = Switched::to("large", "advised")?;
    let before = large_kib()?;
    let memory = aligned(32, MADV_HUGEPAGE)?;
    let faults = minor_faults()?;
    fill(memory, 32 * 512);
    let faults = (minor_faults()? - faults) as usize;
    let large = expect_large(before, 32)?;
    // A small page's fault may map its neighbours; each other span costs at most 512 faults.
    let most = large + (32 - large) * 512 + 8;
    ensure!(faults <= most, faults, large);
    let all = kib("/proc/meminfo", "AnonHugePages")?;
    ensure!(all >= large * 2048, "all processes have {all} KiB");
    check(memory, 0..32 * 512)?;
    call!(munmap(memory.cast(), 32 * SPAN));
    ensure!(large_kib()? == before, "they are still there");
    Ok(())
}

fn split() -> Outcome {
    let _switched = Switched::to("large", "advised")?;
    let before = large_kib()?;
    let memory = aligned(4, MADV_HUGEPAGE)?;
    fill(memory, 4 * 512);
    let large = expect_large(before, 4)?;
    let at = |span: usize, page: usize| memory.wrapping_add(span * SPAN + page * PAGE);
    // One page each of the first three.
    call!(munmap(at(0, 200).cast(), PAGE));
    // Before anything else can be mapped there.
    refused!(ENOMEM, msync(at(0, 200).cast(), PAGE, MS_ASYNC));
    call!(mprotect(at(1, 511).cast(), PAGE, PROT_READ));
    call!(madvise(at(2, 0).cast(), PAGE, MADV_DONTNEED));
    faults(SIGSEGV, 2, at(1, 511) as usize, || poke(at(1, 511), 0))?;
    ensure!(peek(at(2, 0)) == 0, "what was given up is still there");
    let untouched = |page: &usize| ![200, 2 * 512].contains(page);
    check(memory, (0..4 * 512).filter(untouched))?;
    ensure!(resident(at(1, 0), 1024)?.iter().all(|&it| it));
    if large == 4 {
        // The children that faulted have split the last one.
        let left = large_kib()? - before;
        ensure!(left <= 2048, "{left} KiB are large after the splits");
    }
    // Whole spans at once, and ranges across two.
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
    let _switched = Switched::to("large", "advised")?;
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
        // The child's own large pages.
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
    let _switched = Switched::to("large", "advised")?;
    let before = large_kib()?;
    let none = |memory: *mut u8, what: &str| {
        poke(memory, 1);
        let large = large_kib()? - before;
        ensure!(large == 0, "{large} KiB are large in {what}");
        call!(munmap(memory.cast(), SPAN));
        Ok(())
    };
    none(aligned(1, MADV_NOHUGEPAGE)?, "memory that refuses it")?;
    none(aligned(1, MADV_NORMAL)?, "memory that did not ask")?;
    child(|| {
        call!(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
        none(aligned(1, MADV_HUGEPAGE)?, "a process that refuses it")?;
        child(|| none(aligned(1, MADV_HUGEPAGE)?, "its child"))?;
        call!(prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0));
        poke(aligned(1, MADV_HUGEPAGE)?, 1);
        expect_large(before, 1).map(drop)
    })
}

/// Sequential writes to the first 2 MiB enable large pages; MAP_POPULATE needs no such evidence,
/// and a thread's stack gets none.
fn in_order() -> Outcome {
    let _switched = Switched::to("large", "on")?;
    let looks = !fs::read_to_string("/proc/cmdline")?.contains("faultahead=0,0");
    let before = large_kib()?;
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    for (more, most) in [(0, 3), (MAP_POPULATE, 4), (MAP_STACK, 3)] {
        let memory = map_with(4 * SPAN, PROT_READ | PROT_WRITE, flags | more, -1)?;
        let is_aligned = memory as usize % SPAN == 0;
        fill(memory, 4 * 512);
        let spans = (large_kib()? - before) / 2048;
        match more {
            MAP_STACK => ensure!(spans == 0, "{spans} spans of a stack are large"),
            _ => {
                ensure!(is_aligned, "{memory:?} with flags {more:#x}");
                // Without fault-ahead nothing shows that memory is written in order.
                let least = if looks || more == MAP_POPULATE { 1 } else { 0 };
                ensure!((least..=most).contains(&spans), spans, more);
            }
        }
        check(memory, 0..4 * 512)?;
        // Sparse: only the touched pages.
        call!(madvise(memory.cast(), 4 * SPAN, MADV_DONTNEED));
        for page in [0, 700, 512, 1536] {
            poke(memory.wrapping_add(page * PAGE), 1);
        }
        ensure!(large_kib()? == before, "pages here and there are large");
        call!(munmap(memory.cast(), 4 * SPAN));
    }
    Ok(())
}

/// Moves, reads by another process, frees and unmaps parts of large pages.
fn borders() -> Outcome {
    let _switched = Switched::to("large", "advised")?;
    let before = large_kib()?;
    let memory = aligned(4, MADV_HUGEPAGE)?;
    fill(memory, 4 * 512);
    expect_large(before, 4)?;
    // From another process, beginning and ending in the middle.
    let parent = std::process::id() as pid_t;
    child(|| {
        let (from, len) = (memory.wrapping_add(100 * PAGE), 1500 * PAGE);
        let copy = map(len)?;
        let part = |at: *mut u8| vector(at, len);
        let (local, remote) = (part(copy), part(from));
        let read = call!(process_vm_readv(parent, &local, 1, &remote, 1, 0));
        ensure!(read as usize == len, "{read} bytes of {len}");
        for page in 0..1500 {
            let found = peek(copy.wrapping_add(page * PAGE));
            ensure!(found == byte(100 + page), "page {page} has {found}");
        }
        Ok(())
    })?;
    // From the middle of one to the middle of the next.
    let moved = call!(mremap(
        memory.wrapping_add(300 * PAGE).cast(),
        500 * PAGE,
        500 * PAGE,
        MREMAP_MAYMOVE | MREMAP_FIXED,
        map(500 * PAGE)?
    ));
    for page in 0..500 {
        let found = peek(moved.cast::<u8>().wrapping_add(page * PAGE));
        ensure!(found == byte(300 + page), "moved page {page} has {found}");
    }
    refused! { msync(memory.wrapping_add(300 * PAGE).cast(), PAGE, MS_ASYNC) => ENOMEM; }
    check(memory, (0..300).chain(800..2048))?;
    // MADV_FREE: the old byte or zero, until the page is written.
    call!(madvise(
        memory.wrapping_add(1000 * PAGE).cast(),
        100 * PAGE,
        MADV_FREE
    ));
    for page in 1000..1100 {
        let found = peek(memory.wrapping_add(page * PAGE));
        ensure!(found == 0 || found == byte(page), "page {page} has {found}");
        poke(memory.wrapping_add(page * PAGE), byte(page));
    }
    check(memory, (0..300).chain(800..2048))?;
    // Grown in place or elsewhere.
    let grown = call!(mremap(
        memory.wrapping_add(1024 * PAGE).cast(),
        1024 * PAGE,
        2048 * PAGE,
        MREMAP_MAYMOVE
    ));
    for page in 0..1024 {
        let found = peek(grown.cast::<u8>().wrapping_add(page * PAGE));
        ensure!(found == byte(1024 + page), "grown page {page} has {found}");
    }
    call!(munmap(grown, 2048 * PAGE));
    call!(munmap(memory.cast(), 1024 * PAGE));
    call!(munmap(moved, 500 * PAGE));
    ensure!(large_kib()? == before, "they are still there");
    Ok(())
}

fn said() -> Outcome {
    const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    const COUNTS: &str = "/proc/vmstat";
    let _switched = Switched::to("large", "off")?;
    let text = |file: &str| fs::read_to_string(file).map_err(|error| format!("{file}: {error}"));
    for (word, line, switch) in [
        ("madvise", "always [madvise] never\n", "advised\n"),
        ("always", "[always] madvise never\n", "on\n"),
        ("never", "always madvise [never]\n", "off\n"),
    ] {
        fs::write(ENABLED, word)?;
        ensure!(text(ENABLED)? == line, "{:?}", text(ENABLED)?);
        ensure!(
            text("/proc/causeway/large")? == switch,
            "{:?}",
            text("/proc/causeway/large")?
        );
    }
    ensure!(fs::write(ENABLED, "perhaps").is_err(), "any word will do");
    let size = text("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")?;
    ensure!(size == "2097152\n", "{size:?}");
    fs::write(ENABLED, "madvise")?;
    let (made, split) = (
        field(COUNTS, "thp_fault_alloc")?,
        field(COUNTS, "thp_split_pmd")?,
    );
    let memory = aligned(2, MADV_HUGEPAGE)?;
    let flags = || -> Result<String> {
        let maps = text("/proc/self/smaps")?;
        let start = format!("{:x}-", memory as usize);
        let mut mapping = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = mapping.find(|line| line.starts_with("VmFlags:"));
        line.map(str::to_owned)
            .ok_or(format!("no mapping at {start}").into())
    };
    ensure!(flags()?.contains(" hg"), "{}", flags()?);
    fill(memory, 1024);
    let now = field(COUNTS, "thp_fault_alloc")?;
    ensure!(now > made, "{made} large pages, then {now}");
    call!(madvise(memory.cast(), PAGE, MADV_DONTNEED));
    let now = field(COUNTS, "thp_split_pmd")?;
    ensure!(now > split, "{split} splits, then {now}");
    call!(madvise(memory.cast(), 2 * SPAN, MADV_NOHUGEPAGE));
    ensure!(flags()?.contains(" nh"), "{}", flags()?);
    let allowed = || kib("/proc/self/status", "THP_enabled");
    ensure!(allowed()? == 1, "THP_enabled: {}", allowed()?);
    child(|| {
        call!(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
        ensure!(allowed()? == 0, "THP_enabled: {}", allowed()?);
        Ok(())
    })?;
    call!(munmap(memory.cast(), 2 * SPAN));
    Ok(())
}
