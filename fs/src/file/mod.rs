//! Open files over vnodes.
//!
//! [`VnodeFile`]: over a vnode that is read and written by offset. [`PlaceFile`]: a mere handle to
//! a place (`O_PATH`). Pipes, terminals and devices bring [`File`]s of their own.

mod listing;
mod open;
mod place;
mod writing;

pub use open::VnodeFile;
pub use place::PlaceFile;
pub use writing::{Running, Writing};
