//! Ranks of the locks of file systems: see [`nucleus::sync::Rank`].

nucleus::lock_ranks! {
    /// The mount table.
    MOUNT = 10,
    /// A table of open files.
    FILES = 25,
    /// An open file's offset.
    FILE = 26,
    /// A file's owner and mode, from the check of a change to the change.
    OWNERSHIP = 27,
    /// Changes of a file system on a disk; its end waits for those that are under way.
    CHANGING = 28,
    /// Removed files end, or nothing may be changed any more; not held
    /// during a change, which may have to wait for an end.
    ENDING = 29,
    /// Renames across directories.
    RENAME = 30,
    /// A directory's entries.
    DIRECTORY = 31,
    /// What is mounted on the vnodes of one mount.
    COVERED = 32,
    /// A vnode's attributes and size.
    VNODE = 34,
    /// The files open on a block device; the last close writes its pages back with it held.
    BLOCK_OPEN = 35,
    /// Where a file ends: held by a fault that reserves room for a page, and by a truncation.
    FILE_END = 46,
    /// Which blocks of its device a file has.
    FILE_MAP = 47,
    /// Turns to write a file system's metadata; taken when only that makes blocks free.
    COMMIT = 48,
    /// Which blocks and inodes of a file system are free.
    ALLOCATION = 49,
    /// Events of `inotify` that were not read, and what it watches.
    NOTIFY = 130,
    /// The listeners of each vnode.
    NOTIFY_TABLE = 131,
    /// Requests that wait for a disk, and those that are done; disks are told and callers called
    /// without it.
    BLOCK = 143,
}
