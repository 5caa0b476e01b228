//! Threads made, run and joined.

use super::{Figure, Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "threads",
    title: "Threads made and joined",
    paper: Paper::Basics,
    see: "A stack mapped, a thread made, run, ended, and waited for.",
    floors: &[("", "system_call")],
    figures: &[Figure::Dots {
        title: "A thread",
        rows: &[
            ("one, on its maker’s CPU", "threads/create-join"),
            ("one, on any CPU", "threads/create-join-free"),
            ("one of eight at once", "threads/create-join-8"),
        ],
    }],
    ..Place::EMPTY
};
