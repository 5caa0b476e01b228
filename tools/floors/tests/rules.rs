//! Small crates that break each rule, and ones that do not.

use std::fs;

use floors::Violation;
use tempfile::TempDir;

/// Makes a crate of these files and returns what breaks a rule, by its kind.
fn judged(files: &[(&str, &str)], order: &[&str]) -> Vec<&'static str> {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let file = folder.path().join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    let graph = floors::read(&folder.path().join("lib.rs")).unwrap();
    let order: Vec<_> = order.iter().map(|it| (*it).to_owned()).collect();
    let kind = |it: &Violation| match it {
        Violation::Upward { .. } => "upward",
        Violation::Cycle(_) => "cycle",
        Violation::Component(_) => "component",
        Violation::Undeclared(_) => "undeclared",
    };
    graph.violations(&order).iter().map(kind).collect()
}

const ROOT: (&str, &str) = (
    "lib.rs",
    "mod low; mod high; pub use high::{High, Trait, HIGH, new};",
);
const ORDER: &[&str] = &["low", "high"];

#[test]
fn a_crate_in_order_breaks_no_rule() {
    let high = ("high.rs", "use crate::low::Low; pub struct High(Low);");
    assert!(judged(&[ROOT, high, ("low.rs", "pub struct Low;")], ORDER).is_empty());
}

#[test]
fn an_import_of_a_module_above_is_found_in_every_form() {
    for low in [
        "use crate::high::High;",
        "use super::high::High as Other;",
        "use super::high; fn f(_: high::High) {}",
        "use crate::High;",
        "use crate::high::*;",
        "fn f() { use crate::high::High; }",
        "fn f(_: crate::high::High) {}",
        "macro_rules! m { () => { $crate::high::High } }",
        "mod inner { use super::super::high::High; }",
        "use crate::*; fn f(_: High) {}",
        "use crate::*; fn f() -> [Option<High>; 3] { loop {} }",
        "use crate::*; fn f() { High::new() }",
        "use crate::*; fn f() { let _ = new(); }",
        "use crate::*; impl Trait for u8 {}",
        "use crate::*; fn f() { format_args!(\"{}\", High::new()); }",
        "use crate::*; fn f(x: u8) { match x { HIGH => {} _ => {} } }",
        "use crate::*; fn f() { high::new(); }",
    ] {
        let high = "pub struct High; pub trait Trait {} pub const HIGH: u8 = 1; pub fn new() {}";
        let files = [ROOT, ("high.rs", high), ("low.rs", low)];
        assert_eq!(judged(&files, ORDER), ["upward"], "{low}");
    }
}

#[test]
fn an_exported_macro_belongs_to_its_module() {
    let root = ("lib.rs", "#[macro_use] mod high; mod low;");
    let high = ("high.rs", "#[macro_export] macro_rules! shout { () => {} }");
    let low = ("low.rs", "fn f() { crate::shout!(); }");
    assert_eq!(judged(&[root, high, low], ORDER), ["upward"]);
}

#[test]
fn a_reexport_of_what_is_inside_counts_for_nothing_and_is_followed() {
    let root = ("lib.rs", "mod low; mod high;");
    let front = ("high/mod.rs", "mod inner; pub use inner::High;");
    let inner = ("high/inner.rs", "use super::Low; pub struct High(Low);");
    let low = ("low.rs", "pub struct Low;");
    let lender = (
        "high/mod.rs",
        "mod inner; pub use inner::High; use crate::low::Low;",
    );
    assert!(judged(&[root, lender, inner, low], ORDER).is_empty());
    let user = ("low.rs", "pub struct Low; fn f(_: crate::high::High) {}");
    let inner = ("high/inner.rs", "pub struct High;");
    assert_eq!(judged(&[root, front, inner, user], ORDER), ["upward"]);
}

#[test]
fn modules_in_a_circle_are_found_without_an_order_that_would_tell() {
    let high = ("high.rs", "use crate::low::Low; pub struct High(Low);");
    let low = ("low.rs", "use crate::high::High; pub struct Low(High);");
    let found = judged(&[ROOT, high, low], ORDER);
    assert_eq!(found, ["upward", "cycle"]);
}

#[test]
fn seven_files_in_a_circle_are_one_too_many() {
    for (count, expected) in [(6, vec![]), (7, vec!["component"])] {
        let names: Vec<_> = (0..count).map(|it| format!("ring/n{it}.rs")).collect();
        let texts: Vec<_> = (0..count)
            .map(|it| format!("use super::n{}::N as Next; pub struct N;", (it + 1) % count))
            .collect();
        let front: String = (0..count).map(|it| format!("mod n{it};")).collect();
        let mut files = vec![("lib.rs", "mod ring;"), ("ring/mod.rs", front.as_str())];
        files.extend(
            names
                .iter()
                .map(String::as_str)
                .zip(texts.iter().map(String::as_str)),
        );
        assert_eq!(judged(&files, &["ring"]), expected);
    }
}

#[test]
fn tests_may_use_what_they_like() {
    let low = "#[cfg(test)] mod tests { use crate::high::High; } #[cfg(test)] mod more;";
    let files = [
        ROOT,
        ("high.rs", "pub struct High;"),
        ("low.rs", low),
        ("low/more.rs", "use crate::high::High;"),
    ];
    assert!(judged(&files, ORDER).is_empty());
}

#[test]
fn modules_and_floors_are_the_same_names() {
    let files = [ROOT, ("high.rs", "pub struct High;"), ("low.rs", "")];
    assert_eq!(judged(&files, &["high"]), ["undeclared"]);
    assert_eq!(judged(&files, &["low", "high", "roof"]), ["undeclared"]);
}
