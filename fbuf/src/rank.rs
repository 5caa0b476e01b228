//! Ranks of the locks of byte queues: see [`nucleus::sync::Rank`].

nucleus::lock_ranks! {
    /// The reader of a pipe; taken before the files and vnodes that splice writes to.
    PIPE_READING = 22,
    /// A pipe or socket.
    PIPE = 40,
}
