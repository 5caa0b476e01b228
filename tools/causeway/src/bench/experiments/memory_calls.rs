//! Calls that change an address space.

use super::{Paper, Place};

/// Where it stands.
pub const PLACE: Place = Place {
    name: "memory-calls",
    title: "Calls about memory",
    paper: Paper::Uvm,
    section: "sections 3 and 5",
    see: "Mapping, populating, giving up, moving, locking and splitting: per page where pages are touched, \
          per entry where only the map changes.",
    ..Place::EMPTY
};
