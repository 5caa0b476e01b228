//! Switches between processes and between threads.

use super::{Figure, Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "switches",
    title: "Switches between processes and threads",
    paper: Paper::Basics,
    see: "Between processes the address space changes, which empties what the TLB holds without a tag; between threads it does not. Across \
          CPUs an interrupt wakes the other side.",
    floors: &[
        ("processes-2-same", "space_switch"),
        ("processes-8-same", "space_switch"),
        ("processes-2-other", "ipi"),
        ("processes-8-other", "ipi"),
        ("threads-2-other", "ipi"),
        ("threads-8-other", "ipi"),
        ("yield-process", "space_switch"),
        ("", "system_call"),
    ],
    figures: &[
        Figure::Dots {
            title: "One step of a token round a ring of pipes",
            rows: &[
                ("2 threads, one CPU", "switches/threads-2-same"),
                ("8 threads, one CPU", "switches/threads-8-same"),
                ("2 processes, one CPU", "switches/processes-2-same"),
                ("8 processes, one CPU", "switches/processes-8-same"),
                ("2 threads, two CPUs", "switches/threads-2-other"),
                ("2 processes, two CPUs", "switches/processes-2-other"),
            ],
        },
        Figure::Dots {
            title: "sched_yield",
            rows: &[
                ("nobody else", "switches/yield-alone"),
                ("to a thread", "switches/yield-thread"),
                ("to a process", "switches/yield-process"),
            ],
        },
    ],
    ..Place::EMPTY
};
