//! Files mapped again and again: the paper's Figure 2.

use super::{Figure, Panel, Paper, Place, Published, Values};
use crate::bench::report::picture::curves::Across;

/// Where it stands.
pub const PLACE: Place = Place {
    name: "object-cache",
    title: "Mapping more and more files",
    paper: Paper::Uvm,
    section: "section 4, Figure 2",
    see: "One cache of unreferenced files has no limit of its own: a file stays as long as its vnode does.",
    disks: true,
    modules: &["virtio_pci", "virtio_blk"],
    figures: &[Figure::Curves {
        x_label: "files",
        across: Across::Count,
        panels: &[
            Panel {
                title: "All mapped and read once",
                rows: "object-cache/map-{}-files",
                floor: "",
            },
            Panel {
                title: "The first time, from the disk",
                rows: "object-cache/first-{}-files",
                floor: "",
            },
        ],
    }],
    published: &[Published {
        place: "Figure 2",
        title: "BSD VM object cache effect on file access",
        values: Values::Words,
        note: "A 333 MHz Pentium II. The figure’s data is not in the paper’s text. It says that BSD VM keeps at most one hundred \
               unreferenced objects, and is slowed by the disk beyond that; UVM is not.",
    }],
    ..Place::EMPTY
};
