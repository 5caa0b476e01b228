//! Counters of byte queues: see [`nucleus::counters`].

nucleus::counters! {
    from vm::counters::END;
    /// Bytes that went into a pipe, a socket's queue or a file by a handle to their frame, without
    /// being copied.
    bytes_passed,
    /// Bytes that a writer put into the memory of a reader which waited.
    bytes_put,
    /// Messages that were sent on fbuf paths.
    fbuf_messages,
    /// Bytes of data that these messages reached, without a copy.
    fbuf_bytes_passed,
    /// Pages of fbufs that were mapped for a receiver because a message includes them.
    fbuf_grants,
    /// Pages of fbufs that were unmapped from a domain.
    fbuf_revocations,
    /// Pages of fbufs whose contents the originator has dropped.
    fbuf_pages_dropped,
    /// Bytes of files and queues that became contents of fbufs without being copied.
    fbuf_bytes_taken,
    /// Bytes that a receiver got in fbufs of the kernel, where a device has written them.
    fbuf_kernel_bytes_passed,
    /// Bytes that the kernel copied into its fbufs for a receiver.
    fbuf_kernel_bytes_copied,
    /// Packets that a receiver did not get in fbufs of the kernel, as none was free.
    fbuf_kernel_missed,
    /// Pages of fbufs that the originator lost the right to write.
    fbuf_secured,
}
