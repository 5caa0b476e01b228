//! What the kernel tells of processes and of the machine, and what it charges to whom.

pub mod charges;
pub mod log;
pub mod machine;
pub mod process;
