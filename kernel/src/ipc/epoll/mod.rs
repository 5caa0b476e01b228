//! `epoll`: a set of watched files, and the list of those that are ready.
//!
//! - [`Epoll`] (`instance`): the open file; adding, changing and removing watches, collecting
//!   events.
//! - `item`: one watch, which observes the wait queues of its file.
//! - `ready`: the list of the watches whose queues were woken since they were last found not ready.
//! - `nesting`: an epoll may watch another, not in a cycle and not too deep.
//!
//! A wake-up of a watched file puts the watch on the ready list and wakes the waiters of the epoll,
//! without an allocation, wherever the queue is woken but in an interrupt handler. A waiter takes
//! the watches off, asks each file for its readiness, and puts level-triggered ones that stay ready
//! back: the work grows with the number of ready files, not with that of watched ones.
//!
//! # Lifetimes
//!
//! A watch belongs to an open file description and must not keep it alive: it has a handle of the
//! *file*, which the description takes away before it drops its own
//! ([`Attached`](crate::process::files::Attached)). A wake-up on another CPU may hold the last
//! handle of a watch, with spin locks held: the watch then owns nothing but memory.
//!
//! # Locks
//!
//! ```text
//! Nesting            which epoll watches which; only where epolls are nested
//!    Epoll           an epoll's watches; held while files are asked, so that collectors take turns
//!       Epoll        the file of one watch; taken by its description when that goes away
//!          Epoll     an inner epoll's watches, and so on
//!             ...    what files lock to answer `poll`
//! Ready              the ready list: spinning, never while a file is asked
//! ```

mod instance;
mod item;
mod nesting;
mod ready;

pub use instance::Epoll;
pub use item::Interest;

use vm::account::Kind;

use crate::ipc::quota::Quota;

/// What a watch is charged with: its record, its observer, and its node in the tree.
const WATCH_BYTES: usize = 512;
/// Watches that a user may have (`/proc/sys/fs/epoll/max_user_watches`).
pub static WATCHES: Quota = Quota::new(Kind::EpollWatches, WATCH_BYTES, 1 << 20);
