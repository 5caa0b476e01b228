//! What `/proc` tells of an address space's pages.

mod census;

pub use census::{Census, MappedPage};
