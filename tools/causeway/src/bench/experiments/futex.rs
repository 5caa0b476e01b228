//! Futexes: with nothing to do, and with a side to wake.

use super::{Figure, Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "futex",
    title: "Futexes",
    paper: Paper::Basics,
    see: "A wake that finds nobody is a call and a look at a queue; one that finds a sleeper is a switch, or an interrupt to the CPU \
          where it slept.",
    floors: &[
        ("threads-other", "ipi"),
        ("processes-other", "ipi"),
        ("processes-same", "space_switch"),
        ("mutex-other", ""),
        ("", "system_call"),
    ],
    figures: &[Figure::Dots {
        title: "A wake and a sleep",
        rows: &[
            ("nobody sleeps", "futex/wake-nobody"),
            ("the value has changed", "futex/wait-changed"),
            ("two threads, one CPU", "futex/threads-same"),
            ("two processes, one CPU", "futex/processes-same"),
            ("two threads, two CPUs", "futex/threads-other"),
            ("two processes, two CPUs", "futex/processes-other"),
            ("16 at once, each", "futex/wake-16"),
        ],
    }],
    ..Place::EMPTY
};
