//! The bare machine's costs, as rows of their own.

use super::{Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "floors",
    title: "What the bare machine takes",
    paper: Paper::Floors,
    see: "Measured by the kernel with interrupts off, the cheapest way of each.",
    ..Place::EMPTY
};
