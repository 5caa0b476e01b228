//! ext2, read and written.
//!
//! From the disk upwards:
//!
//! - `layout`: the bytes on the disk, validated. `buffer`: metadata blocks in memory, and which of
//!   them are dirty.
//! - `volume`: the superblock, its state, and when metadata is written. `bitmap`, `group`, `free`,
//!   `allocation`: which blocks and inodes are free, and which are taken next. `pending`: what was
//!   freed and cannot be reused yet. `home`: where an inode's record is. `map`: a file's blocks.
//!   `removed`: freeing an inode. `orphans`: the list of unlinked inodes that are in use.
//! - `inode`: inodes in memory. `content`: a regular file's backing store; `transfer`: its I/O.
//!   `directory`: records and names. `mounted`: a volume with its inodes in memory.
//! - `entries`: adding and removing names; `rename`; `link`: the text of symbolic links.
//! - `state`: what only vnodes need of an inode; `node`: inodes as vnodes; `pinned`: swap files.
//! - `options`, `mount_state`, `mounting`: from a device to a root vnode, and the end.
//!
//! # What a crash leaves
//!
//! There is no journal. What was synced survives, and `e2fsck -fy` makes the rest fit, because metadata reach the disk by three rules:
//!
//! 1. Nothing on the disk leads to a block of pointers or of a directory that is not there itself yet
//!    (`Buffers::write_back`, which writes new ones first).
//! 2. Nothing is used again while something on the disk leads to it (`pending`).
//! 3. What `fsync` promises is: the file's data, then all changed metadata, then the disk's cache ([`Ext2::commit`]).
//!
//! # Locks
//!
//! ```text
//! Changing        who changes something; Rename, Directory: names
//!   Ending      removed files end: who changes something and finds no room waits for that, without this lock
//! FileMap       an inode's record: its attributes and pointers
//!   Commit      who writes metadata
//!     Allocation  one group's bitmaps and counts
//!       Object      pages of metadata that come into memory
//!         Leaf        what has changed, is pending or was removed; which inodes are in memory
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
mod volume;

#[cfg(test)]
mod tests;

pub use layout::Refused;
pub use mounted::Ext2;
pub use mounting::{mount, shut_down};
