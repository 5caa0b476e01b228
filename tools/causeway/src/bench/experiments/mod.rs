//! Where each of the guest's experiments stands in the table and in the report: one file an experiment, one
//! line in [`PLACES`].
//!
//! An experiment without a place is shown all the same, at the end and under its own name.

/// What an experiment belongs to, in the report's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Paper {
    /// What the bare machine takes: no kernel can be below.
    Floors,
    /// Calls, signals, switches: what every program pays.
    Basics,
    /// `uvm.txt`: the virtual-memory system.
    Uvm,
    /// `ephemeral-mappings.txt`: short-lived kernel mappings.
    Ephemeral,
    /// `fbufs.txt`: data across domains.
    Fbufs,
    /// `small-spaces.txt`: cheap switches of the address space.
    SmallSpaces,
    /// `iosup.txt`: devices kept off page tables.
    Iosup,
}

impl Paper {
    /// The heading of its part.
    pub fn title(self) -> &'static str {
        match self {
            Self::Floors => "Floors: what the bare machine takes",
            Self::Basics => "Calls, signals, switches",
            Self::Uvm => "The UVM virtual memory system",
            Self::Ephemeral => "Ephemeral mappings",
            Self::Fbufs => "Fbufs: data across domains",
            Self::SmallSpaces => "Small address spaces",
            Self::Iosup => "Page types and the I/O memory unit",
        }
    }
}

/// An experiment's place.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The experiment's name in the guest.
    pub name: &'static str,
    /// Its heading.
    pub title: &'static str,
    /// What it belongs to.
    pub paper: Paper,
    /// The paper's section or table that it repeats; empty for what no paper has.
    pub section: &'static str,
    /// What a reader should look at.
    pub see: &'static str,
    /// Which floor a row is held against: the beginning of a variant, and the name in
    /// `/proc/causeway/floors`. The first that fits counts; an empty beginning fits all.
    pub floors: &'static [(&'static str, &'static str)],
}

/// Every place, in the order of the report.
pub const PLACES: &[&Place] = &[];

/// The place of an experiment.
pub fn place(experiment: &str) -> Option<&'static Place> {
    PLACES
        .iter()
        .copied()
        .find(|place| place.name == experiment)
}

/// The name of the floor that a row is held against.
pub fn floor_of(row: &str) -> Option<&'static str> {
    let (experiment, variant) = row.split_once('/')?;
    let mut floors = place(experiment)?.floors.iter();
    floors
        .find(|(start, _)| variant.starts_with(start))
        .map(|(_, floor)| *floor)
}

/// Where a row stands: its paper, and its experiment's number there; what has no place comes last.
pub fn order(experiment: &str) -> (Option<Paper>, usize) {
    let at = PLACES.iter().position(|place| place.name == experiment);
    (at.map(|at| PLACES[at].paper), at.unwrap_or(usize::MAX))
}
