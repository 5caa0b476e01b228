//! What the Causeway kernel offers to programs beyond Linux's calls, through the device `/dev/causeway`.
//!
//! - [`Causeway`]: the device; whether it is there says whether the program runs on Causeway.
//! - [`Memory`]: private memory of which the program says what its children get: nothing, the same, a copy, or zeros.
//!   On Linux, children get copies, or share memory that was shared from the start.
//! - [`Counts`], [`Entry`]: what the kernel knows of the address space, without the text of `/proc`.
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
//! // What a child adds from now on, its parent sees.
//! counter.fetch_add(1, Ordering::Relaxed);
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]

mod device;
mod memory;

pub use device::{Causeway, Counts, Entry, Inherit, Rights};
pub use memory::Memory;
