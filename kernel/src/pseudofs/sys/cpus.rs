//! `/sys/devices/system`: processors, their topology and caches, and the one node of memory.

use alloc::{boxed::Box, format, string::String};

use fs::{
    Kind,
    pseudofs::{Entry, Table, Text},
};
use nucleus::{
    frame,
    processor::{self, Cache, CacheKind},
    speculation, task,
};

use super::{directory, line, list, mask, numbered::Numbered, shown, value};
use crate::pseudofs::kib;

/// `devices/system`.
pub(super) fn system() -> Table {
    Table::new()
        .with("cpu", directory(cpus()))
        .with("node", directory(nodes()))
}

/// A list of all CPUs. All are there from the start, and stay.
fn all() -> String {
    list(0, task::cpu_count())
}

fn cpus() -> Table {
    Table::new()
        .with("isolated", value(""))
        .with("kernel_max", value(task::MAX_CPUS - 1))
        .with("modalias", line(modalias))
        .with("offline", value(""))
        .with("online", line(all))
        .with("possible", line(all))
        .with("present", line(all))
        .with("vulnerabilities", directory(vulnerabilities()))
        .otherwise(Numbered {
            word: "cpu",
            count: task::cpu_count(),
            kind: Kind::Directory,
            make: Box::new(|cpu| directory(one(cpu))),
        })
}

/// A file for each fault of processors: whether these have it, and what is done about it.
fn vulnerabilities() -> Table {
    let states = processor::vulnerabilities().into_iter();
    states.fold(Table::new(), |table, (name, state)| {
        table.with(name, value(state))
    })
}

/// The kind of CPU, as Linux matches modules with it.
fn modalias() -> String {
    let cpu = processor::processor();
    format!(
        "cpu:type:x86,ven{:04X}fam{:04X}mod{:04X}:feature:",
        match cpu.vendor() {
            "GenuineIntel" => 0,
            "AuthenticAMD" => 2,
            _ => 0xffff,
        },
        cpu.family,
        cpu.model
    )
}

fn one(cpu: usize) -> Table {
    let caches = Table::new().otherwise(Numbered {
        word: "index",
        count: processor::caches().len(),
        kind: Kind::Directory,
        make: Box::new(move |index| directory(cache(cpu, index))),
    });
    let table = Table::new()
        .with("cache", directory(caches))
        .with("node0", super::link("../../node/node0"))
        .with("topology", directory(topology(cpu)));
    // The first CPU can't be taken off, so it has no switch.
    match cpu {
        0 => table,
        _ => table.with("online", value("1")),
    }
}

/// One package whose cores have a thread each.
fn topology(cpu: usize) -> Table {
    let count = task::cpu_count();
    let own = move || line(move || list(cpu, 1));
    let own_mask = move || line(move || mask(cpu, 1, count));
    let every = || line(all);
    let every_mask = move || line(move || mask(0, count, count));
    Table::new()
        .with("cluster_cpus", own_mask())
        .with("cluster_cpus_list", own())
        .with("cluster_id", value("65535"))
        .with("core_cpus", own_mask())
        .with("core_cpus_list", own())
        .with("core_id", value(cpu))
        .with("core_siblings", every_mask())
        .with("core_siblings_list", every())
        .with("die_cpus", every_mask())
        .with("die_cpus_list", every())
        .with("die_id", value("0"))
        .with("package_cpus", every_mask())
        .with("package_cpus_list", every())
        .with("physical_package_id", value("0"))
        .with("thread_siblings", own_mask())
        .with("thread_siblings_list", own())
}

fn cache(cpu: usize, index: usize) -> Table {
    let Some(&cache) = speculation::get(&processor::caches(), index) else {
        return Table::new();
    };
    let count = task::cpu_count();
    // Those that share one have numbers that follow each other.
    let sharing = (cache.shared_by as usize).next_power_of_two();
    let from = cpu / sharing * sharing;
    let shared = sharing.min(count - from);
    let Cache { kind, .. } = cache;
    Table::new()
        .with("coherency_line_size", value(cache.line_bytes))
        .with("id", value(cpu / sharing))
        .with("level", value(cache.level))
        .with("number_of_sets", value(cache.sets))
        .with("physical_line_partition", value(cache.partitions))
        .with("shared_cpu_list", line(move || list(from, shared)))
        .with("shared_cpu_map", line(move || mask(from, shared, count)))
        .with("size", {
            let kib = cache.bytes() / 1024;
            line(move || format!("{kib}K"))
        })
        .with(
            "type",
            value(match kind {
                CacheKind::Data => "Data",
                CacheKind::Instruction => "Instruction",
                CacheKind::Unified => "Unified",
            }),
        )
        .with("ways_of_associativity", value(cache.ways))
}

fn nodes() -> Table {
    Table::new()
        .with("has_cpu", value("0"))
        .with("has_memory", value("0"))
        .with("has_normal_memory", value("0"))
        .with("online", value("0"))
        .with("possible", value("0"))
        .otherwise(Numbered {
            word: "node",
            count: 1,
            kind: Kind::Directory,
            make: Box::new(|_| directory(node())),
        })
}

fn node() -> Table {
    let count = task::cpu_count();
    Table::new()
        .with("cpulist", line(all))
        .with("cpumap", line(move || mask(0, count, count)))
        .with("distance", value("10"))
        .with("meminfo", shown(memory))
        .otherwise(Numbered {
            word: "cpu",
            count,
            kind: Kind::Link,
            make: Box::new(|cpu| {
                Entry::link(move || Ok(format!("../../cpu/cpu{cpu}").into_bytes()))
            }),
        })
}

fn memory(out: &mut Text) {
    let usage = frame::usage();
    let mut line = |name: &str, frames: usize| {
        let width = 15usize.saturating_sub(name.len()) + 8;
        writeln!(out, "Node 0 {name}:{:>width$} kB", kib(frames));
    };
    line("MemTotal", usage.total);
    line("MemFree", usage.free);
    line("MemUsed", usage.total - usage.free.min(usage.total));
    line("PageTables", usage.page_tables);
    line("Slab", usage.heap);
}
