//! What others than its program ask of an address space: page counts for `/proc`, and where shared
//! memory is, for futexes.

mod location;
mod page_counts;

pub use page_counts::{MappedPage, PageCounts};
