//! Open files of processes.
//!
//! - [`FileTable`]: from a descriptor to an open file; one a process, or shared (`CLONE_FILES`).
//! - [`OpenFile`]: an open file description: what `dup` and `fork` share, with its status flags.
//! - [`locks`]: `flock`, and the record locks of `fcntl`.

pub mod locks;
mod open;
mod slots;
mod table;

pub use open::{Attached, AttachedList, OpenFile, attach, each_attached};
pub use table::{Collector, FileTable, Reservation, set_collector};

#[cfg(test)]
mod tests;
