//! A page that crosses one protection boundary: the paper's Table 1.

use super::{Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "fbuf",
    title: "A page across one boundary",
    paper: Paper::Fbufs,
    section: "section 4, Table 1 and Figure 3",
    see: "A buffer that stays mapped for the next use of its path costs a tenth of one that has to be mapped, protected or cleared.",
    floors: &[("page-", "invlpg")],
    is_here: false,
    published: &[
        Published {
            place: "Table 1",
            title: "incremental per-page costs",
            values: Values::List {
                unit: "µs",
                items: &[
                    ("fbufs, cached/volatile", 3.0, "fbuf/page-cached-volatile"),
                    ("fbufs, volatile", 21.0, "fbuf/page-volatile"),
                    ("fbufs, cached", 29.0, "fbuf/page-cached"),
                    ("fbufs", 37.0, "fbuf/page-plain"),
                    ("Mach COW", 144.0, ""),
                    ("Copy", 316.0, "fbuf/page-copy"),
                ],
            },
            note: "Two DecStation 5000/200 (25 MHz MIPS R3000). Clearing pages, 57 µs each, is not included where pages are not cached.",
        },
        Published {
            place: "Table 1",
            title: "asymptotic throughput",
            values: Values::List {
                unit: "Mbit/s",
                items: &[
                    ("fbufs, cached/volatile", 10_922.0, ""),
                    ("fbufs, volatile", 1_560.0, ""),
                    ("fbufs, cached", 1_130.0, ""),
                    ("fbufs", 886.0, ""),
                    ("Mach COW", 228.0, ""),
                    ("Copy", 104.0, ""),
                ],
            },
            note: "Calculated by the paper from the per-page costs. The curves of its Figure 3, throughput over message size, are not in the text; it says that \
                   Mach’s own transfer is slightly faster than uncached or non-volatile fbufs below 2 KB, and slower than cached, volatile \
                   ones at every size.",
        },
    ],
    ..Place::EMPTY
};
