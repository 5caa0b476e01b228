//! Counters of byte queues: see [`nucleus::counters`].

nucleus::counters! {
    from vm::counters::END;
    /// Bytes that went into a pipe, a socket's queue or a file by a handle to their frame, without
    /// being copied.
    bytes_passed,
    /// Bytes that a writer put into the memory of a reader which waited.
    bytes_put,
}
