//! Finds the file that defines what a path names.

use std::path::Path;

use crate::graph::{Arrow, Graph};
use crate::source::{Module, Name, Source, Written};

/// What a path names.
enum Target {
    Module(usize),
    /// An item, by the file that defines it.
    Item(usize),
}

/// The longest chain of re-exports that is followed.
const LONGEST_CHAIN: usize = 16;

/// Computes the graph of the files of a crate whose root stands in `folder`.
pub fn graph(source: &Source, folder: &Path) -> Graph {
    let names = source.files.iter().map(|file| {
        let name = file.strip_prefix(folder).unwrap_or(file);
        name.display().to_string()
    });
    let mut graph = Graph::new(names.collect(), floors(source));
    for (number, module) in source.modules.iter().enumerate() {
        let mut point = |at: &Written, target: usize| {
            let (from, line) = (module.file, at.line);
            graph.add(Arrow {
                from,
                to: target,
                line,
                path: at.path.join("::"),
            });
        };
        for (import, is_public) in &module.imports {
            let Some(Target::Item(file)) = resolve(source, number, &import.path, 0) else {
                continue;
            };
            if !(*is_public && is_inside(source, number, file)) {
                point(import, file);
            }
        }
        for glob in &module.globs {
            if let Some(Target::Module(target)) = resolve(source, number, &glob.path, 0) {
                let target = &source.modules[target];
                if target.names.values().any(|it| matches!(it, Name::Defined)) {
                    point(glob, target.file);
                }
            }
        }
        for path in &module.paths {
            // A name by itself is a local one, or comes by an import, which counts already.
            if path.path.len() == 1 && !comes_by_glob(module, &path.path[0]) {
                continue;
            }
            if let Some(Target::Item(file)) = resolve(source, number, &path.path, 0) {
                point(path, file);
            }
        }
    }
    graph
}

/// Whether a name can only have come by `use …::*`.
fn comes_by_glob(module: &Module, name: &str) -> bool {
    !(module.globs.is_empty()
        || module.names.contains_key(name)
        || module.children.contains_key(name))
}

/// Returns the top-level module of each file; of the crate's root, "lib".
fn floors(source: &Source) -> Vec<String> {
    let mut floors = vec![String::from("lib"); source.files.len()];
    for module in source.modules.iter().rev() {
        if let Some(floor) = module.path.first() {
            floors[module.file].clone_from(floor);
        }
    }
    if let Some(root) = source.modules.first() {
        floors[root.file] = String::from("lib");
    }
    floors
}

/// Whether the file belongs to a module below this one.
fn is_inside(source: &Source, module: usize, file: usize) -> bool {
    let above = &source.modules[module].path;
    let path = source
        .modules
        .iter()
        .find(|it| it.file == file)
        .map(|it| &it.path);
    path.is_some_and(|path| path.len() > above.len() && path.starts_with(above))
}

fn resolve(source: &Source, from: usize, path: &[String], depth: usize) -> Option<Target> {
    if depth > LONGEST_CHAIN {
        return None;
    }
    let mut at = from;
    let mut rest = path;
    while let Some((first, others)) = rest.split_first() {
        at = match first.as_str() {
            "crate" => 0,
            "self" => at,
            "super" => source.modules[at].parent?,
            _ => break,
        };
        rest = others;
    }
    while let Some((name, others)) = rest.split_first() {
        let module = &source.modules[at];
        if others.is_empty() {
            return last(source, at, module, name, depth);
        }
        if let Some(child) = module.children.get(name) {
            at = *child;
            rest = others;
            continue;
        }
        return match last(source, at, module, name, depth)? {
            Target::Module(next) => resolve(source, next, others, depth + 1),
            item => Some(item),
        };
    }
    Some(Target::Module(at))
}

fn last(source: &Source, at: usize, module: &Module, name: &str, depth: usize) -> Option<Target> {
    match module.names.get(name) {
        Some(Name::Defined) => Some(Target::Item(module.file)),
        Some(Name::DefinedIn(file)) => Some(Target::Item(*file)),
        Some(Name::Import(path)) if path.first().is_some_and(|it| it == name) => {
            // `use name::item as name`, or an import of another crate's root.
            let child = module.children.get(name)?;
            match path.len() {
                1 => Some(Target::Module(*child)),
                _ => resolve(source, *child, &path[1..], depth + 1),
            }
        }
        Some(Name::Import(path)) => resolve(source, at, path, depth + 1),
        None => module
            .children
            .get(name)
            .map(|it| Target::Module(*it))
            .or_else(|| {
                module.globs.iter().find_map(|glob| {
                    match resolve(source, at, &glob.path, depth + 1)? {
                        Target::Module(other) if other != at => {
                            last(source, other, &source.modules[other], name, depth + 1)
                        }
                        _ => None,
                    }
                })
            }),
    }
}
