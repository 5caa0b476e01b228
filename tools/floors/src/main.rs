//! Prints which module of a crate uses which.
//!
//! `cargo run -p floors` judges every crate of the workspace that declares floors;
//! `cargo run -p floors -- CRATE` prints the arrows between the crate's top-level modules, too;
//! `cargo run -p floors -- CRATE MODULE` prints the arrows between files of cycles inside that
//! module.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use floors::{Crate, Graph, Violation};

fn main() -> Result<ExitCode> {
    let words: Vec<String> = env::args().skip(1).collect();
    let crates = floors::workspace(Path::new("."))?;
    if let [name, rest @ ..] = words.as_slice() {
        let one = crates.iter().find(|it| it.name == *name);
        let one = one.with_context(|| format!("no library is named {name}"))?;
        let graph = floors::read(&one.root)?;
        match rest {
            [] => show(one, &graph),
            modules => show_inside(&graph, modules),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut sound = true;
    for one in &crates {
        let Some(floors) = &one.floors else { continue };
        for violation in floors::read(&one.root)?.violations(floors) {
            println!("{}: {violation}", one.name);
            sound = false;
        }
    }
    Ok(if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints each top-level module with those that it uses, then what is wrong.
fn show(one: &Crate, graph: &Graph) {
    let mut uses: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    for arrow in graph.arrows() {
        let (from, to) = (&graph.floors[arrow.from], &graph.floors[arrow.to]);
        if from != to {
            *uses.entry(from).or_default().entry(to).or_default() += 1;
        }
    }
    for (module, uses) in &uses {
        let uses: Vec<_> = uses
            .iter()
            .map(|(to, count)| format!("{to} {count}"))
            .collect();
        println!("{module} -> {}", uses.join(", "));
    }
    match &one.floors {
        Some(floors) => graph
            .violations(floors)
            .iter()
            .for_each(|it| println!("{it}")),
        None => {
            let modules = graph.module_cycles().into_iter().map(Violation::Cycle);
            let files = graph.file_cycles().into_iter().map(Violation::Component);
            modules.chain(files).for_each(|it| println!("{it}"));
        }
    }
}

/// Prints the arrows between files of these modules that are in one cycle.
fn show_inside(graph: &Graph, modules: &[String]) {
    for cycle in graph.file_cycles() {
        let files: BTreeSet<&String> = cycle.iter().collect();
        let is_here = |file: usize| {
            files.contains(&graph.files[file]) && modules.contains(&graph.floors[file])
        };
        let arrows: Vec<_> = graph
            .arrows()
            .iter()
            .filter(|it| is_here(it.from) && is_here(it.to))
            .collect();
        if !arrows.is_empty() {
            println!("{} files in a cycle:", cycle.len());
        }
        for arrow in arrows {
            let (from, to) = (&graph.files[arrow.from], &graph.files[arrow.to]);
            println!("  {from}:{} -> {to} ({})", arrow.line, arrow.path);
        }
    }
}
