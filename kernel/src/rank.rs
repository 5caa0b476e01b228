//! The lock order of the whole kernel, from the first taken to the last, and the ranks of this
//! floor.
//!
//! ```text
//! sleeping  Session             one port of a session, for the task that serves it
//!             SessionLine       messages to the host
//!           Mount
//!             Seccomp           restrictions of threads, and the making of threads
//!             Sigio -> Epoll    turns to send signals of files; asks these what is ready
//!             QueueReading      splice: the reader's side, before what it writes to
//!             Nesting -> Epoll  an outer epoll before an inner one
//!               Files -> File   a table of descriptors, an open file's offset
//!                 Ownership     owner and mode of a file, from a check to the change
//!                 Changing -> Ending -> Rename    a change of a file system on a disk
//!                   Directory -> Covered          path walks
//!                   LockedFiles                   which files have locks
//!                   Vnode                         contents
//!                   BlockOpen                     the last close of a block device writes it back
//!                   LockWaiters -> Locks          waiters for record locks, one file's locks
//!                   Tty | Locks | QueueWriting    what a descriptor leads to
//!                     QueueOffer                  the buffer that a reader or a writer offers
//!                     InFlight                    files leave a socket's queue
//!                   Ipc -> IpcObject              a table of ids, then one object
//!                     Net                         connections and ports of one protocol
//!                     Futex                       reads the word: may fault, so before the map
//!                       FileEnd -> FileMap -> Commit -> Allocation  a file's blocks
//!                         FbufPath -> FbufRegion  fbufs: one path, the table of addresses
//!                         Map -> Amap -> Object   uvm.txt: map, amap, object
//!                           NetConfigure          addresses of interfaces by DHCP and routers
//!                           PriorityInheritance   who waits for whose word: chains may be long
//!                           NetConnection         one connection whose segments are packets
//!                           Card                  a command to a network card
//!                           HwCost                one task measures the machine at a time
//!                           EphemeralCaches       all ephemeral mappings are made anew
//!                           Places                where the walks of a process begin
//!                           SocketNames           which local socket has which name
//! spinning                  Family -> Signals -> ThreadSignals
//!                             TimerFile           a timerfd or clock, before what is due
//!                             Anon                the page of an anon that several amaps refer to
//!                             Leaf                holds nothing else, except
//!                               Enrolled          what the pagedaemon goes round
//!                               Notify -> NotifyTable          inotify; told wherever files change
//!                               Pmap -> (mappings of a frame)  the bit lock in the frame's record
//!                                 Swap            slots; freed wherever pages are dropped
//!                                 Block           requests that wait for a disk
//!                                 Domain          a device's addresses
//!                                 Device          a device's queue; its interrupt takes it too
//!                                   Revoke        the device is detached
//!                                   WaitQueue     also the parking lot's buckets
//!                                   Observers -> Ready         never inside WaitQueue
//!                                     Task -> RunQueue         waking
//!                                       Timers
//!                                         Heap -> KernelSpace -> EphemeralMappings    memory
//!                                           Buddy -> DirectMap
//!                                           OpenFrames         those that devices reach
//!                                           Random             bytes wanted with any lock held
//!                                           Console -> (log)   the log's own lock, taken anywhere
//! ```

nucleus::lock_ranks! {
    /// One port of a session; held by the task that serves it, which reads and writes files.
    SESSION = 5,
    /// Messages to the host.
    SESSION_LINE = 6,
    /// What the threads of a process may call; held while a thread is added.
    SECCOMP = 20,
    /// Turns to tell the owners of files that those are ready.
    SIGIO = 21,
    /// Which epoll watches which.
    NESTING = 23,
    /// What an epoll watches, and the file of one watch.
    EPOLL = 24,
    /// Which files have advisory locks; taken before those of one file.
    LOCKED_FILES = 33,
    /// Which threads wait for which record locks.
    LOCK_WAITERS = 36,
    /// A terminal.
    TTY = 37,
    /// The advisory locks of one file.
    LOCKS = 38,
    /// The local sockets that are in flight between processes: locked while files leave a socket's
    /// queue.
    IN_FLIGHT = 41,
    /// The table of one kind of System V objects.
    IPC = 42,
    /// A set of semaphores or a queue of messages; bodies are copied without it.
    IPC_OBJECT = 43,
    /// A bucket of futex waiters; the word is read with it held, so it comes before the map.
    FUTEX = 45,
    /// Which thread waits for which owner of a futex; with it, priorities of threads are set.
    PRIORITY_INHERITANCE = 62,
    /// The control queue of a network card, for one command.
    CARD = 64,
    /// The root and working directory of a process.
    PLACES = 67,
    /// The names of local sockets; nothing is taken with it.
    SOCKET_NAMES = 68,
    /// The table of ids and the links between processes, groups and sessions.
    FAMILY = 95,
    /// A process's signals.
    SIGNALS = 100,
    /// One thread's pending signals, inside its process's.
    THREAD_SIGNALS = 102,
    /// The setting of a timerfd or of the real-time clock's file; with it, its wake-up is queued.
    TIMER_FILE = 104,
    /// What an observer notes a wake-up in (`epoll`'s list of ready files).
    READY = 152,
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    /// No two ranks share a place, and the drawing above has all of them in their order.
    #[test]
    fn the_ranks_of_all_floors_make_one_order() {
        let floors = [
            nucleus::sync::Rank::RANKS,
            vm::rank::RANKS,
            fbuf::rank::RANKS,
            fs::rank::RANKS,
            net::rank::RANKS,
            super::RANKS,
        ];
        let mut ranks = floors.concat();
        ranks.sort_unstable();
        for pair in ranks.windows(2) {
            assert!(pair[0].place() < pair[1].place(), "{pair:?}");
        }
        // What stands behind two spaces explains.
        let drawing = include_str!("rank.rs").split("```").nth(1).unwrap();
        let drawn = drawing.lines().skip(1).filter_map(|line| {
            let line = line.strip_prefix("//! ")?;
            let line = ["sleeping", "spinning"]
                .iter()
                .find_map(|it| line.strip_prefix(it))
                .unwrap_or(line);
            line.trim_start().split("  ").next()
        });
        let words: Vec<&str> = drawn
            .flat_map(|part| part.split(|letter: char| !letter.is_alphanumeric()))
            .collect();
        // A lock may be drawn where it follows another one, and again in its own place.
        let place = |rank: &nucleus::sync::Rank| {
            let name = rank.name().replace('_', "");
            let found = words
                .iter()
                .rposition(|word| word.eq_ignore_ascii_case(&name));
            found.unwrap_or_else(|| panic!("{rank:?} is not drawn"))
        };
        for pair in ranks.windows(2) {
            assert!(
                place(&pair[0]) < place(&pair[1]),
                "drawn otherwise: {pair:?}"
            );
        }
    }
}
