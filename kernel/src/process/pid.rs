//! Names of processes.

/// The id of a process, thread, group or session; positive.
pub type Pid = u32;

/// Names a thread for good: its id may be another one's later, its number never.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LastingId {
    pub tid: Pid,
    pub number: u64,
}
