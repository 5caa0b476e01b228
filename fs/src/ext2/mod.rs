//! ext2, read and write.
//!
//! From the disk upwards:
//!
//! - `layout`: the bytes on the disk, validated. `buffer`: metadata blocks in memory, and which of
//!   them are dirty.
//! - `volume`: the superblock, its state, and commits of metadata. `bitmap`, `group`, `free`,
//!   `allocation`: free blocks and inodes, and how they are chosen. `pending`: blocks and inodes
//!   that were freed and may not be reused yet. `home`: the place of an inode's record. `map`: from
//!   a file's blocks to the disk's. `removed`: freeing an inode. `orphans`: the list of unlinked
//!   inodes that are in use.
//! - `inode`: inodes in memory. `content`: a regular file's backing store; `transfer`: its I/O.
//!   `directory`: records and names. `mounted`: a volume with its inodes in memory.
//! - `entries`: adding and removing names; `rename`; `link`: the text of symbolic links.
//! - `state`: the vnode layer's state of an inode; `node`: inodes as vnodes; `pinned`: swap files.
//! - `options`, `mount_state`, `mounting`: mounting a device, and unmounting.
//!
//! # After a crash
//!
//! There is no journal. Synced data survives, and `e2fsck -fy` repairs the rest, because metadata
//! reaches the disk by three rules:
//!
//! 1. Nothing on the disk refers to an indirect block or a directory block that is not on the disk
//!    itself (`Buffers::write_back` writes new ones first).
//! 2. Nothing is reused while something on the disk refers to it (`pending`).
//! 3. `fsync` writes the file's data, then all dirty metadata, then flushes the disk's cache
//!    (`Volume::commit`).
//!
//! # Lock order
//!
//! ```text
//! Changing        a change of the file system; Rename, Directory: names
//!   Ending        freeing removed files, for which an allocation without Changing may wait
//! FileMap         an inode's record: its attributes and block pointers
//!   Commit        writing metadata
//!     Allocation  one group's bitmaps and counts
//!       Object    metadata pages that are being read
//!         Leaf    sets of dirty blocks, pending blocks, removed inodes; the inode cache
//! ```

mod allocation;
mod batch;
mod bitmap;
mod buffer;
mod content;
mod directory;
mod entries;
mod free;
mod group;
mod growing;
mod home;
mod inode;
mod layout;
mod link;
mod map;
mod mount_state;
mod mounted;
mod mounting;
mod node;
mod options;
mod orphans;
mod pending;
mod pinned;
mod removed;
mod rename;
mod state;
mod transfer;
mod unwritten;
mod volume;

#[cfg(test)]
mod tests;

pub use layout::Refused;
pub use mounted::Ext2;
pub use mounting::{mount, shut_down};
