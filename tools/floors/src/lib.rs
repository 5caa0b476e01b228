//! Computes which module of a crate uses which.
//!
//! Source files are nodes. A file points at another when it imports or names an item that the other
//! defines; re-exports are followed to the definition, so a front door adds no arrow. Two things
//! are not counted: `mod` lines, and a parent's re-export of what its own children define. Items
//! under
//! `#[cfg(test)]` are left out, and both halves of a choice by target are read.
//!
//! [`read`] parses a crate, [`Graph::violations`] judges it by the order that the crate's manifest
//! may declare (`package.metadata.floors`, from the bottom up).

#![forbid(unsafe_code)]

mod graph;
mod order;
mod resolve;
mod source;

pub use graph::{Arrow, Graph, LARGEST_COMPONENT, Violation};
pub use order::{Crate, workspace};
pub use source::read;
