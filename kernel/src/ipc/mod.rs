//! Objects through which processes talk to and wait for each other.
//!
//! - [`pipe`]: pipes and named pipes.
//! - [`sysv`]: shared memory, semaphores and message queues of System V.
//! - [`mqueue`]: POSIX message queues.
//! - [`fbuf`]: buffers at one address in every domain, and their paths.
//! - [`event`], [`inotify`]: files that stand for events; [`epoll`]: waiting for many files.
//! - [`quota`]: limits for each user. [`setting`]: limits that root may change.

pub mod epoll;
pub mod event;
pub mod fbuf;
pub mod inotify;
pub mod mqueue;
pub mod pipe;
pub mod quota;
pub mod setting;
pub mod sysv;
