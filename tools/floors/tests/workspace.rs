//! The kernel's crates hold to the order that they declare.

use std::path::Path;

#[test]
fn every_module_uses_only_what_stands_below_it() {
    let crates = floors::workspace(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut found = Vec::new();
    for one in &crates {
        let Some(floors) = &one.floors else { continue };
        let violations = floors::read(&one.root).unwrap().violations(floors);
        found.extend(violations.iter().map(|it| format!("{}: {it}", one.name)));
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}
