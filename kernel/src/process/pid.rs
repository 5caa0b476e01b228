//! Names of processes.

/// The id of a process, thread, group or session; positive.
pub type Pid = u32;
