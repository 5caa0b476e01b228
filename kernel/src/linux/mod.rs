//! The system-call interface of Linux.
//!
//! - [`syscall`]: the calls of 64-bit programs, one module for each subject.
//! - [`run`]: the loop of a thread, which calls them.
//! - [`compat`]: the calls of 32-bit programs, which convert and call the former.

pub(crate) mod compat;
mod run;
pub mod syscall;

pub use run::run;
