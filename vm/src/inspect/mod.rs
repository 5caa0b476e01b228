//! Page counts of an address space for `/proc`.

mod page_counts;

pub use page_counts::{MappedPage, PageCounts};
