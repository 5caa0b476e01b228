//! Pipes: the paper's Figures 2 and 3.

use super::{Figure, Gain, Panel, Paper, Place, Published, Values};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "pipe",
    title: "Pipes",
    paper: Paper::Ephemeral,
    section: "section 6.3, Figures 2 and 3",
    see: "Small messages cost calls and switches. Large ones would cost two copies: where pages are loaned and transferred instead, the curve \
          rises past the bare copy, and the place where the two cross is where moving pages begins to pay.",
    floors: &[
        ("bandwidth", "memcpy_cached"),
        ("latency", "system_call"),
        ("create-close", "system_call"),
    ],
    figures: &[Figure::Curves {
        x_label: "bytes a write",
        across: Across::Bytes,
        panels: &[
            panel("Both programs on one CPU", "pipe/bandwidth-{}"),
            panel("On two CPUs", "pipe/bandwidth-{}-2cpu"),
            panel(
                "Buffers not aligned to pages",
                "pipe/bandwidth-{}-unaligned",
            ),
            panel("Data that nobody looks at", "pipe/bandwidth-{}-untouched"),
        ],
    }],
    published: &[Published {
        place: "Figure 2",
        title: "pipe bandwidth, the sf_buf kernel in the original one",
        values: Values::Gains {
            what: "Pipe bandwidth",
            items: &[
                gain("Xeon, one CPU", 1.67),
                gain("Xeon, hyper-threading", 2.29),
                gain("Xeon, two CPUs", 2.68),
                gain("Xeon, two CPUs, hyper-threading", 2.13),
                gain("Opteron, two CPUs", 1.22),
            ],
            here: &[
                ("one CPU", "pipe/bandwidth-64KiB", "ephemeral=uncached"),
                (
                    "two CPUs",
                    "pipe/bandwidth-64KiB-2cpu",
                    "ephemeral=uncached",
                ),
            ],
        },
        note: "lmbench’s bw_pipe: 50 MB in chunks of 64 KB. The text gives the gains; the figures’ bandwidths and the counts of Figure 3 are \
               not in it, only that the sf_buf kernel issues no TLB invalidation, local or remote.",
    }],
    ..Place::EMPTY
};

const fn panel(title: &'static str, rows: &'static str) -> Panel {
    Panel {
        title,
        rows,
        floor: "memcpy_cached",
    }
}

const fn gain(label: &'static str, times: f64) -> Gain {
    Gain {
        label,
        least: times,
        most: times,
    }
}
