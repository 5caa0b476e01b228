//! ext2, read and written.
//!
//! From the disk upwards:
//!
//! - `layout`: the bytes on the disk, checked. `buffer`: blocks of metadata in memory, and which of them have changed.
//! - `bitmap`, `group`, `allocation`: which blocks and inodes are free, and which are taken next. `pending`: what was freed and is not
//!   free yet.
//! - `map`: where a file's blocks are. `inode`: inodes in memory; `removed`: their end. `content`: the bytes of regular files, for their pages;
//!   `transfer`: those on their way.
//! - `mounted`: what there is once, the superblock's state, and when metadata are written.
//! - `directory`: records and names; `entries`: names that come and go; `rename`; `link`: the text of symbolic links; `orphans`: what
//!   lost its last name while in use.
//! - `state`: what the upper half knows of an inode; `node`: inodes as vnodes. `mounting`: from a device to a root vnode, options, and the end.
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
mod group;
mod inode;
mod layout;
mod link;
mod map;
mod mounted;
mod mounting;
mod node;
mod orphans;
mod pending;
mod pinned;
mod removed;
mod rename;
mod state;
mod transfer;

#[cfg(test)]
mod tests;

pub use layout::Refused;
pub use mounted::Ext2;
pub use mounting::{mount, shut_down};
