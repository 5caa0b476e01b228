//! IOTLB flushes while processes come and go: the paper's Figures 8 to 14.

use super::{Compared, Gain, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "iotlb",
    title: "Devices kept off page tables",
    paper: Paper::Iosup,
    section: "section 7",
    see: "Each page that becomes a page table has to leave the devices' domain, which flushes the IOTLB; pages kept ready outside need no flush.",
    is_here: false,
    published: &[
        Published {
            place: "Figure 8",
            title: "frequency of IOTLB flushes",
            values: Values::Words,
            note: "The figure’s data is not in the text. With 542 processes made and ended a minute, flushes without the cache rise and stay high after \
                   five minutes; with it they drop to zero and stay there. At most 250 pages are kept ready, 210 where the cache is switched on later.",
        },
        Published {
            place: "Figure 9",
            title: "CPU time for allocating and freeing page tables, in that without the cache",
            values: Values::List {
                unit: "×",
                items: &[
                    ("allocation (45.1% less)", 0.549, ""),
                    ("freeing (70.9% less)", 0.291, ""),
                ],
            },
            note: "An Intel Core i5-3470 at 3.2 GHz with Xen 4.2.1. Measured here, the rows will stand beside.",
        },
        Published {
            place: "Figure 13",
            title: "lmbench’s fork+exit",
            values: Values::Gains {
                what: "Forks a second",
                items: &[Gain {
                    label: "fork+exit (344 µs, 11% less time)",
                    least: 1.0 / 0.89,
                    most: 1.0 / 0.89,
                }],
                here: &[
                    ("fork, no memory", "fork/0MiB", "ptcache=off"),
                    (
                        "fork, 1 MiB written by the child",
                        "fork/1MiB-child-writes",
                        "ptcache=off",
                    ),
                ],
            },
            note: "With the cache switched on later, in that without it. The figure’s other commands (fork+execve, fork+/bin/sh -c) have no numbers in the \
                   text. Here there is no IOMMU yet: the cache saves only making and clearing the tables.",
        },
        Published {
            place: "Figure 14",
            title: "netperf throughput",
            values: Values::Compared {
                unit: "Mbit/s",
                old: "cache disabled",
                new: "cache enabled",
                items: &[Compared {
                    label: "average of 30 runs",
                    old: 87.903,
                    new: 87.927,
                    row: "",
                }],
            },
            note: "Ranges 87.880 to 87.950 and 87.880 to 88.010: no difference. \
                   SPECint’s largest difference is 0.42%.",
        },
    ],
    ..Place::EMPTY
};
