//! What `/proc` shows of an address space's pages.

mod page_counts;

pub use page_counts::{MappedPage, PageCounts};
