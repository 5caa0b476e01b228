//! `/proc/causeway`, which only this kernel has: costs by cause, the costs of the bare machine,
//! memory by use, switches, system calls without an implementation.

use alloc::vec::Vec;

use abi::{Errno, Result};
use fbuf::region::{PathStatus, statuses};
use fs::pseudofs::{Entry, Table, Text};
use nucleus::{
    Unchanged,
    ephemeral::{
        audit::{self, Place},
        window,
    },
    frame, heap, hw_cost,
    switches::Switch,
    try_vec, units,
};
use vm::{
    account::{self, Kind},
    counters::Counter,
};

use super::super::{line, shown};
use super::{ptcache, spaces};
use crate::{counters, process::user, switches};

/// The counters that count page faults.
pub const FAULTS: &[Counter] = &[
    Counter::fault_object,
    Counter::fault_anon,
    Counter::fault_zero_fill,
    Counter::fault_promote,
    Counter::fault_copy,
    Counter::fault_in_place,
    Counter::fault_spurious,
    Counter::fault_pager,
    Counter::fault_error,
];

/// The counters of data that move by pages or map entries, and of those that are copied after all.
const MOVEMENTS: &[&str] = &[
    "pages_lent",
    "pages_transferred",
    "entries_copied",
    "entries_moved",
    "entries_shared",
    "mappings_moved",
    "loans_broken_by_write",
    "loans_broken_by_pageout",
    "loans_broken_by_unmap",
    "loans_broken_by_truncation",
    "loans_broken_by_exit",
    "bytes_passed",
    "bytes_put",
    "bytes_copied_in",
    "bytes_copied_out",
    "bytes_copied_within",
];

/// `/proc/causeway`, with the files that floors above add.
pub fn directory(more: &[(&'static str, fn() -> Entry)]) -> Table {
    let table = switches::all()
        .filter(|switch| {
            ![EPHEMERAL, IOMMU, FBUF, ptcache::NAME, spaces::NAME].contains(&switch.name)
        })
        .fold(Table::new(), |table, switch| {
            table.with(switch.name, setting(switch))
        })
        .with(
            "counters",
            shown(|out| {
                for (name, total) in counters::all() {
                    writeln!(out, "{name} {total}");
                }
            }),
        )
        .with(
            "movements",
            shown(|out| {
                let counters = counters::all();
                for (name, total) in counters.filter(|(name, _)| MOVEMENTS.contains(name)) {
                    writeln!(out, "{name} {total}");
                }
                for (call, bytes) in vm::moved_bytes() {
                    for (way, bytes) in vm::MOVED_NAMES.iter().zip(bytes) {
                        writeln!(out, "{call}_{way} {bytes}");
                    }
                }
            }),
        )
        .with(
            "hw_cost",
            Entry::text(|out| {
                for cost in hw_cost::measure()? {
                    writeln!(out, "{cost}");
                }
                Ok(())
            })
            // It takes a CPU's time, with interrupts off for parts of it.
            .mode(0o400),
        )
        .with(
            "swap",
            Entry::text(|out| {
                let audit = vm::audit_swap().map_err(|_| Errno::ENOMEM)?;
                writeln!(out, "used {}", audit.used);
                writeln!(out, "found {}", audit.found);
                Ok(())
            }),
        )
        .with(
            "memory",
            shown(|out| {
                let usage = frame::usage();
                writeln!(out, "total {}", usage.total);
                writeln!(out, "free {}", usage.free);
                writeln!(out, "data {}", usage.data);
                writeln!(out, "page_tables {}", usage.page_tables);
                writeln!(out, "heap {}", usage.heap);
                writeln!(out, "kernel {}", usage.kernel);
            }),
        )
        .with("iommu", Entry::text(iommu))
        .with(FBUF, fbuf())
        .with("ephemeral", ephemeral())
        .with(ptcache::NAME, ptcache::file())
        .with(spaces::NAME, spaces::file())
        // It walks the kernel's page tables.
        .with("mapped", Entry::text(mapped).mode(0o400))
        // It walks all page tables.
        .with("audit", Entry::text(audit_tables).mode(0o400))
        .with("accounts", Entry::text(accounts))
        .with(
            "heap",
            shown(|out| {
                for class in heap::classes() {
                    let (size, slabs) = (class.size, class.slabs);
                    writeln!(out, "{size} {slabs} {} {}", class.in_use, class.kept);
                }
            }),
        );
    more.iter()
        .fold(table, |table, (name, file)| table.with(name, file()))
}

/// Switches whose files tell more than their values.
const FBUF: &str = "fbuf";

/// The counters of fbufs begin so.
const FBUF_COUNTERS: &str = "fbuf_";

/// `/proc/causeway/fbuf`: the default mode, which may be changed, and all paths.
fn fbuf() -> Entry {
    let file = Entry::text(|out| {
        let paths = statuses()?;
        if let Some(switch) = switches::find(FBUF) {
            writeln!(out, "mode {}", switch.show());
        }
        writeln!(out, "paths {}", paths.len());
        let sum = |of: fn(&PathStatus) -> usize| paths.iter().map(of).sum::<usize>();
        writeln!(out, "chunks {}", sum(|path| path.chunks));
        writeln!(out, "pages {}", sum(|path| path.pages));
        writeln!(out, "messages_in_flight {}", sum(|path| path.messages));
        writeln!(out, "notices_pending {}", sum(|path| path.notices));
        writeln!(out, "pages_secured {}", sum(|path| path.secured));
        for (name, total) in counters::all() {
            if let Some(name) = name.strip_prefix(FBUF_COUNTERS) {
                writeln!(out, "{name} {total}");
            }
        }
        for path in &paths {
            let (id, owner, mode) = (path.id, path.owner, path.mode);
            let owner_state = if path.is_over { "gone" } else { "there" };
            let caching = if mode.is_cached() {
                "cached"
            } else {
                "uncached"
            };
            let writing = if mode.is_secured() {
                "secured"
            } else {
                "volatile"
            };
            match owner {
                0 => write!(out, "path {id} owner kernel"),
                owner => write!(out, "path {id} owner {owner}"),
            }
            write!(out, " {owner_state} {caching},{writing}");
            write!(out, " chunks {}/{}", path.chunks, path.limit);
            write!(out, " pages {} members {}", path.pages, path.members);
            write!(out, " messages {} notices {}", path.messages, path.notices);
            writeln!(out, " secured {}", path.secured);
        }
        Ok(())
    });
    match switches::find(FBUF) {
        Some(switch) => changeable(file, switch),
        None => file,
    }
}

const EPHEMERAL: &str = "ephemeral";

/// The counters of ephemeral mappings and of the direct map begin so.
const EPHEMERAL_COUNTERS: [&str; 2] = ["ephemeral_", "direct_map_"];

/// The counters of invalidations by cause begin so, whose sums are shown as well.
const INVALIDATIONS: [&str; 2] = ["ephemeral_local", "ephemeral_remote"];

/// `/proc/causeway/ephemeral`: where ephemeral mappings come from, which may be changed, how many
/// there are, and what they cost and saved.
fn ephemeral() -> Entry {
    let file = shown(|out| {
        let [used, valid] = window::usage();
        if let Some(switch) = switches::find(EPHEMERAL) {
            writeln!(out, "backend {}", switch.show());
        }
        writeln!(out, "entries {}", window::entries());
        writeln!(out, "in_use {used}");
        writeln!(out, "valid {valid}");
        for kind in INVALIDATIONS {
            let counts = counters::all().filter(|(name, _)| name.starts_with(kind));
            let sum: u64 = counts.map(|(_, total)| total).sum();
            writeln!(
                out,
                "{} {sum}",
                kind.trim_start_matches(EPHEMERAL_COUNTERS[0])
            );
        }
        for (name, total) in counters::all() {
            let rest = EPHEMERAL_COUNTERS.map(|it| name.strip_prefix(it));
            if let Some(name) = rest.into_iter().flatten().next() {
                writeln!(out, "{name} {total}");
            }
        }
    });
    match switches::find(EPHEMERAL) {
        Some(switch) => changeable(file, switch),
        None => file,
    }
}

/// Another one.
const IOMMU: &str = "iommu";

/// The counters of domains and units begin so.
const IOMMU_COUNTERS: [&str; 2] = ["iommu_", "iotlb_"];

/// `/proc/causeway/iommu`: the policy, the units, the devices with their domains and faults, and
/// what units were told to forget, by cause and by kind.
fn iommu(out: &mut Text) -> Result<()> {
    if let Some(switch) = switches::find(IOMMU) {
        writeln!(out, "policy {}", switch.show());
    }
    for (number, unit) in units::units().enumerate() {
        let state = if unit.is_lost { "lost" } else { "on" };
        let way = if unit.has_queue { "queue" } else { "registers" };
        let is_remapped = u8::from(unit.remaps_interrupts);
        writeln!(
            out,
            "unit {number} {state} by {way} interrupts_remapped {is_remapped}"
        );
    }
    for it in units::devices().map_err(|_| Errno::ENOMEM)? {
        let (place, mapped, pending, faults) = (it.place(), it.mapped, it.pending, it.faults);
        write!(out, "device {place} domain ");
        match it.domain {
            Some(number) => write!(out, "{number}"),
            None => write!(out, "none"),
        }
        let blocked = u8::from(it.is_blocked);
        writeln!(
            out,
            " mapped {mapped} pending {pending} faults {faults} blocked {blocked}"
        );
    }
    writeln!(out, "faults_not_recorded {}", units::lost_faults());
    for (name, total) in counters::all() {
        if IOMMU_COUNTERS.iter().any(|start| name.starts_with(start)) {
            writeln!(out, "{name} {total}");
        }
    }
    Ok(())
}

/// `/proc/causeway/mapped`: each page of a program or file, and of what the kernel shares with
/// devices, that the kernel's half of the address space maps now, with its address there and its
/// user. Without the direct map, where `directmap=all` has all of them.
fn mapped(out: &mut Text) -> Result<()> {
    let mut found = Vec::new();
    let mut is_short = false;
    audit::each_mapped(|it| {
        is_short |= found.try_reserve(1).is_err();
        if !is_short {
            found.push(it);
        }
    });
    if is_short {
        return Err(Errno::ENOMEM);
    }
    for it in found {
        let (address, frame) = (it.address, it.frame);
        match it.place {
            Place::Direct => writeln!(out, "{address:x} {frame:x} direct"),
            Place::Own(cpu) => writeln!(out, "{address:x} {frame:x} cpu {cpu}"),
            Place::Cached(users) => writeln!(out, "{address:x} {frame:x} cached {users}"),
            Place::Single => writeln!(out, "{address:x} {frame:x} single"),
            Place::Elsewhere => writeln!(out, "{address:x} {frame:x} elsewhere"),
        }
    }
    Ok(())
}

/// Violations that `/proc/causeway/audit` shows.
const MOST_VIOLATIONS: usize = 1000;

/// `/proc/causeway/audit`: audits the page tables of all programs, all frames, the kernel's
/// mappings and the domains of devices. A line for each violation, and what was looked at.
fn audit_tables(out: &mut Text) -> Result<()> {
    let mut found = try_vec(MOST_VIOLATIONS).map_err(|_| Errno::ENOMEM)?;
    let mut count = 0;
    let seen = vm::audit_page_tables(&mut |it| {
        count += 1;
        if found.len() < MOST_VIOLATIONS {
            found.push(it);
        }
    });
    for it in found {
        writeln!(out, "violation: {it}");
    }
    writeln!(out, "tables {}", seen.tables);
    writeln!(out, "entries {}", seen.entries);
    writeln!(out, "frames {}", seen.frames);
    writeln!(out, "kernel_pages {}", seen.kernel_pages);
    writeln!(out, "device_pages {}", seen.device_pages);
    writeln!(out, "violations {count}");
    Ok(())
}

/// `/proc/causeway/accounts`: for each user what its processes have made and still exists, by kind:
/// how many things, and KiB. The last line counts accounts that were dropped with charges on them.
fn accounts(out: &mut Text) -> Result<()> {
    for user in user::all()? {
        for &kind in Kind::ALL {
            let (things, bytes) = (user.things(kind), user.bytes(kind));
            if things + bytes > 0 {
                let (uid, kind, kib) = (user.uid(), kind.name(), bytes.div_ceil(1024));
                writeln!(out, "{uid} {kind} {things} {kib}");
            }
        }
    }
    writeln!(out, "unbalanced {}", account::unbalanced());
    Ok(())
}

/// The file of a switch.
fn setting(switch: &'static Switch) -> Entry {
    let file = line(|| switch.show());
    match switch.is_live {
        true => changeable(file, switch),
        false => file,
    }
}

/// A file that changes a switch when it is written.
pub(super) fn changeable(file: Entry, switch: &'static Switch) -> Entry {
    file.writable(|bytes| {
        let text = core::str::from_utf8(bytes.trim_ascii()).ok();
        let setting = text.and_then(|text| switch.parse(text));
        (switch.set)(setting.ok_or(Errno::EINVAL)?).map_err(|why| match why {
            Unchanged::OutOfMemory => Errno::ENOMEM,
            Unchanged::InUse => Errno::EBUSY,
        })
    })
}
