//! The Causeway kernel's interface for programs beyond Linux's calls: the device `/dev/causeway`.
//!
//! - [`Causeway`]: the device; it exists on Causeway only.
//! - [`Memory`]: memory whose inheritance by children the program chooses: none, the same memory, a
//!   copy, or zeros. On Linux, children get copies, or share memory mapped as shared.
//! - [`Causeway::pass`]: memory that another process gets without a copy: [lent](Passing::Lend),
//!   [transferred](Passing::Transfer), or by map entries that are copied, moved or shared.
//! - [`Counts`], [`Entry`]: the kernel's view of the address space, without the text of `/proc`.
//!
//! ```no_run
//! use libcauseway::{Causeway, Inherit, Memory};
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! # fn main() -> std::io::Result<()> {
//! let causeway = Causeway::open()?;
//! let mut results = Memory::new(4096)?;
//! causeway.set_inherit(&mut results, Inherit::Share)?;
//! let counter: &AtomicU64 = &results.as_u64s()[0];
//! // The parent sees additions of later children.
//! counter.fetch_add(1, Ordering::Relaxed);
//! # Ok(())
//! # }
//! ```

mod device;
mod memory;

pub use device::{Causeway, Counts, Entry, Inherit, NotGiven, Passed, Passing, Receiver, Rights};
pub use memory::Memory;

#[cfg(test)]
mod tests {
    #[test]
    fn the_documents_example_is_the_one_that_is_tested() {
        let document = include_str!("../../../docs/device.md");
        let example = include_str!("../examples/lend.c");
        assert!(document.contains(example));
    }
}
