//! A web server: the paper's Figures 15 to 20.

use super::{Gain, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "web-server",
    title: "A web server",
    paper: Paper::Ephemeral,
    section: "section 6.5.2, Figures 15 to 20",
    see: "Files that go out by sendfile are mapped for a moment, or not at all where the card sums the packets itself.",
    is_here: true,
    published: &[Published {
        place: "Figures 15 and 16",
        title: "web server throughput, the sf_buf kernel in the original one",
        values: Values::Gains {
            what: "Throughput",
            items: &[
                gain("Opteron, NASA workload (about)", 1.06),
                gain("Opteron, Rice workload (about)", 1.14),
                gain("Xeons (up to about)", 1.07),
            ],
            here: &[],
        },
        note: "Apache 2.0.50, 30 clients on another machine, gigabit Ethernet; footprints of 258.7 MB (NASA) and 1.1 GB (Rice). With the cache \
               of mappings reduced from 64K entries to 6K its hit rate falls from nearly 100% to about 82%, and the throughput hardly. The \
               figures’ throughputs and counts are not in the text.",
    }],
    ..Place::EMPTY
};

const fn gain(label: &'static str, times: f64) -> Gain {
    Gain {
        label,
        least: times,
        most: times,
    }
}
