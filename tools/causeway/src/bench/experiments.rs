//! The experiments' entries in the table and the report, and the switches: `experiments.toml`.
//!
//! Rows are named by patterns ([`pattern`]). A row that the results lack is left out of a figure;
//! an experiment of a paper that they lack altogether is shown as "not yet here". An experiment
//! without an entry is shown at the end, under its own name.

use std::sync::LazyLock;

use serde::Deserialize;

use super::pattern;
use super::report::picture::curves::Across;

/// The number of pairs of boots with switches off: their effects are large, and each needs boots of
/// its own.
pub const SWITCHED_PAIRS: u32 = 3;

/// The contents of `experiments.toml`, which explains the fields.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Catalogue {
    paper: Vec<Paper>,
    switch: Vec<Switch>,
}

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| {
    toml::from_str(include_str!("experiments.toml")).unwrap_or_else(|error| panic!("{error}"))
});

/// A part of the report: a paper, or what no paper has.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    pub title: String,
    /// A word or two for a table of contents.
    pub short: String,
    pub about: String,
    #[serde(rename = "experiment")]
    pub experiments: Vec<Experiment>,
}

/// An experiment's entry.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    pub name: String,
    pub title: String,
    #[serde(default)]
    pub section: String,
    pub see: String,
    #[serde(default)]
    pub floors: Vec<(String, String)>,
    #[serde(default = "yes")]
    pub is_here: bool,
    #[serde(default)]
    pub modules: Vec<String>,
    #[serde(default)]
    pub network: bool,
    #[serde(default)]
    pub second: bool,
    #[serde(default)]
    pub disks: bool,
    #[serde(default)]
    pub memory_disk: bool,
    #[serde(default, rename = "figure")]
    pub figures: Vec<Figure>,
    #[serde(default)]
    pub published: Vec<Published>,
    #[serde(default, rename = "reason")]
    pub reasons: Vec<Reason>,
}

fn yes() -> bool {
    true
}

/// Why rows are behind Linux.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    pub rows: String,
    pub why: String,
}

/// A figure of this bench's rows.
#[derive(Deserialize, Debug)]
#[serde(untagged, deny_unknown_fields)]
pub enum Figure {
    /// Values over a size or a count, a picture a panel: its title and the pattern of its rows.
    Curves {
        across: Across,
        x_label: String,
        #[serde(default)]
        floor: String,
        panels: Vec<(String, String)>,
    },
    /// Rows of one unit side by side: a label and the row's id.
    Dots {
        title: String,
        rows: Vec<(String, String)>,
    },
}

/// A table or figure of a paper.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Published {
    pub place: String,
    pub title: String,
    #[serde(default)]
    pub note: String,
    pub values: Option<Values>,
}

/// The numbers of a paper's table or figure.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Values {
    /// Two systems, item by item.
    Compared {
        unit: String,
        old: String,
        new: String,
        items: Vec<Compared>,
    },
    /// How many times as high a rate became.
    Gains {
        what: String,
        items: Vec<Gain>,
        /// A label, the row's id, and the option that switches the mechanism off.
        #[serde(default)]
        here: Vec<(String, String, String)>,
    },
    /// One number for each of several mechanisms.
    List { unit: String, items: Vec<Listed> },
}

/// An item of two systems.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Compared {
    pub label: String,
    pub old: f64,
    pub new: f64,
    #[serde(default)]
    pub row: String,
}

/// A rate that became higher, as parts of what it was: 1.67 for "67% higher".
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Gain {
    pub label: String,
    pub least: f64,
    /// Absent where the paper has one number.
    pub most: Option<f64>,
}

/// An item of a list.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    pub label: String,
    pub value: f64,
    #[serde(default)]
    pub row: String,
}

/// A mechanism that `--switches` turns off.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// The word on the kernel's command line that turns it off.
    pub option: String,
    /// The experiments that are run with it.
    pub experiments: Vec<String>,
}

/// The papers in the report's order.
pub fn papers() -> &'static [Paper] {
    &CATALOGUE.paper
}

/// Every switch.
pub fn switches() -> &'static [Switch] {
    &CATALOGUE.switch
}

/// All experiments in the report's order.
pub fn all() -> impl Iterator<Item = (&'static Paper, &'static Experiment)> {
    papers()
        .iter()
        .flat_map(|paper| paper.experiments.iter().map(move |it| (paper, it)))
}

/// The experiment of a name, its paper, and its number in the report's order.
pub fn find(name: &str) -> Option<(usize, &'static Paper, &'static Experiment)> {
    let mut all = (0..).zip(all());
    all.find_map(|(at, (paper, it))| (it.name == name).then_some((at, paper, it)))
}

/// The experiment of a row's id, and the variant.
fn of_row(row: &str) -> Option<(&'static Experiment, &str)> {
    let (name, variant) = row.split_once('/')?;
    Some((find(name)?.2, variant))
}

/// The name of the floor that a row is held against.
pub fn floor_of(row: &str) -> Option<&'static str> {
    let (experiment, variant) = of_row(row)?;
    let mut floors = experiment.floors.iter();
    floors.find_map(|(start, floor)| variant.starts_with(start).then_some(&**floor))
}

/// Why a row is behind Linux, where the reason was found.
pub fn reason_of(row: &str) -> Option<&'static str> {
    let mut reasons = of_row(row)?.0.reasons.iter();
    reasons.find_map(|it| pattern::fits(&it.rows, row).then_some(&*it.why))
}

/// The modules of Linux that these experiments need.
pub fn modules(names: &[String]) -> Vec<&'static str> {
    let found = names.iter().filter_map(|name| find(name));
    let modules = found.flat_map(|(_, _, it)| &it.modules);
    modules.map(String::as_str).collect()
}

/// Whether some of these experiments need a network card, and a peer behind it.
pub fn need_network(names: &[String]) -> bool {
    let mut found = names.iter().filter_map(|name| find(name));
    found.any(|(_, _, it)| it.network)
}

/// Whether some of these experiments need a second guest.
pub fn need_second(names: &[String]) -> bool {
    let mut found = names.iter().filter_map(|name| find(name));
    found.any(|(_, _, it)| it.second)
}

/// Whether some of these experiments need disks.
pub fn need_disks(names: &[String]) -> bool {
    let mut found = names.iter().filter_map(|name| find(name));
    found.any(|(_, _, it)| it.disks)
}

/// Whether some of these experiments need a memory disk.
pub fn need_memory_disk(names: &[String]) -> bool {
    let mut found = names.iter().filter_map(|name| find(name));
    found.any(|(_, _, it)| it.memory_disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_whole() {
        for (at, (_, one)) in (0..).zip(all()) {
            let name = &one.name;
            assert!(!one.title.is_empty() && !one.see.is_empty(), "{name}");
            assert_eq!(find(name).map(|it| it.0), Some(at), "{name} is there twice");
            for reason in &one.reasons {
                let own = reason.rows.starts_with(&format!("{name}/"));
                assert!(own, "{} names no row of {name}", reason.rows);
            }
            for figure in &one.figures {
                match figure {
                    Figure::Curves { panels, .. } => {
                        for (_, rows) in panels {
                            assert!(rows.contains("{}") && rows.contains('/'), "{rows}");
                        }
                    }
                    Figure::Dots { rows, .. } => {
                        assert!(rows.iter().all(|(_, row)| row.contains('/')), "{name}");
                    }
                }
            }
        }
    }

    /// The rows of the document, which a test of the kernel compares with its switches.
    #[test]
    fn the_document_names_the_experiments_of_a_switch() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md");
        let document = std::fs::read_to_string(path).unwrap();
        for Switch {
            option,
            experiments,
        } in switches()
        {
            let (switch, off) = option.split_once('=').unwrap();
            let start = format!("| `{switch}=");
            let row = document.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("{path} has no row {start}"));
            assert!(row.contains(off), "{row} does not show {off}");
            for name in experiments {
                assert!(find(name).is_some(), "{name} of {switch}");
                let shown = row.contains(&format!("`{name}`"));
                assert!(shown, "{path}: the row of {switch} lacks {name}");
            }
        }
    }
}
