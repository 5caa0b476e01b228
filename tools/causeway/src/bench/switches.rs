//! The kernel's switches, read from the tables in which its floors declare them.

/// The tables' text.
const TABLES: [&str; 2] = [
    include_str!("../../../../nucleus/src/switches.rs"),
    include_str!("../../../../vm/src/switches.rs"),
];

/// A switch as its table declares it.
pub struct Declared {
    pub name: &'static str,
    /// As the documents show them: words with `|` between them, `N` or `N,M`.
    #[cfg_attr(not(test), expect(dead_code))]
    pub values: String,
    #[cfg_attr(not(test), expect(dead_code))]
    pub default: &'static str,
    /// The value that turns the mechanism off.
    pub off: &'static str,
}

/// Returns all switches.
pub fn declared() -> Vec<Declared> {
    let entries = TABLES
        .iter()
        .flat_map(|table| table.split("\n    Switch::new(").skip(1));
    entries.filter_map(read).collect()
}

/// Finds a switch by its name.
pub fn find(name: &str) -> Option<Declared> {
    declared().into_iter().find(|switch| switch.name == name)
}

/// Reads an entry: its literals are the name, words or a unit, the default, and the value for off.
fn read(entry: &'static str) -> Option<Declared> {
    let declaration = entry.split("||").next()?;
    let literals: Vec<&str> = declaration.split('"').skip(1).step_by(2).collect();
    let [name, values @ .., default, off] = literals.as_slice() else {
        return None;
    };
    let values = match () {
        () if declaration.contains("OneOf(") => values.join("|"),
        () if declaration.contains("Numbers(") => "N,M".into(),
        () => "N".into(),
    };
    Some(Declared {
        name,
        values,
        default,
        off,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::experiments;

    #[test]
    fn the_documents_describe_the_switches_that_there_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/architecture.md");
        let document = std::fs::read_to_string(path).unwrap();
        let all = declared();
        assert!(all.len() >= 8);
        for switch in &all {
            let values = switch.values.replace('|', "\\|");
            let start = format!("| `{}={values}` |", switch.name);
            let row = document.lines().find(|line| line.starts_with(&start));
            let row = row.unwrap_or_else(|| panic!("{path} has no row {start}"));
            let first = switch.values.split('|').next();
            let default = format!("({})", switch.default);
            assert!(
                first == Some(switch.default) || row.contains(&default),
                "{path}: the row of {} does not show its default, {default}",
                switch.name
            );
            let turned = experiments::switches().iter();
            for name in turned
                .filter(|it| it.name == switch.name)
                .flat_map(|it| &it.experiments)
            {
                let shown = row.contains(&format!("`{name}`"));
                assert!(shown, "{path}: the row of {} lacks {name}", switch.name);
            }
        }
        for turned in experiments::switches() {
            assert!(
                all.iter().any(|switch| switch.name == turned.name),
                "{turned:?}"
            );
        }
    }
}
