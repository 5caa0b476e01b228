//! What memory is used for.

macro_rules! kinds {
    ($($(#[$comment:meta])* $kind:ident = $name:literal,)*) => {
        /// What memory is used for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Kind {
            $($(#[$comment])* $kind,)*
        }

        impl Kind {
            /// All kinds, by their numbers.
            pub const ALL: &[Kind] = &[$(Kind::$kind,)*];

            /// Returns the word for it in `/proc`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)*
                }
            }
        }
    };
}

impl Kind {
    /// Whether things of this kind stay when all processes that used them have ended, until
    /// they are removed.
    pub fn outlives_processes(self) -> bool {
        Kind::KEPT.contains(&self)
    }

    /// Those kinds.
    pub(super) const KEPT: [Kind; 5] = {
        use Kind::{Files, Messages, PosixQueues, Segments, Semaphores};
        [Files, Segments, Messages, Semaphores, PosixQueues]
    };
}

kinds! {
    /// Threads and processes: stacks, records, tables of descriptors at their smallest.
    Threads = "threads",
    /// Pipes; their number is that of the slices that fit.
    Pipes = "pipes",
    /// Sockets, and the data in their queues.
    Sockets = "sockets",
    /// Files on their way through local sockets.
    FilesInFlight = "files_in_flight",
    /// System V queues of messages.
    Messages = "messages",
    /// System V sets of semaphores.
    Semaphores = "semaphores",
    /// What is undone in sets of semaphores when processes end.
    Undos = "semaphore_undos",
    /// System V segments: pages that they have, in frames or in swap; their number is that of their
    /// pages, present or not.
    Segments = "segments",
    /// POSIX queues of messages; their bytes are those that `RLIMIT_MSGQUEUE` limits.
    PosixQueues = "posix_queues",
    /// Files with a place in a file system in memory: their pages, in frames or in swap, names,
    /// records, texts of links and extended attributes; their number is that of files and names.
    Files = "files",
    /// Pages that go with their last user, in frames or in swap: shared mappings, `memfd_create`.
    SharedMemory = "shared_memory",
    /// Chunks of the fbuf region, with the records of their pages; the pages are shared memory.
    Fbufs = "fbufs",
    /// Advisory locks: record locks, and those of whole files.
    Locks = "locks",
    /// Watches of epoll instances.
    EpollWatches = "epoll_watches",
    /// Inotify instances, and the events that wait there.
    InotifyInstances = "inotify_instances",
    /// Watches of inotify instances.
    InotifyWatches = "inotify_watches",
    /// Signals that wait with their details, and timers that send some.
    Signals = "signals",
    /// Tables of more descriptors than a new one has room for; their number is that of descriptors.
    Descriptors = "descriptors",
    /// Tables of local segments of 32-bit programs.
    LocalSegments = "local_segments",
    /// Open files: those of a table's first descriptors by the highest of these, the others one by
    /// one; and texts that files keep.
    OpenFiles = "open_files",
    /// Pseudo terminals.
    Terminals = "terminals",
    /// Filters of system calls; their number is that of instructions.
    Filters = "seccomp_filters",
    /// Calls that wait for many files or words; their number is that of those.
    Waits = "waits",
    /// Programs that are being put together, until they run.
    Executions = "executions",
}
