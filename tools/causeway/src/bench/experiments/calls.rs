//! System calls by themselves.

use super::{Figure, Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "calls",
    title: "System calls",
    paper: Paper::Basics,
    see: "The way into the kernel and out again, and nothing else. The floor is the bare pair of instructions.",
    floors: &[("", "system_call")],
    figures: &[Figure::Dots {
        title: "One call",
        rows: &[
            ("no such call", "calls/null"),
            ("getpid", "calls/getpid"),
            ("getppid", "calls/getppid"),
        ],
    }],
    ..Place::EMPTY
};
