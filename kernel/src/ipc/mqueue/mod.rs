//! POSIX message queues.
//!
//! - [`queue`]: a queue of messages by priority, and its waiters;
//! - [`notice`]: notification of a message in an empty queue (`mq_notify`);
//! - [`folder`]: the file system that holds the queues, which `mq_open` finds by name and `mount -t
//!   mqueue` shows;
//! - [`file`](mod@file): an open queue;
//! - [`limits`]: the settings of `/proc/sys/fs/mqueue`, and the limits of a user.
//!
//! The calls are in [`syscall`](crate::linux::syscall). Messages are those of the System V queues:
//! short bodies in the heap, long ones in slices of pages; they are copied from and to programs
//! with no lock held.

pub mod file;
pub mod folder;
pub mod limits;
pub mod notice;
pub mod queue;

pub use file::QueueFile;
pub use folder::{find_or_make, remove, root};
pub use limits::Size;
pub use notice::{Mailbox, Notice};
pub use queue::Queue;
