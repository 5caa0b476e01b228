//! The documents name files that exist, in lines that fit a page.

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

#[test]
fn every_source_file_that_a_document_names_exists() {
    let files = files();
    // A full path, or the end of one: `fault.rs` after `vm/src/map.rs`.
    let exists = |name: &str| {
        let name = name.trim_end_matches('/');
        files.iter().any(|it| {
            it == name || it.ends_with(&format!("/{name}")) || it.starts_with(&format!("{name}/"))
        })
    };
    let is_path = |word: &&str| {
        let is_plain = word
            .chars()
            .all(|it| it.is_ascii_alphanumeric() || "/_.-".contains(it));
        let is_source = word.ends_with(".rs")
            || [
                "nucleus/",
                "vm/",
                "fbuf/",
                "fs/src",
                "fs/tests",
                "net/src",
                "kernel/src",
                "tools/",
            ]
            .iter()
            .any(|it| word.starts_with(it));
        is_plain && is_source
    };
    let mut missing = Vec::new();
    for (document, text) in documents() {
        for (number, line) in text.lines().enumerate() {
            let words = line.split('`').skip(1).step_by(2);
            for word in words.filter(is_path).filter(|it| !exists(it)) {
                if word != "NAME.rs" && !word.contains("/NAME.rs") {
                    missing.push(format!("{document}:{}: {word}", number + 1));
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
