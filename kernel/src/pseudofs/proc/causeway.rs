//! `/proc/causeway`, which only this kernel has: costs by cause, the costs of the bare machine,
//! memory by use, switches, system calls without an implementation.

use abi::{Errno, Result};
use fs::pseudofs::{Entry, Table, Text};
use nucleus::{Unchanged, frame, heap, hw_cost, switches::Switch};
use vm::{
    account::{self, Kind},
    counters::Counter,
};

use super::super::{line, shown};
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
    if !switch.is_live {
        return file;
    }
    file.writable(|bytes| {
        let text = core::str::from_utf8(bytes.trim_ascii()).ok();
        let setting = text.and_then(|text| switch.parse(text));
        (switch.set)(setting.ok_or(Errno::EINVAL)?).map_err(|why| match why {
            Unchanged::OutOfMemory => Errno::ENOMEM,
            Unchanged::InUse => Errno::EBUSY,
        })
    })
}
