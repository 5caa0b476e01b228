//! Open files that stand for events: a counter ([`EventFile`]), a timer ([`TimerFile`]), a
//! process's signals ([`SignalFile`]). Each is read in units of a fixed size, and ready when there
//! is a unit to read.

mod counter;
mod signals;
mod timer;

pub use counter::EventFile;
pub use signals::SignalFile;
pub use timer::{Clock, TimerFile, clock_was_set};
