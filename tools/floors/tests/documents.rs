//! The documents name files that exist, in lines that fit a page, as comments do.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The widest line of a document, tables and commands excepted.
const COLUMNS: usize = 100;

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the names of the files that make up the project.
fn files() -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![home()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "out" {
                    folders.push(path);
                }
            } else {
                let path = path.strip_prefix(home()).unwrap();
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// Returns the project's documents with their texts.
fn documents() -> Vec<(String, String)> {
    let documents = files().into_iter().filter(|it| it.ends_with(".md"));
    documents
        .map(|it| (it.clone(), fs::read_to_string(home().join(it)).unwrap()))
        .collect()
}

/// How names of the bench's rows begin whose experiment is called as a folder is.
const ROWS: [&str; 4] = [
    "fbuf/bandwidth-",
    "fbuf/latency-",
    "fbuf/page-",
    "fbuf/udp-",
];

/// A name in a document that is not found, with the place where it stands.
fn missing(paragraph: &str, names: &HashSet<String>) -> Vec<String> {
    let is_top = |word: &str| {
        let top = word.split('/').next().unwrap_or(word);
        let is_row = ROWS.iter().any(|it| word.starts_with(it));
        word.contains('/') && names.contains(top) && !is_row
    };
    let is_plain = |word: &&str| {
        let plain = |it: char| it.is_ascii_alphanumeric() || "/_.-".contains(it);
        word.chars().all(plain) && !word.contains("NAME")
    };
    let mut folders: Vec<String> = Vec::new();
    let mut missing = Vec::new();
    for word in paragraph.split('`').skip(1).step_by(2).filter(is_plain) {
        let word = word.trim_end_matches('/');
        if is_top(word) {
            if names.contains(word) || word.starts_with("target/") {
                folders.push(word.to_owned());
                folders.extend(word.rsplit_once('/').map(|it| it.0.to_owned()));
            } else {
                missing.push(word.to_owned());
            }
        } else if word.ends_with(".rs")
            && !["lib.rs", "mod.rs"].contains(&word)
            // The end of a path, in a folder that was named before: `fault.rs` after `vm/src/map`.
            && !folders.iter().any(|it| names.contains(&format!("{it}/{word}")))
        {
            missing.push(word.to_owned());
        }
    }
    missing
}

#[test]
fn every_source_file_that_a_document_names_exists() {
    let mut names: HashSet<String> = HashSet::new();
    for file in files() {
        let mut name = file.as_str();
        while let Some((folder, _)) = name.rsplit_once('/') {
            names.insert(folder.to_owned());
            name = folder;
        }
        names.insert(file);
    }
    let mut found = Vec::new();
    for (document, text) in documents() {
        // A table's row is a paragraph of its own.
        for paragraph in text.split("\n\n").flat_map(|it| it.split("\n|")) {
            let missing = missing(paragraph, &names).into_iter();
            found.extend(missing.map(|it| format!("{document}: {it}")));
        }
    }
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

/// Whether a source file defines an item.
fn defines(source: &str, item: &str) -> bool {
    let kinds = ["fn", "static", "const", "enum", "struct", "macro_rules!"];
    kinds.iter().any(|kind| {
        let definition = format!("{kind} {item}");
        source.match_indices(&definition).any(|(at, found)| {
            let next = source[at + found.len()..].chars().next();
            next.is_some_and(|it| !it.is_alphanumeric() && it != '_')
        })
    })
}

/// The table "Where to look" of `architecture.md` names items that stand in the files beside them,
/// and no file without one of them.
#[test]
fn the_items_to_look_for_are_where_the_table_says() {
    let text = fs::read_to_string(home().join("docs/architecture.md")).unwrap();
    let table = text
        .split("\n## ")
        .find(|it| it.starts_with("Where to look"));
    let mut missing = Vec::new();
    let rows = table.unwrap().lines().filter(|it| it.starts_with('|'));
    for row in rows.skip(2) {
        let cells: Vec<_> = row.split('|').collect();
        let quoted = |cell: &str| -> Vec<String> {
            let words = cell.split('`').skip(1).step_by(2);
            words.map(str::to_owned).collect()
        };
        let items = quoted(cells[2]);
        let mut found = HashSet::new();
        for file in quoted(cells[3]) {
            let source = fs::read_to_string(home().join(&file)).unwrap_or_default();
            let has: Vec<_> = items.iter().filter(|it| defines(&source, it)).collect();
            if has.is_empty() {
                missing.push(format!("{file} has none of {}", cells[2].trim()));
            }
            found.extend(has);
        }
        let lost = items.iter().filter(|it| !found.contains(it));
        missing.extend(lost.map(|it| format!("{it}, of {}", cells[1].trim())));
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

/// `cargo test -p fs --test page_cache` names a crate and one of its tests.
#[test]
fn every_test_that_a_document_names_exists() {
    let mut missing = Vec::new();
    for (document, text) in documents() {
        for rest in text.split("cargo test -p ").skip(1) {
            let mut words = rest.split([' ', '`', '\n']);
            let package = words.next().unwrap_or_default();
            if words.next() == Some("--test") {
                let test = words.next().unwrap_or_default();
                let folder = home().join(package).join("tests");
                let is_test = folder.join(format!("{test}.rs")).exists()
                    || folder.join(test).join("main.rs").exists();
                if !is_test {
                    missing.push(format!("{document}: -p {package} --test {test}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "\n{}", missing.join("\n"));
}

#[test]
fn the_lines_of_a_document_fit_a_page() {
    let mut wide = Vec::new();
    for (document, text) in documents() {
        let mut is_code = false;
        for (number, line) in text.lines().enumerate() {
            is_code ^= line.starts_with("```");
            let is_exempt = is_code || line.starts_with('|') || line.starts_with("    ");
            if !is_exempt && line.chars().count() > COLUMNS {
                wide.push(format!("{document}:{}", number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "\n{}", wide.join("\n"));
}

#[test]
fn the_comments_of_the_code_fit_a_page() {
    let mut wide = Vec::new();
    for file in files().into_iter().filter(|it| it.ends_with(".rs")) {
        let text = fs::read_to_string(home().join(&file)).unwrap();
        for (number, line) in text.lines().enumerate() {
            let comment = line.trim_start();
            let is_table = comment.contains("//! |") || comment.contains("/// |");
            if comment.starts_with("//") && !is_table && line.chars().count() > COLUMNS {
                wide.push(format!("{file}:{}", number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "\n{}", wide.join("\n"));
}

/// Each row of `docs/safety.md` names items that the nucleus has.
#[test]
fn the_safety_argument_names_what_exists() {
    let text = fs::read_to_string(home().join("docs/safety.md")).unwrap();
    let sources: String = files()
        .into_iter()
        .filter(|it| it.starts_with("nucleus/src/") && it.ends_with(".rs"))
        .map(|it| fs::read_to_string(home().join(it)).unwrap())
        .collect();
    let first_cells = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let mut gone = Vec::new();
    for name in first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
        let last = name.rsplit("::").next().unwrap();
        let kinds = ["fn", "struct", "mod", "trait", "type"];
        let is_there = kinds
            .iter()
            .any(|kind| sources.contains(&format!("{kind} {last}")));
        if !is_there {
            gone.push(name);
        }
    }
    assert_eq!(gone, [""; 0], "docs/safety.md names items that are gone");
}

/// Each safe public function of the nucleus's modules that reach memory, page tables, processor
/// state, tasks or devices has its argument in `docs/safety.md`.
#[test]
fn the_safety_argument_is_complete() {
    const MODULES: [&str; 12] = [
        "pmap/",
        "mem/",
        "ephemeral/",
        "user/",
        "dev/",
        "lock/",
        "sync/",
        "task/",
        "slots.rs",
        "speculation.rs",
        "boot/mod.rs",
        "hw/user_context.rs",
    ];
    let text = fs::read_to_string(home().join("docs/safety.md")).unwrap();
    let named: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split(" |").next())
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter_map(|name| name.rsplit("::").next())
        .collect();
    let mut unnamed = Vec::new();
    for file in files() {
        let Some(module) = file.strip_prefix("nucleus/src/") else {
            continue;
        };
        let is_one = MODULES.iter().any(|it| module.starts_with(it));
        if !is_one || module.contains("tests") {
            continue;
        }
        let source = fs::read_to_string(home().join(&file)).unwrap();
        let source = source.split("\n#[cfg(test)]\nmod").next().unwrap();
        for line in source.lines().map(str::trim_start) {
            let function = line
                .strip_prefix("pub const fn ")
                .or_else(|| line.strip_prefix("pub fn "));
            let end = |it: char| !it.is_alphanumeric() && it != '_';
            let Some(name) = function.and_then(|it| it.split(end).next()) else {
                continue;
            };
            if name != "new" && !named.contains(name) {
                unnamed.push(format!("{file}: {name}"));
            }
        }
    }
    assert_eq!(
        unnamed, [""; 0],
        "functions that docs/safety.md does not argue for"
    );
}
