//! The counters of all floors, joined: see [`nucleus::counters`].

nucleus::counters! {
    from net::counters::END;
    /// System calls.
    system_calls,
    /// Threads and processes made.
    forks,
    /// Out-of-memory kills.
    out_of_memory_kills,
    /// Waiters and owners that priority inheritance of futexes looked at.
    futex_pi_looks,
    /// Watches that checks of the paths of nested epolls looked at.
    epoll_path_looks,
    /// Bytes of packets that cards read where they were.
    card_sent_passed,
    /// Bytes of packets that were copied for cards: headers, and packets in too many pieces.
    card_sent_copied,
    /// Bytes of packets that went on in the frames that cards had filled.
    card_received_passed,
    /// Bytes of packets that were copied out of these: small packets, and headers.
    card_received_copied,
}

const _: () = assert!(
    fs::counters::END <= fbuf::counters::END + 16,
    "`fs` and `net` overlap"
);

/// Returns the names and sums of all counters, from the lowest floor up.
pub fn all() -> impl Iterator<Item = (&'static str, u64)> {
    nucleus::counters::totals()
        .chain(vm::counters::totals())
        .chain(fbuf::counters::totals())
        .chain(fs::counters::totals())
        .chain(net::counters::totals())
        .chain(totals())
}
