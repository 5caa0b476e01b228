//! What only this kernel has: costs by cause, memory by use, system calls that nobody answers.

use fs::synthetic::{Entry, Table};
use nucleus::{counters::Counter, frame};

use crate::syscall;

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

/// `/proc/causeway`.
pub fn directory() -> Table {
    Table::new()
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
            "unknown-calls",
            Entry::text(|out| {
                for (number, count) in syscall::unknown_calls() {
                    writeln!(out, "{number} {count}");
                }
                Ok(())
            }),
        )
}
