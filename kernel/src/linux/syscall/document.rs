//! `docs/linux.md`'s table equals the calls' lists.
//!
//! `UPDATE=1 cargo test -p kernel document` writes it anew.

extern crate std;

use alloc::{format, string::String};
use std::{env, fs};

use super::{FlagSet, SystemCall, table::CALLS};
use crate::{
    flags::{Otherwise, Shape},
    linux::compat,
};

const BEGIN: &str = "<!-- calls: begin -->\n";
const END: &str = "<!-- calls: end -->\n";

/// One line of the table.
fn row(entry: &SystemCall) -> String {
    let compatible = compat::serves(entry.number);
    let flags: String = entry
        .flags
        .iter()
        .map(|set| sentence(set))
        .collect::<alloc::vec::Vec<_>>()
        .join("; ");
    format!(
        "| `{}` | {} | {} | {} | {} |\n",
        entry.name,
        entry.number,
        if compatible { "yes" } else { "" },
        flags,
        entry.note
    )
}

/// Describes the argument of a set.
fn sentence(set: &FlagSet) -> String {
    let names: alloc::vec::Vec<String> = set
        .known
        .iter()
        .map(|(name, _)| name.rsplit("::").next().unwrap_or(name).trim().into())
        .collect();
    let known = match (set.shape, names.is_empty()) {
        (_, true) => "none".into(),
        (Shape::Bits, _) => format!("`{}`", names.join(" ")),
        (Shape::Choice, _) => format!("one of `{}`", names.join(" ")),
    };
    let otherwise = match set.otherwise {
        Otherwise::Error(error) => format!("{error:?}"),
        Otherwise::Ignored => "ignored, as on Linux".into(),
    };
    format!("{}: {known}, else {otherwise}", set.argument)
}

#[test]
fn the_document_has_the_table_of_calls() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/linux.md");
    let text = fs::read_to_string(path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the table's begin");
    let (found, after) = rest.split_once(END).expect("the table's end");
    let mut entries: alloc::vec::Vec<&SystemCall> =
        CALLS.iter().flat_map(|list| list.iter()).collect();
    entries.sort_by_key(|entry| entry.name);
    let mut table =
        String::from("| call | number | 32-bit | flags | remark |\n|---|---|---|---|---|\n");
    for entry in entries {
        table.push_str(&row(entry));
    }
    if env::var_os("UPDATE").is_some() {
        fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
        return;
    }
    assert!(
        found == table,
        "docs/linux.md is not what the code says; UPDATE=1 cargo test -p kernel document"
    );
}

#[test]
fn each_number_has_one_call() {
    let mut numbers: alloc::vec::Vec<u32> = CALLS
        .iter()
        .flat_map(|list| list.iter())
        .map(|entry| entry.number)
        .collect();
    numbers.sort_unstable();
    assert!(numbers.windows(2).all(|pair| pair[0] != pair[1]));
}
