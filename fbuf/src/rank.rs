//! Ranks of the locks of byte queues: see [`nucleus::sync::Rank`].

nucleus::lock_ranks! {
    /// The reader's side of a byte queue; taken before what splice writes to.
    QUEUE_READING = 22,
    /// The writer's side of a byte queue, or of a socket that sends messages.
    QUEUE_WRITING = 39,
    /// The buffer that a reader or a writer offers while it waits for a queue.
    QUEUE_OFFER = 40,
    /// One fbuf path: receivers, runs, messages; held while mappings of its runs change.
    FBUF_PATH = 51,
    /// Which runs have which addresses of the fbuf region.
    FBUF_REGION = 52,
}
