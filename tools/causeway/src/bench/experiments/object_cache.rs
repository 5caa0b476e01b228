//! Files mapped again and again: the paper's Figure 2.

use super::{Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "object-cache",
    title: "Mapping more and more files",
    paper: Paper::Uvm,
    section: "section 4, Figure 2",
    see: "One cache of unreferenced files has no limit of its own: a file stays as long as its vnode does.",
    is_here: false,
    published: &[Published {
        place: "Figure 2",
        title: "BSD VM object cache effect on file access",
        values: Values::Words,
        note: "A 333 MHz Pentium II. The figure’s data is not in the paper’s text. It says that BSD VM keeps at most one hundred \
               unreferenced objects, and is slowed by the disk beyond that; UVM is not.",
    }],
    ..Place::EMPTY
};
