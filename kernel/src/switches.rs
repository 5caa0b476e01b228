//! The switches of all floors, joined: see [`nucleus::switches`].

use alloc::vec::Vec;

use nucleus::switches::{Setting, Switch};

/// Lists all switches.
pub fn all() -> impl Iterator<Item = &'static Switch> {
    let floors = nucleus::switches::SWITCHES.iter().chain(vm::SWITCHES);
    floors.chain(fbuf::SWITCHES).chain(net::SWITCHES)
}

/// Finds a switch by its name.
pub fn find(name: &str) -> Option<&'static Switch> {
    all().find(|switch| switch.name == name)
}

/// Returns all switches with their defaults.
pub fn defaults() -> Vec<(&'static str, Setting)> {
    let default = |switch: &'static Switch| Some((switch.name, switch.parse(switch.default)?));
    all().filter_map(default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nucleus::switches::Values::{Memory, Number, Numbers, OneOf};

    #[test]
    fn the_document_describes_the_switches_that_there_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/architecture.md");
        let document = std::fs::read_to_string(path).unwrap();
        for switch in all() {
            let values = match switch.values {
                OneOf(words) => words.join("\\|"),
                Number(..) => "N".into(),
                Numbers(..) => "N,M".into(),
                Memory(words) => format!("{}\\|SIZE", words.join("\\|")),
            };
            let start = format!("| `{}={values}` |", switch.name);
            let row = document.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("{path} has no row {start}"));
            let is_first = values.starts_with(switch.default);
            let default = format!("({})", switch.default);
            assert!(
                is_first || row.contains(&default),
                "{row} does not show {default}"
            );
        }
    }
}
