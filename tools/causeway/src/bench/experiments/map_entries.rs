//! How many entries a map needs: the paper's Table 1.

use super::{Compared, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "map-entries",
    title: "Map entries",
    paper: Paper::Uvm,
    section: "section 3.2, Table 1",
    see: "Fewer entries are found faster. Wiring that is noted elsewhere than in the map does not split them.",
    published: &[Published {
        place: "Table 1",
        title: "allocated map entries",
        values: Values::Compared {
            unit: "entries",
            old: "BSD VM",
            new: "UVM",
            items: &[
                count("cat (static link)", 11.0, 6.0, "map-entries/cat-static"),
                count("od (dynamic link)", 21.0, 12.0, "map-entries/od-dynamic"),
                count("single-user boot", 50.0, 26.0, "map-entries/system"),
                count("multi-user boot (no logins)", 400.0, 242.0, ""),
                count("starting X11 (9 processes)", 275.0, 186.0, ""),
            ],
        },
        note: "The paper: an i386, where an entry has 56 bytes. Here the lines of /proc/PID/maps are counted, and those of all processes \
               of the bench’s own root stand beside the single-user boot.",
    }],
    ..Place::EMPTY
};

const fn count(label: &'static str, old: f64, new: f64, row: &'static str) -> Compared {
    Compared {
        label,
        old,
        new,
        row,
    }
}
