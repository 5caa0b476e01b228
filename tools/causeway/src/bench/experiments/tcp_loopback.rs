//! TCP between two programs of one machine: the paper's Figures 11 to 14.

use super::{Figure, Gain, Panel, Paper, Place, Published, Values};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "tcp-loopback",
    title: "TCP by loopback",
    paper: Paper::Ephemeral,
    section: "section 6.5.1, Figures 11 to 14",
    see: "Protocol work for each segment, and a copy in and out where pages are not loaned.",
    floors: &[("bandwidth", "memcpy_cached"), ("latency", "system_call")],
    figures: &[Figure::Curves {
        x_label: "bytes a write",
        across: Across::Bytes,
        panels: &[
            Panel {
                title: "Both programs on one CPU",
                rows: "tcp-loopback/bandwidth-{}",
                floor: "memcpy_cached",
            },
            Panel {
                title: "On two CPUs",
                rows: "tcp-loopback/bandwidth-{}-2cpu",
                floor: "memcpy_cached",
            },
        ],
    }],
    published: &[Published {
        place: "Figures 11 and 12",
        title: "netperf throughput, the sf_buf kernel in the original one",
        values: Values::Gains {
            what: "Throughput",
            items: &[Gain {
                label: "all machines, MTU of 1,500 bytes and of 16 KB",
                least: 1.04,
                most: 1.34,
            }],
            here: &[
                (
                    "one CPU",
                    "tcp-loopback/bandwidth-64KiB",
                    "ephemeral=uncached",
                ),
                (
                    "two CPUs",
                    "tcp-loopback/bandwidth-64KiB-2cpu",
                    "ephemeral=uncached",
                ),
            ],
        },
        note: "Client and server on one machine, socket buffers of 64 KB, zero-copy send. The text gives one span for all; the gain is higher with the \
               larger MTU. The figures’ throughputs and counts are not in it.",
    }],
    ..Place::EMPTY
};
