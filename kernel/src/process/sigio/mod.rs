//! `O_ASYNC`: a signal to a file's owner when something can be read or written.
//!
//! - [`Owner`] (`owner`): the receiver of the signal, and its number (`F_SETOWN`, `F_SETSIG`).
//! - [`Sigio`] (`watch`): what an open file description has of it; it observes the wait queues of
//!   its file.
//! - `post`: the descriptions whose queues were woken, and the sending of their signals.
//!
//! A queue may be woken in an interrupt handler or under locks, where neither the file can be asked
//! for its readiness nor a signal be sent. So the observer only notes that it was woken, wakes the
//! task "sigio", and makes the current thread look before it returns to its program ([`catch_up`]):
//! a thread that writes to a pipe of which it is the owner has the signal when `write` returns, as
//! on Linux.
//!
//! # Locks
//!
//! ```text
//! Sigio         the turn to send; held until the signals are sent
//!    Epoll      the file that is watched; taken away when the description goes
//!       ...     what files lock to answer `poll`
//! Ready         the descriptions that were woken: spinning, never while a file is asked
//! ```

mod open;
mod owner;
mod post;
mod watch;

pub use owner::{Kind, Owner};
pub use post::{catch_up, start};
pub use watch::Sigio;
