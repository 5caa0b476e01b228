//! Pages loaned instead of copied: the numbers of the paper's section 7.

use super::{Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "loan",
    title: "Page loanout",
    paper: Paper::Uvm,
    section: "section 7",
    see: "A page that is loaned is write-protected where it came from and read where it goes: beyond some size that costs less than \
          the copy.",
    is_here: false,
    published: &[Published {
        place: "section 7",
        title: "page loanout to the networking subsystem, time in that of a copy",
        values: Values::List {
            unit: "×",
            items: &[
                ("1 page (26% less time)", 0.74, "loan/socket-1-page"),
                ("256 pages (78% less time)", 0.22, "loan/socket-256-pages"),
            ],
        },
        note: "The paper calls these measurements preliminary, and has no table of them.",
    }],
    ..Place::EMPTY
};
