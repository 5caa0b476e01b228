//! Files that only this kernel has: costs by cause, costs of the bare machine, memory by use,
//! unsupported calls.

use abi::Errno;
use fs::pseudofs::{Entry, Table};
use nucleus::{
    counters::Counter,
    floor, frame, heap,
    pmap::{self, Fork},
};
use vm::LargePages;

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

/// `/proc/causeway`, with the files that floors above add.
pub fn directory(more: &[(&'static str, fn() -> Entry)]) -> Table {
    let table = Table::new()
        .with(
            "counters",
            Entry::text(|out| {
                for counter in Counter::ALL {
                    writeln!(out, "{} {}", counter.name(), counter.total());
                }
                Ok(())
            }),
        )
        .with(
            "floors",
            Entry::text(|out| {
                for floor in floor::measure().map_err(|_| Errno::ENOMEM)? {
                    writeln!(out, "{floor}");
                }
                Ok(())
            }),
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
            "fork",
            Entry::text(|out| {
                let mode = match pmap::fork_mode() {
                    Fork::Share => "share",
                    Fork::Copy => "copy",
                };
                writeln!(out, "{mode}");
                Ok(())
            })
            .writable(|bytes| {
                pmap::set_fork(match bytes.trim_ascii() {
                    b"share" => Fork::Share,
                    b"copy" => Fork::Copy,
                    _ => return Err(Errno::EINVAL),
                });
                Ok(())
            }),
        )
        .with(
            "large",
            Entry::text(|out| {
                let mode = match vm::large_pages() {
                    LargePages::Off => "off",
                    LargePages::Advised => "advised",
                    LargePages::On => "on",
                };
                writeln!(out, "{mode}");
                Ok(())
            })
            .writable(|bytes| {
                vm::set_large_pages(match bytes.trim_ascii() {
                    b"off" => LargePages::Off,
                    b"advised" => LargePages::Advised,
                    b"on" => LargePages::On,
                    _ => return Err(Errno::EINVAL),
                });
                Ok(())
            }),
        )
        .with(
            "memory",
            Entry::text(|out| {
                let usage = frame::usage();
                writeln!(out, "total {}", usage.total);
                writeln!(out, "free {}", usage.free);
                writeln!(out, "data {}", usage.data);
                writeln!(out, "page_tables {}", usage.page_tables);
                writeln!(out, "heap {}", usage.heap);
                writeln!(out, "kernel {}", usage.kernel);
                Ok(())
            }),
        )
        .with(
            "heap",
            Entry::text(|out| {
                for class in heap::classes() {
                    let (size, slabs) = (class.size, class.slabs);
                    writeln!(out, "{size} {slabs} {} {}", class.in_use, class.kept);
                }
                Ok(())
            }),
        );
    more.iter()
        .fold(table, |table, (name, file)| table.with(name, file()))
}
