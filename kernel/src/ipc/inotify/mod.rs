//! `inotify`: what happens to files and directories, in a queue that a program reads.
//!
//! - [`Inotify`] (`instance`): the open file and its watches.
//! - `queue`: the events that were not read.
//!
//! A watch listens to a vnode ([`fs::notify`]). What it hears goes to the queue where it happens,
//! so that the order in the queue is the order of the calls.

mod instance;
mod queue;

use core::sync::atomic::AtomicUsize;

pub use instance::Inotify;

use vm::account::Kind;

use crate::ipc::quota::Quota;

/// Open files of this kind that a user may have.
pub static INSTANCES: Quota = Quota::new(Kind::InotifyInstances, 512, 128);
/// Watches that a user may have.
pub static WATCHES: Quota = Quota::new(Kind::InotifyWatches, 512, 1 << 16);
/// Events that wait to be read, in each queue.
pub static MAX_QUEUED: AtomicUsize = AtomicUsize::new(16_384);
