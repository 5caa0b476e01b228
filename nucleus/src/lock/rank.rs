//! The lock order of the whole kernel, from the first taken to the last.
//!
//! ```text
//! sleeping   Mount
//!              Process            one process's own things
//!                Sigio -> Epoll   whose turn it is to send signals of files; asks them what is ready
//!                PipeReading      splice: the reader's side, before what it writes to
//!                Nesting -> Epoll what one watches is asked with it held; an outer one before an inner one
//!                  Files -> File  table of descriptors, an open file's offset
//!                    Changing -> Ending -> Rename                a change of a file system on a disk
//!                      Directory -> Covered -> Vnode             path walks, then contents
//!                      BlockOpen                                 who closes a block device last writes it back
//!                      Tty | Pipe                                what a descriptor leads to
//!                        InFlight                                files leave a socket's queue
//!                      Ipc -> IpcObject                          table of ids, then one object
//!                        Net                                     connections and ports of one protocol
//!                        Futex                                   reads the word: may fault, so before
//!                         FileEnd -> FileMap -> Commit -> Allocation    where a file's pages are: a fault may have to know
//!                          Map -> Amap -> Object                 uvm.txt: map, amap, object
//!                            HwCost                              whose turn it is to measure the machine
//! spinning                   Lending -> Family -> Signals -> ThreadSignals
//!                                Anon                            where the page of an anon is that several amaps refer to
//!                                Leaf                            holds nothing else, except
//!                                  Enrolled                      what the pagedaemon goes round: told by whatever is made or ends
//!                                  Notify -> NotifyTable         inotify; told wherever files change
//!                                  Pmap -> (mappings of a frame) the bit lock in the frame's record
//!                                    Swap                        slots; freed wherever pages are dropped
//!                                    Block                       requests that wait for a disk
//!                                    Device                      a device's queue; its interrupt takes it too
//!                                      WaitQueue                 also the parking lot's buckets
//!                                      Observers -> Ready        who is told of a wake-up; never inside WaitQueue
//!                                        Task -> RunQueue        waking
//!                                          Timers
//!                                            Heap -> KernelSpace -> Buddy   memory for any of them
//!                                              Console -> (log)  the log has a lock of its own, taken anywhere
//! ```
//! Two locks of the same rank are taken only through the lock's own function for pairs, by address,
//! or for things nested in each other, from the outside in. An interrupt handler starts anew at the
//! locks that are taken with interrupts off: `Device` and below.

/// A lock's place in the order. A lower one is taken first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rank {
    // Sleeping locks.
    /// The mount table.
    Mount = 10,
    /// One process.
    Process = 20,
    /// Whose turn it is to tell the owners of files that those are ready.
    Sigio = 21,
    /// Who reads from a pipe; taken before the files and vnodes that splice writes to.
    PipeReading = 22,
    /// Which epoll watches which.
    Nesting = 23,
    /// What an epoll watches, and the file of one watch.
    Epoll = 24,
    /// A table of open files.
    Files = 25,
    /// An open file's offset.
    File = 26,
    /// Changes of a file system on a disk; its end waits for those that are under way.
    Changing = 27,
    /// Removed files end, or nothing may be changed any more; not held by who changes something,
    /// who may have to wait for an end.
    Ending = 28,
    /// Renames across directories.
    Rename = 29,
    /// A directory's entries.
    Directory = 30,
    /// What is mounted on the vnodes of one mount.
    Covered = 32,
    /// A vnode's attributes and size.
    Vnode = 35,
    /// Who has a block device open; who closes it last writes its pages back with it held.
    BlockOpen = 36,
    /// A terminal.
    Tty = 38,
    /// A pipe or socket.
    Pipe = 40,
    /// The local sockets that are in flight between processes: locked while files leave a socket's
    /// queue.
    InFlight = 41,
    /// The table of one kind of System V objects.
    Ipc = 42,
    /// A set of semaphores or a queue of messages; bodies are copied without it.
    IpcObject = 43,
    /// Connections and ports of one protocol; taken by who sends to an end that is gone.
    Net = 44,
    /// A bucket of futex waiters; the word is read with it held, so it comes before the map.
    Futex = 45,
    /// Where a file ends: held by a fault that reserves room for a page, and by who cuts the file
    /// off.
    FileEnd = 46,
    /// Which blocks of its device a file has.
    FileMap = 47,
    /// Whose turn it is to write a file system's metadata; taken by who finds no free block but
    /// those that this makes free.
    Commit = 48,
    /// Which blocks and inodes of a file system are free.
    Allocation = 49,
    /// An address space's map.
    Map = 50,
    /// A part of an amap, with the anons in it.
    Amap = 55,
    /// An object's pages.
    Object = 60,
    /// Whose turn it is to measure what the machine takes.
    HwCost = 65,
    // Spinning locks.
    /// Who waits for whom to give up a futex; with it, priorities of threads are set.
    Lending = 90,
    /// The table of ids and the links between processes, groups and sessions.
    Family = 95,
    /// A process's signals.
    Signals = 100,
    /// One thread's pending signals, inside its process's.
    ThreadSignals = 102,
    /// Where the page of one anon is that several amaps refer to.
    Anon = 110,
    /// Small leaf data of the floors above that is never held while another lock is taken.
    Leaf = 120,
    /// What the pagedaemon goes round; chunks of pages enter it when they are made and leave it
    /// when they end, which may be with a leaf locked.
    Enrolled = 125,
    /// Events of `inotify` that were not read, and what it watches.
    Notify = 130,
    /// Who listens to which vnode.
    NotifyTable = 131,
    /// A pmap's page-table pages.
    Pmap = 140,
    /// The slots of all swap devices: nothing else is taken inside.
    Swap = 142,
    /// Requests that wait for a disk, and those that are done; disks are told and callers called
    /// without it.
    Block = 143,
    /// A device's queue: its requests are done, and who waits for them is woken, with it held.
    Device = 145,
    /// A wait queue.
    WaitQueue = 150,
    /// The observers of a wait queue; given back before one is told.
    Observers = 151,
    /// What an observer notes a wake-up in (`epoll`'s list of ready files).
    Ready = 152,
    /// A task's state.
    Task = 155,
    /// A run queue.
    RunQueue = 160,
    /// A CPU's timers.
    Timers = 165,
    /// The kernel heap.
    Heap = 170,
    /// The kernel's own page tables and the cache of kernel stacks.
    KernelSpace = 175,
    /// The buddy allocator.
    Buddy = 180,
    /// The console ring.
    Console = 190,
}
