//! Where each of the guest's experiments stands in the table and in the report: one file an experiment, one
//! line in [`PLACES`].
//!
//! A file says what a reader should see, which bare cost limits the rows, which figures to draw, and what the
//! paper found, exactly as its text has it. Rows are named by patterns ([`pattern`]); what the results lack is left out
//! of a figure, and an experiment of a paper that they lack altogether is shown as "not yet here". An experiment without
//! a place is shown all the same, at the end and under its own name.

mod calls;
mod disk_dump;
mod exec;
mod fault_ahead;
mod fault_bandwidth;
mod fbuf_transfer;
mod file;
mod floors;
mod fork;
mod futex;
mod iosup;
mod loan;
mod map_entries;
mod map_fault_unmap;
mod memory_calls;
mod memory_pressure;
mod mmap_threads;
mod object_cache;
pub mod pattern;
mod pipe;
mod pipeline;
mod postmark;
mod process_vm;
mod signals;
mod small_spaces;
mod splice;
mod switches;
mod tcp_loopback;
mod threads;
mod udp_loopback;
mod unix_socket;
mod web_server;

use super::report::picture::curves::Across;

/// Every place, in the order of the report.
pub const PLACES: &[&Place] = &[
    &map_fault_unmap::PLACE,
    &fork::PLACE,
    &exec::PLACE,
    &fault_bandwidth::PLACE,
    &fault_ahead::PLACE,
    &map_entries::PLACE,
    &memory_calls::PLACE,
    &memory_pressure::PLACE,
    &object_cache::PLACE,
    &process_vm::PLACE,
    &loan::PLACE,
    &pipe::PLACE,
    &file::PLACE,
    &postmark::PLACE,
    &mmap_threads::PLACE,
    &disk_dump::PLACE,
    &tcp_loopback::PLACE,
    &web_server::PLACE,
    &fbuf_transfer::PLACE,
    &unix_socket::PLACE,
    &splice::PLACE,
    &udp_loopback::PLACE,
    &pipeline::PLACE,
    &small_spaces::PLACE,
    &iosup::PLACE,
    &calls::PLACE,
    &signals::PLACE,
    &switches::PLACE,
    &futex::PLACE,
    &threads::PLACE,
    &floors::PLACE,
];

/// What an experiment belongs to, in the report's order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Paper {
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
    /// Calls, signals, switches: what every program pays.
    Basics,
    /// What the bare machine takes: no kernel can be below.
    Floors,
}

impl Paper {
    /// All, in the report's order.
    pub const ALL: [Self; 7] = [
        Self::Uvm,
        Self::Ephemeral,
        Self::Fbufs,
        Self::SmallSpaces,
        Self::Iosup,
        Self::Basics,
        Self::Floors,
    ];

    /// The heading of its part.
    pub fn title(self) -> &'static str {
        match self {
            Self::Uvm => "The UVM virtual memory system",
            Self::Ephemeral => "Ephemeral mappings",
            Self::Fbufs => "Fbufs: data across domains",
            Self::SmallSpaces => "Small address spaces",
            Self::Iosup => "Page types and the I/O memory unit",
            Self::Basics => "Calls, signals, switches",
            Self::Floors => "Floors: what the bare machine takes",
        }
    }

    /// A word or two for a table of contents.
    pub fn short(self) -> &'static str {
        match self {
            Self::Uvm => "UVM",
            Self::Ephemeral => "Ephemeral mappings",
            Self::Fbufs => "Fbufs",
            Self::SmallSpaces => "Small spaces",
            Self::Iosup => "IOSUP",
            Self::Basics => "Calls and switches",
            Self::Floors => "Floors",
        }
    }

    /// What its part is about.
    pub fn about(self) -> &'static str {
        match self {
            Self::Uvm => {
                "Mapping in one step, copy-on-write without chains, and data that moves between processes by pages \
                 instead of copies. The paper measures it against the BSD system that it replaced; here Linux stands beside it."
            }
            Self::Ephemeral => {
                "Short-lived kernel mappings of pages that cost no TLB invalidation. The paper measures pipes, memory disks \
                 and the network with its mappings kept and shared, and with an address allocated, mapped and invalidated \
                 for every use."
            }
            Self::Fbufs => {
                "Buffers that cross protection domains at one address and stay mapped for the next use of the same path."
            }
            Self::SmallSpaces => {
                "Several small address spaces inside one hardware address space, so that a switch between them flushes nothing."
            }
            Self::Iosup => {
                "Page tables kept ready outside the devices' domain, so that making and ending processes flushes no IOTLB."
            }
            Self::Basics => {
                "What every program pays, whichever memory system lies below: system calls, signals, switches, threads."
            }
            Self::Floors => {
                "Measured by the kernel itself at the same settings. No kernel can be faster than these; each row above is \
                 held against one of them."
            }
        }
    }
}

/// An experiment's place.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The experiment's name in the guest; of a paper's experiment that the guest lacks, any other.
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
    /// Whether the guest has it. One that it lacks is shown with the paper's numbers alone.
    pub is_here: bool,
    /// What to draw of the rows.
    pub figures: &'static [Figure],
    /// The modules of Linux that the rows need, beside those that these need; Causeway has its drivers inside.
    pub modules: &'static [&'static str],
    /// Whether the rows need two empty disks, `vda` for files and `vdb` for swap space.
    pub disks: bool,
    /// What the paper found.
    pub published: &'static [Published],
    /// For patterns of rows that are behind Linux, the reason that was found by looking.
    pub reasons: &'static [(&'static str, &'static str)],
}

impl Place {
    /// One that says nothing, for `..` in the experiments' files.
    pub const EMPTY: Self = Self {
        name: "",
        title: "",
        paper: Paper::Basics,
        section: "",
        see: "",
        floors: &[],
        modules: &[],
        disks: false,
        is_here: true,
        figures: &[],
        published: &[],
        reasons: &[],
    };
}

/// A figure of this bench's rows.
#[derive(Clone, Copy, Debug)]
pub enum Figure {
    /// Values over a size or a count, in one picture a panel.
    Curves {
        x_label: &'static str,
        across: Across,
        panels: &'static [Panel],
    },
    /// Rows of one unit side by side.
    Dots {
        title: &'static str,
        /// A label, and the row's id.
        rows: &'static [(&'static str, &'static str)],
    },
}

/// One picture of curves.
#[derive(Clone, Copy, Debug)]
pub struct Panel {
    pub title: &'static str,
    /// The rows: a pattern with `{}` for what the lower axis counts.
    pub rows: &'static str,
    /// A floor of the rows' unit to draw along, or "".
    pub floor: &'static str,
}

/// A table or figure of a paper, as far as its text has the numbers.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// As the paper calls it: `Table 3`.
    pub place: &'static str,
    pub title: &'static str,
    pub values: Values,
    /// What else a reader must know: the paper's machine, and what its text leaves out.
    pub note: &'static str,
}

/// What a paper's table or figure holds.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Two systems, item by item.
    Compared {
        unit: &'static str,
        old: &'static str,
        new: &'static str,
        items: &'static [Compared],
    },
    /// How many times as high a rate became, item by item.
    Gains {
        /// What rose: `bandwidth`.
        what: &'static str,
        items: &'static [Gain],
        /// The same measured here: a label, the row's id, and the option that switches the mechanism off.
        here: &'static [(&'static str, &'static str, &'static str)],
    },
    /// One number for each of several mechanisms: a label, the number, and the row that measures the same here, or "".
    List {
        unit: &'static str,
        items: &'static [(&'static str, f64, &'static str)],
    },
    /// The text has no numbers to draw; the note says what it has.
    Words,
}

/// An item of two systems.
#[derive(Clone, Copy, Debug)]
pub struct Compared {
    pub label: &'static str,
    pub old: f64,
    pub new: f64,
    /// The row that measures the same here, or "".
    pub row: &'static str,
}

/// A rate that became higher, as parts of what it was: 1.67 for "67% higher".
#[derive(Clone, Copy, Debug)]
pub struct Gain {
    pub label: &'static str,
    pub least: f64,
    /// The same as `least` where the paper has one number.
    pub most: f64,
}

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

/// Why a row is behind Linux, where somebody looked.
pub fn reason_of(row: &str) -> Option<&'static str> {
    let (experiment, _) = row.split_once('/')?;
    let mut reasons = place(experiment)?.reasons.iter();
    reasons
        .find(|(pattern, _)| pattern::fits(pattern, row))
        .map(|(_, reason)| *reason)
}

/// The modules of Linux that these experiments need.
pub fn modules(experiments: &[String]) -> Vec<&'static str> {
    let places = experiments.iter().filter_map(|name| place(name));
    places.flat_map(|place| place.modules).copied().collect()
}

/// Whether some of these experiments need disks.
pub fn need_disks(experiments: &[String]) -> bool {
    let mut places = experiments.iter().filter_map(|name| place(name));
    places.any(|place| place.disks)
}

/// Where a row stands: its paper, and its experiment's number there; what has no place comes last.
pub fn order(experiment: &str) -> (Option<Paper>, usize) {
    let at = PLACES.iter().position(|place| place.name == experiment);
    (at.map(|at| PLACES[at].paper), at.unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_whole() {
        for (count, one) in PLACES.iter().enumerate() {
            let name = one.name;
            assert!(!one.title.is_empty() && !one.see.is_empty(), "{name}");
            assert!(
                PLACES[..count].iter().all(|other| other.name != name),
                "{name} is there twice"
            );
            assert!(
                PLACES[..count].iter().all(|other| other.paper <= one.paper),
                "{name} is out of order"
            );
            for (pattern, _) in one.reasons {
                assert!(
                    pattern.starts_with(&format!("{name}/")),
                    "{pattern} names no row of {name}"
                );
            }
            for figure in one.figures {
                match figure {
                    Figure::Curves { panels, .. } => {
                        for panel in *panels {
                            assert!(
                                panel.rows.contains("{}") && panel.rows.contains('/'),
                                "{}",
                                panel.rows
                            );
                        }
                    }
                    Figure::Dots { rows, .. } => {
                        assert!(rows.iter().all(|(_, row)| row.contains('/')), "{name}");
                    }
                }
            }
        }
    }
}
