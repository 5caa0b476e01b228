//! `/proc/causeway/spaces`: small spaces.
//!
//! The switch's value, which may be changed; a line per group of small spaces (`group 0 user 1000
//! region 256M regions 4 in_use 2 cpus 0x1`); switches of the address space with and without a load
//! of a root, and with and without a flush; why small spaces became large.

use fs::pseudofs::{Entry, Text};
use nucleus::{counters::Counter, pmap};

use super::super::shown;
use super::causeway::changeable;
use crate::switches;

/// The file, and the switch of the command line.
pub const NAME: &str = "spaces";

pub fn file() -> Entry {
    let file = shown(show);
    match switches::find(NAME) {
        Some(switch) => changeable(file, switch),
        None => file,
    }
}

/// Why small spaces became large.
const PROMOTIONS: [(&str, Counter); 5] = [
    ("mapping", Counter::promotions_mapping),
    ("fixed", Counter::promotions_fixed),
    ("access", Counter::promotions_access),
    ("segments", Counter::promotions_segments),
    ("user", Counter::promotions_user),
];

fn show(out: &mut Text) {
    if let Some(switch) = switches::find(NAME) {
        writeln!(out, "mode {}", switch.show());
    }
    writeln!(out, "region {}M", pmap::region() >> 20);
    let mut next = 0;
    while let Some((number, group)) = pmap::group_from(next) {
        let [regions, in_use] = group.regions;
        writeln!(
            out,
            "group {number} user {} region {}M regions {regions} in_use {in_use} cpus {:#x}",
            group.user,
            group.region >> 20,
            group.loaded,
        );
        next = number + 1;
    }
    let loaded = Counter::space_switches.total();
    let kept = Counter::space_switches_kept.total();
    let stayed = Counter::small_switches.total();
    writeln!(out, "switches_with_load {loaded}");
    writeln!(out, "switches_without_load {stayed}");
    writeln!(out, "switches_with_flush {}", loaded.saturating_sub(kept));
    writeln!(out, "switches_without_flush {}", kept + stayed);
    writeln!(out, "joins {}", Counter::small_joins.total());
    for (why, counter) in PROMOTIONS {
        writeln!(out, "promotions_{why} {}", counter.total());
    }
    writeln!(out, "segments_turned {}", Counter::segments_turned.total());
}
