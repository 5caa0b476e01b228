//! UDP between two programs of one machine: the paper's Figure 4.

use super::{Figure, Panel, Paper, Place, Published, Values};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "udp-loopback",
    title: "UDP by loopback",
    paper: Paper::Fbufs,
    section: "section 4, Figures 4 to 6",
    see: "Protocol work for each datagram, one crossing in and one out.",
    floors: &[("bandwidth", "memcpy_cached"), ("latency", "system_call")],
    figures: &[Figure::Curves {
        x_label: "bytes a datagram",
        across: Across::Bytes,
        panels: &[
            Panel {
                title: "Both programs on one CPU",
                rows: "udp-loopback/bandwidth-{}",
                floor: "memcpy_cached",
            },
            Panel {
                title: "On two CPUs",
                rows: "udp-loopback/bandwidth-{}-2cpu",
                floor: "memcpy_cached",
            },
        ],
    }],
    published: &[
        Published {
            place: "Figure 4",
            title: "throughput of a UDP/IP local loopback test",
            values: Values::Words,
            note: "The figure’s data is not in the text. It says that cached fbufs have more than twice the throughput of uncached ones at every \
                   message size, and from 64 KB on more than 90% of that of a path that crosses no boundary.",
        },
        Published {
            place: "Figures 5 and 6",
            title: "UDP/IP throughput between two machines, at most",
            values: Values::List {
                unit: "Mbit/s",
                items: &[
                    ("cached, volatile fbufs", 285.0, ""),
                    ("uncached, non-volatile fbufs, user to user", 225.0, ""),
                    ("the link, without its cells’ overhead", 516.0, ""),
                ],
            },
            note: "Two DecStation 5000/200 with Osiris boards; the bus limits the first. Receiving 1 MB messages loads the CPU by 88% with cached \
                   fbufs and saturates it without. The curves’ other points are not in the text.",
        },
    ],
    ..Place::EMPTY
};
