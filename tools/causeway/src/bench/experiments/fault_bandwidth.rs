//! Faults by several threads at once.

use super::{Figure, Panel, Paper, Place};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "fault-bandwidth",
    title: "Faults by one, two and four threads",
    paper: Paper::Uvm,
    section: "section 5.4",
    see: "Threads that fault in one mapping should lose nothing against threads with mappings of their own: what they share \
          must not be held while a page is zeroed.",
    figures: &[Figure::Curves {
        x_label: "threads, a CPU each",
        across: Across::Count,
        panels: &[
            panel("One mapping for all", "fault-bandwidth/one-mapping-{}"),
            panel("A mapping for each", "fault-bandwidth/separate-mappings-{}"),
            panel("The same pages of a file", "fault-bandwidth/one-file-{}"),
            panel("Where large pages may be used", "fault-bandwidth/large-{}"),
        ],
    }],
    ..Place::EMPTY
};

const fn panel(title: &'static str, rows: &'static str) -> Panel {
    Panel {
        title,
        rows,
        floor: "",
    }
}
