//! `/proc/PID/maps`, `smaps` and `smaps_rollup`.

use fs::{device, pseudofs::Text};
use nucleus::{PAGE_SIZE, Prot};
use vm::{Backing, Description, Entry, LargeAdvice, Lock, Map, PageCounts};

use super::super::kib;

/// The column of a mapping's name.
const NAME_COLUMN: usize = 73;

/// `maps`.
pub(super) fn maps(map: &Map, out: &mut Text) {
    map.for_each_entry(&mut |entry| line(entry, out));
}

fn line(entry: &Entry, out: &mut Text) {
    let (description, offset) = match &entry.backing {
        Backing::Zero => (Description::default(), 0),
        Backing::Object { pager, offset } => (pager.describe(), *offset),
    };
    let bit = |prot, letter| {
        if entry.prot.contains(prot) {
            letter
        } else {
            b'-'
        }
    };
    let start = out.len();
    out.push_hex(entry.range.start.0 as u64, 8);
    out.push(b"-");
    out.push_hex(entry.range.end.0 as u64, 8);
    out.push(&[
        b' ',
        bit(Prot::READ, b'r'),
        bit(Prot::WRITE, b'w'),
        bit(Prot::EXEC, b'x'),
        if entry.shared { b's' } else { b'p' },
        b' ',
    ]);
    out.push_hex(offset, 8);
    out.push(b" ");
    out.push_hex(device::major(description.device).into(), 2);
    out.push(b":");
    out.push_hex(device::minor(description.device).into(), 2);
    out.push(b" ");
    out.push_number(description.inode, 1);
    out.push(b" ");
    let name = if description.name.is_empty() {
        entry.label.as_bytes()
    } else {
        &description.name
    };
    if !name.is_empty() {
        out.pad_to(start, NAME_COLUMN);
        out.push_escaped_newlines(name);
    }
    out.push(b"\n");
}

/// The lines that `smaps` has for a mapping and `smaps_rollup`, `by_kind`, for all. `anonymous` in
/// pages, `locked` in bytes.
fn write_counts(counts: &PageCounts, anonymous: usize, locked: u64, by_kind: bool, out: &mut Text) {
    let mut value = |name: &str, kib: u64| {
        out.push(name.as_bytes());
        out.push(b":");
        out.push_number(kib, 24 - name.len() - 1);
        out.push(b" kB\n");
    };
    value("Rss", kib(counts.resident()));
    value("Pss", counts.proportional / 1024);
    value("Pss_Dirty", counts.proportional_dirty / 1024);
    if by_kind {
        let above = counts.proportional_anonymous;
        value("Pss_Anon", above / 1024);
        value("Pss_File", (counts.proportional - above) / 1024);
        value("Pss_Shmem", 0);
    }
    value("Shared_Clean", kib(counts.shared_clean));
    value("Shared_Dirty", kib(counts.shared_dirty));
    value("Private_Clean", kib(counts.private_clean));
    value("Private_Dirty", kib(counts.private_dirty));
    // No page is ever taken for unused.
    value("Referenced", kib(counts.resident()));
    value("Anonymous", kib(anonymous.min(counts.resident())));
    value("LazyFree", kib(counts.lazy));
    value("AnonHugePages", kib(counts.large));
    value("ShmemPmdMapped", kib(counts.large_shared));
    for name in ["FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb"] {
        value(name, 0);
    }
    value("Swap", kib(counts.swapped));
    value("SwapPss", counts.proportional_swapped / 1024);
    value("Locked", locked / 1024);
}

/// Bytes of a mapping that are locked, each page divided by its number of mappings.
fn locked(entry: &Entry, counts: &PageCounts) -> u64 {
    match entry.lock {
        Lock::None => 0,
        _ => counts.proportional,
    }
}

/// `smaps`: each mapping with its pages.
pub(super) fn smaps(map: &Map, out: &mut Text) {
    map.for_each_entry_counted(&mut |entry, counts| {
        line(entry, out);
        for (name, bytes) in [
            (b"Size:           ", entry.range.len()),
            (b"KernelPageSize: ", PAGE_SIZE),
            (b"MMUPageSize:    ", PAGE_SIZE),
        ] {
            out.push(name);
            out.push_number((bytes / 1024) as u64, 8);
            out.push(b" kB\n");
        }
        write_counts(
            counts,
            entry.anonymous_pages,
            locked(entry, counts),
            false,
            out,
        );
        out.push(match entry.large_eligible {
            true => b"THPeligible:    1\n",
            false => b"THPeligible:    0\n",
        });
        flags(entry, out);
    });
}

/// Formats the protection of a mapping, and the largest that it may get, in words of two letters.
fn flags(entry: &Entry, out: &mut Text) {
    out.push(b"VmFlags:");
    let (now, ever) = (entry.prot, entry.max_prot);
    for (holds, word) in [
        (now.contains(Prot::READ), " rd"),
        (now.contains(Prot::WRITE), " wr"),
        (now.contains(Prot::EXEC), " ex"),
        (entry.shared, " sh"),
        (ever.contains(Prot::READ), " mr"),
        (ever.contains(Prot::WRITE), " mw"),
        (ever.contains(Prot::EXEC), " me"),
        (entry.shared, " ms"),
        (entry.grows_down, " gd"),
        (entry.lock != Lock::None, " lo"),
        (entry.large == LargeAdvice::Wanted, " hg"),
        (entry.large == LargeAdvice::Refused, " nh"),
    ] {
        if holds {
            out.push(word.as_bytes());
        }
    }
    out.push(b" \n");
}

/// `smaps_rollup`: the sums.
pub(super) fn rollup(map: &Map, out: &mut Text) {
    let mut sum = PageCounts::default();
    let (mut anonymous, mut locked_bytes, mut first, mut last) = (0, 0, None, 0);
    map.for_each_entry_counted(&mut |entry, counts| {
        sum.add(counts);
        locked_bytes += locked(entry, counts);
        anonymous += entry.anonymous_pages;
        first.get_or_insert(entry.range.start.0);
        last = entry.range.end.0;
    });
    let start = out.len();
    let first = first.unwrap_or(0);
    write!(out, "{first:08x}-{last:08x} ---p 00000000 00:00 0 ");
    out.pad_to(start, NAME_COLUMN);
    out.push(b"[rollup]\n");
    write_counts(&sum, anonymous, locked_bytes, true, out);
}
