//! Ping-pong between two address spaces: the paper's first figures.

use super::{Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "small-spaces",
    title: "Ping-pong between small spaces",
    paper: Paper::SmallSpaces,
    section: "sections 3 and 4",
    see: "A switch between two small spaces changes segment bases and leaves the TLB as it is; the more pages each side uses, the more that saves.",
    is_here: false,
    published: &[Published {
        place: "sections 3 and 4",
        title: "round trips over working sets, system calls, servers",
        values: Values::Words,
        note: "The paper’s text as it is kept with this project has no numbers, so nothing of its figures and tables can be drawn. It measures, on a \
               Pentium 4: round trips between address spaces over working sets of trace cache, ITLB and DTLB; Linux system calls on L4Linux; pipes; \
               cat | wc; an X server; web servers with FastCGI; MySQL; Doom; compiling; and a network driver with its protocol stack.",
    }],
    ..Place::EMPTY
};
