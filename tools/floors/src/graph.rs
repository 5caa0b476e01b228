//! The graph of a crate's files, and what is wrong with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;

/// The largest number of files of one top-level module that may use each other in a cycle.
pub const LARGEST_COMPONENT: usize = 6;

/// A use of an item of another file.
#[derive(Clone, Debug)]
pub struct Arrow {
    /// The number of the file that uses it.
    pub from: usize,
    /// The number of the file that defines it.
    pub to: usize,
    /// The line of the use, from 1.
    pub line: usize,
    /// The path as written.
    pub path: String,
}

/// Which file of a crate uses which.
pub struct Graph {
    /// The files, relative to the folder of the crate's root.
    pub files: Vec<String>,
    /// The top-level module of each file.
    pub floors: Vec<String>,
    arrows: Vec<Arrow>,
    /// The arrows' files and lines: two uses in one line are one arrow.
    seen: BTreeSet<(usize, usize, usize)>,
}

/// Something in the graph that breaks a rule.
pub enum Violation {
    /// A module uses one that stands above it.
    Upward {
        /// The file and line of the use.
        place: String,
        /// The two modules.
        floors: (String, String),
        /// The path as written.
        path: String,
    },
    /// Top-level modules that use each other in a cycle.
    Cycle(Vec<String>),
    /// More than [`LARGEST_COMPONENT`] files that use each other in a cycle.
    Component(Vec<String>),
    /// A top-level module that the declared order leaves out, or names without need.
    Undeclared(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upward {
                place,
                floors: (from, to),
                path,
            } => {
                write!(f, "{place}: {from} uses {to} above it ({path})")
            }
            Self::Cycle(modules) => write!(f, "modules in a cycle: {}", modules.join(" ")),
            Self::Component(files) => {
                write!(f, "{} files in a cycle: {}", files.len(), files.join(" "))
            }
            Self::Undeclared(module) => {
                write!(
                    f,
                    "{module} is not both a top-level module and among the floors"
                )
            }
        }
    }
}

impl Graph {
    pub(crate) fn new(files: Vec<String>, floors: Vec<String>) -> Self {
        Self {
            files,
            floors,
            arrows: Vec::new(),
            seen: BTreeSet::new(),
        }
    }

    pub(crate) fn add(&mut self, arrow: Arrow) {
        let place = (arrow.from, arrow.to, arrow.line);
        if arrow.from != arrow.to && self.seen.insert(place) {
            self.arrows.push(arrow);
        }
    }

    /// Returns the uses of one file's items by another, in the order of the source.
    pub fn arrows(&self) -> &[Arrow] {
        &self.arrows
    }

    /// Returns the groups of two or more top-level modules that use each other in a cycle.
    pub fn module_cycles(&self) -> Vec<Vec<String>> {
        let edges = self
            .arrows
            .iter()
            .map(|it| (&self.floors[it.from], &self.floors[it.to]));
        components(edges.filter(|(from, to)| from != to))
    }

    /// Returns the groups of two or more files that use each other in a cycle, largest first.
    pub fn file_cycles(&self) -> Vec<Vec<String>> {
        components(
            self.arrows
                .iter()
                .map(|it| (&self.files[it.from], &self.files[it.to])),
        )
    }

    /// Judges the graph by an order of top-level modules from the bottom up. The crate's root
    /// stands above all of them.
    pub fn violations(&self, order: &[String]) -> Vec<Violation> {
        let mut found = Vec::new();
        let level = |floor: &String| match floor.as_str() {
            "lib" => Some(order.len()),
            _ => order.iter().position(|it| it == floor),
        };
        let modules: BTreeSet<_> = self.floors.iter().filter(|it| *it != "lib").collect();
        let declared: BTreeSet<_> = order.iter().collect();
        let differ = modules.symmetric_difference(&declared);
        found.extend(differ.map(|it| Violation::Undeclared((*it).clone())));
        for arrow in &self.arrows {
            let (from, to) = (&self.floors[arrow.from], &self.floors[arrow.to]);
            if from != to && level(from) < level(to) {
                found.push(Violation::Upward {
                    place: format!("{}:{}", self.files[arrow.from], arrow.line),
                    floors: (from.clone(), to.clone()),
                    path: arrow.path.clone(),
                });
            }
        }
        found.extend(self.module_cycles().into_iter().map(Violation::Cycle));
        let files = self.file_cycles().into_iter();
        let large = files.filter(|it| it.len() > LARGEST_COMPONENT);
        found.extend(large.map(Violation::Component));
        found
    }
}

/// Returns the strongly connected components of two or more nodes, largest first.
fn components<'a>(edges: impl Iterator<Item = (&'a String, &'a String)>) -> Vec<Vec<String>> {
    let mut graph = DiGraph::<&String, ()>::new();
    let mut nodes = BTreeMap::new();
    for (from, to) in edges {
        let from = *nodes.entry(from).or_insert_with(|| graph.add_node(from));
        let to = *nodes.entry(to).or_insert_with(|| graph.add_node(to));
        graph.add_edge(from, to, ());
    }
    let mut found: Vec<Vec<String>> = tarjan_scc(&graph)
        .into_iter()
        .filter(|it| it.len() > 1)
        .map(|it| it.into_iter().map(|node| graph[node].clone()).collect())
        .collect();
    found.iter_mut().for_each(|it| it.sort());
    found.sort_by_key(|it| std::cmp::Reverse(it.len()));
    found
}
