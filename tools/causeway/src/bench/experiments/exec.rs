//! Programs started: fork, vfork, posix_spawn and exec.

use super::{Figure, Paper, Place, Published, Values};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "exec",
    title: "Starting a program",
    paper: Paper::Uvm,
    section: "section 8",
    see: "A fork copies maps that exec throws away at once; vfork and posix_spawn spare it. What is left is the new address space: \
          its entries, its first faults, its end.",
    floors: &[("", "page_fault")],
    figures: &[
        Figure::Dots {
            title: "A program that only exits",
            rows: &[
                ("fork and exec", "exec/fork-least"),
                ("vfork and exec", "exec/vfork-least"),
                ("posix_spawn", "exec/spawn-least"),
            ],
        },
        Figure::Dots {
            title: "A real, static program",
            rows: &[
                ("fork and exec", "exec/fork-static"),
                ("vfork and exec", "exec/vfork-static"),
                ("posix_spawn", "exec/spawn-static"),
                ("exec alone", "exec/again-static"),
            ],
        },
    ],
    published: &[Published {
        place: "section 8",
        title: "programs as they are used",
        values: Values::Words,
        note: "The paper’s only number is the start of the system on a VAX: /etc/rc took ten percent, ten seconds, less.",
    }],
    ..Place::EMPTY
};
