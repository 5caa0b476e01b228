//! The kernel's counters, under the names of Causeway's `/proc/causeway/counters`.
//!
//! Linux counts some of the same things elsewhere; these are given under Causeway's names where
//! they mean the same:
//!
//! | name | on Linux |
//! |---|---|
//! | `page_faults` | `pgfault` in `/proc/vmstat`; on Causeway the sum of its kinds of fault |
//! | `task_switches` | `ctxt` in `/proc/stat` |
//! | `forks` | `processes` in `/proc/stat`, threads included |
//! | `interrupts_timer` | the line `LOC` of `/proc/interrupts` |
//! | `interrupts_reschedule` | the line `RES` |
//! | `interrupts_shootdown` | the line `TLB` |
//! | `interrupts_call` | the line `CAL`: calls of functions on other CPUs, not used by Causeway |
//! | `tlb_local_page` | `nr_tlb_local_flush_one` in `/proc/vmstat`, if Linux is built with it |
//! | `tlb_local_full` | `nr_tlb_local_flush_all`, likewise |
//! | `tlb_remote` | `nr_tlb_remote_flush`, likewise |

use std::collections::BTreeMap;
use std::fs;

/// Below this a count is noise: a timer interrupt, reading the clock.
const LEAST: f64 = 0.000_5;

/// Counters by name: totals, differences, or what one operation costs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counts(BTreeMap<String, f64>);

impl Counts {
    /// Makes counters with these values.
    pub fn of(values: &[(&str, f64)]) -> Self {
        let named = |&(name, value): &(&str, f64)| (name.to_owned(), value);
        Self(values.iter().map(named).collect())
    }

    /// Reads the totals now; empty where the kernel has no counters.
    pub fn now() -> Self {
        match fs::read_to_string("/proc/causeway/counters") {
            Ok(text) => Self::causeway(&text),
            Err(_) => {
                let read = |path| fs::read_to_string(path).unwrap_or_default();
                Self::linux(
                    &read("/proc/interrupts"),
                    &read("/proc/vmstat"),
                    &read("/proc/stat"),
                )
            }
        }
    }

    /// Returns one counter, or 0 if there is none of this name.
    pub fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// Returns the counters that are not zero, by name.
    pub fn nonzero(&self) -> impl Iterator<Item = (&str, f64)> {
        let all = self.0.iter().map(|(name, value)| (name.as_str(), *value));
        all.filter(|(_, value)| value.abs() >= LEAST)
    }

    /// Returns the increase since `before`, less `looking`, the cost of reading the counters.
    #[must_use]
    pub fn since(&self, before: &Self, looking: &Self) -> Self {
        self.map(|name, value| (value - before.get(name) - looking.get(name)).max(0.0))
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        let mut sum = self.clone();
        for (name, value) in &more.0 {
            *sum.0.entry(name.clone()).or_default() += value;
        }
        sum
    }

    /// Returns the cost of one of so many operations.
    #[must_use]
    pub fn per(&self, operations: u64) -> Self {
        self.map(|_, value| value / operations.max(1) as f64)
    }

    fn map(&self, change: impl Fn(&str, f64) -> f64) -> Self {
        let changed = self
            .0
            .iter()
            .map(|(name, value)| (name.clone(), change(name, *value)));
        Self(changed.collect())
    }

    /// Parses Causeway's own file: `name value`, a line each.
    fn causeway(text: &str) -> Self {
        let mut counts = Self(text.lines().filter_map(pair).collect());
        // Linux counts spurious, failing and pager faults, too; their side effects (reading the
        // file, mapping ahead) are not faults of their own.
        let kinds = [
            "fault_object",
            "fault_anon",
            "fault_zero_fill",
            "fault_promote",
            "fault_copy",
            "fault_in_place",
            "fault_spurious",
            "fault_pager",
            "fault_error",
        ];
        let faults = kinds.iter().map(|kind| counts.get(kind)).sum();
        counts.0.insert("page_faults".into(), faults);
        counts
    }

    /// Parses Linux's files.
    fn linux(interrupts: &str, vmstat: &str, stat: &str) -> Self {
        let mut counts = Self::default();
        for line in interrupts.lines() {
            let mut words = line.split_whitespace();
            let name = match words.next() {
                Some("LOC:") => "interrupts_timer",
                Some("RES:") => "interrupts_reschedule",
                Some("TLB:") => "interrupts_shootdown",
                Some("CAL:") => "interrupts_call",
                _ => continue,
            };
            // A number for each CPU, then a description.
            let sum = words.map_while(|word| word.parse::<f64>().ok()).sum();
            counts.0.insert(name.into(), sum);
        }
        for (text, theirs, ours) in [
            (vmstat, "pgfault", "page_faults"),
            (vmstat, "nr_tlb_local_flush_one", "tlb_local_page"),
            (vmstat, "nr_tlb_local_flush_all", "tlb_local_full"),
            (vmstat, "nr_tlb_remote_flush", "tlb_remote"),
            (stat, "ctxt", "task_switches"),
            (stat, "processes", "forks"),
        ] {
            let found = text
                .lines()
                .filter_map(pair)
                .find(|(name, _)| name == theirs);
            if let Some((_, value)) = found {
                counts.0.insert(ours.into(), value);
            }
        }
        counts
    }
}

/// Parses a line `name value`.
fn pair(line: &str) -> Option<(String, f64)> {
    let (name, value) = line.trim().split_once(' ')?;
    Some((name.to_owned(), value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causeways_counters_keep_their_names() {
        let counts = Counts::causeway("tlb_remote 3\nfault_zero_fill 40\nfault_object 2\nodd\n");
        assert_eq!(counts.get("tlb_remote"), 3.0);
        assert_eq!(counts.get("page_faults"), 42.0);
        assert_eq!(counts.get("odd"), 0.0);
    }

    #[test]
    fn linuxs_counters_get_causeways_names() {
        let interrupts = "           CPU0       CPU1\n 24:  7 8 PCI-MSI virtio\n\
            LOC:      10         20   Local timer interrupts\n RES: 1 2 Rescheduling interrupts\n\
            TLB:  5 6   TLB shootdowns\n CAL: 3 3 Function call interrupts\n";
        let vmstat = "nr_free_pages 5\npgfault 77\n";
        let stat = "cpu 1 2 3\nctxt 99\nprocesses 12\n";
        let counts = Counts::linux(interrupts, vmstat, stat);
        let expected = Counts::of(&[
            ("interrupts_timer", 30.0),
            ("interrupts_reschedule", 3.0),
            ("interrupts_shootdown", 11.0),
            ("interrupts_call", 6.0),
            ("page_faults", 77.0),
            ("task_switches", 99.0),
            ("forks", 12.0),
        ]);
        assert_eq!(counts, expected);
    }

    #[test]
    fn looking_is_taken_off_and_small_change_is_not_shown() {
        let before = Counts::of(&[("system_calls", 10.0), ("forks", 1.0), ("tlb_remote", 0.0)]);
        let after = Counts::of(&[
            ("system_calls", 1013.0),
            ("forks", 1.0),
            ("tlb_remote", 0.3),
        ]);
        let looking = Counts::of(&[("system_calls", 3.0), ("forks", 1.0)]);
        let counts = after.since(&before, &looking).per(1000);
        assert_eq!(
            counts.nonzero().collect::<Vec<_>>(),
            [("system_calls", 1.0)]
        );
    }
}
