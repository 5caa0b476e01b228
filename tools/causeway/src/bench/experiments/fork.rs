//! Fork and wait with more and more memory: the paper's Figure 6.

use super::{Figure, Panel, Paper, Place, Published, Values};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "fork",
    title: "Fork and wait, with more and more memory",
    paper: Paper::Uvm,
    section: "section 8, Figure 6",
    see: "Where page tables are shared until the first write, the time of a fork does not grow with memory that was \
          written before. What the child writes is copied by any kernel.",
    figures: &[Figure::Curves {
        x_label: "bytes of the parent’s memory",
        across: Across::Bytes,
        panels: &[
            panel("Written before, untouched by the child", "fork/{}-written"),
            panel("Each page written by the child", "fork/{}-child-writes"),
            panel(
                "Each page written by the parent after it",
                "fork/{}-rewritten",
            ),
            panel("Mapped and never touched", "fork/{}"),
        ],
    }],
    published: &[Published {
        place: "Figure 6",
        title: "fork-and-wait overhead under BSD VM and UVM",
        values: Values::Words,
        note: "A 333 MHz Pentium II, averaged over 10,000 cycles. The figure’s data is not in the paper’s text, so no curve of it is \
               drawn here: its upper two curves (the child writes its memory once) and its lower two (the child does not \
               touch it) show UVM below BSD VM in both cases.",
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
