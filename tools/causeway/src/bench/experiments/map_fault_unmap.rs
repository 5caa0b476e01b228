//! A page mapped, faulted in and unmapped: the paper's Table 3.

use super::{Compared, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "map-fault-unmap",
    title: "Map a page, fault it in, unmap it",
    paper: Paper::Uvm,
    section: "section 8, Table 3",
    see: "The cost of one page's whole life in an address space. What lies above the floor of a bare page fault is \
          bookkeeping: two calls, the map's entry, the object, the page table.",
    floors: &[("untouched", "system_call"), ("", "page_fault")],
    published: &[Published {
        place: "Table 3",
        title: "single page map-fault-unmap time",
        values: Values::Compared {
            unit: "µs",
            old: "BSD VM",
            new: "UVM",
            items: &[
                case(
                    "read/shared file",
                    24.0,
                    21.0,
                    "map-fault-unmap/read-shared-file",
                ),
                case(
                    "read/private file",
                    48.0,
                    22.0,
                    "map-fault-unmap/read-private-file",
                ),
                case(
                    "write/shared file",
                    113.0,
                    100.0,
                    "map-fault-unmap/write-shared-file",
                ),
                case(
                    "write/private file",
                    80.0,
                    67.0,
                    "map-fault-unmap/write-private-file",
                ),
                case(
                    "read/zero fill",
                    60.0,
                    49.0,
                    "map-fault-unmap/read-zero-fill",
                ),
                case(
                    "write/zero fill",
                    60.0,
                    48.0,
                    "map-fault-unmap/write-zero-fill",
                ),
            ],
        },
        note: "The paper: a 333 MHz Pentium II, averaged over a million cycles.",
    }],
    ..Place::EMPTY
};

const fn case(label: &'static str, old: f64, new: f64, row: &'static str) -> Compared {
    Compared {
        label,
        old,
        new,
        row,
    }
}
