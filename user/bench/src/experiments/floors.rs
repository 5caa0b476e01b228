//! Basic costs of the machine, measured by the kernel.

use std::fs;

use crate::sample::Unit;
use crate::{Bench, Experiment, Failure};

/// The experiment; its help describes it.
pub const EXPERIMENT: Experiment = Experiment {
    name: "floors",
    title: "What the bare machine takes: no kernel can be below",
    help: "Causeway measures these inside itself, with interrupts off, and gives them in
/proc/causeway/hw_cost; other kernels have no such file.

floors/trap             int3 in user mode, and back from a gate that only returns
floors/page_fault       a load from where nothing is mapped, and back from a gate that leaves it out
floors/system_call      syscall and sysret
floors/int_80           int 0x80, and back from a gate that only returns
floors/invlpg           dropping the translation of one page
floors/invlpg_refill    the same, and a load from the page
floors/tlb_flush        loading CR3 with what it holds
floors/space_switch     loading CR3 with another root, and a load from each of four pages
floors/lock             a locked increment of a word that nobody else uses
floors/clock            reading the time-stamp counter when all before is done
floors/ipi              an interrupt to another CPU that is awake, and its answer; with 2 CPUs or
                        more
floors/page_zero        zeroing a page in the cache
floors/page_copy        copying a page in the cache
floors/word_by_pointer  reading a word of a page whose address is known
floors/word_by_mapping  the same by an ephemeral mapping
floors/memcpy_cached    copying from page to page in the cache
floors/memcpy_uncached  copying from page to page that no cache has",
    run,
};

/// The rows in their order, and how many CPUs each needs.
const ROWS: &[(&str, usize)] = &[
    ("trap", 1),
    ("page_fault", 1),
    ("system_call", 1),
    ("int_80", 1),
    ("invlpg", 1),
    ("invlpg_refill", 1),
    ("tlb_flush", 1),
    ("space_switch", 1),
    ("lock", 1),
    ("clock", 1),
    ("ipi", 2),
    ("page_zero", 1),
    ("page_copy", 1),
    ("word_by_pointer", 1),
    ("word_by_mapping", 1),
    ("memcpy_cached", 1),
    ("memcpy_uncached", 1),
];

const FILE: &str = "/proc/causeway/hw_cost";

fn run(bench: &mut Bench) -> Result<(), Failure> {
    let text =
        fs::read_to_string(FILE).map_err(|error| Failure::Missing(format!("{FILE}: {error}")));
    for &(name, cpus) in ROWS {
        let floor = text.as_ref().map_err(Clone::clone).and_then(|text| {
            find(text, name).ok_or_else(|| Failure::Error(format!("{FILE} has no {name}")))
        });
        let unit = floor.as_ref().map_or(Unit::Nanoseconds, |floor| floor.1);
        bench
            .row(format!("floors/{name}"))
            .cpus(cpus)
            .unit(unit)
            .value(floor.map(|floor| floor.0))?;
    }
    Ok(())
}

/// Returns the value on the line of this name.
fn find(text: &str, name: &str) -> Option<(f64, Unit)> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        if words.next()? != name {
            return None;
        }
        let value = words.next()?.parse().ok()?;
        let unit = match words.next()? {
            "ns" => Unit::Nanoseconds,
            "MiB/s" => Unit::MebibytesPerSecond,
            _ => return None,
        };
        Some((value, unit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        let text = "trap 812.4 ns\nmemcpy_cached 10240 MiB/s\nodd x ns\nodder 1 mile\n";
        assert_eq!(find(text, "trap"), Some((812.4, Unit::Nanoseconds)));
        let rate = Some((10240.0, Unit::MebibytesPerSecond));
        assert_eq!(find(text, "memcpy_cached"), rate);
        for none in ["tra", "odd", "odder", "memcpy"] {
            assert_eq!(find(text, none), None, "{none}");
        }
    }
}
