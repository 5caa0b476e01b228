//! Calls that change an address space.

use super::{Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "memory-calls",
    title: "Calls about memory",
    paper: Paper::Uvm,
    section: "sections 3 and 5",
    see: "Mapping, populating, giving up, moving, locking and splitting: per page where pages are touched, \
          per entry where only the map changes.",
    reasons: &[(
        "memory-calls/move-1MiB",
        "mremap takes the mappings away and the pages come back by six faults, each page with its reverse mapping linked anew; Linux moves the page-table entries. A single page moves in a quarter of Linux's instructions.",
    )],
    ..Place::EMPTY
};
