//! The system-call interface of Linux.
//!
//! - [`syscall`]: the calls of 64-bit programs, one module for each subject.
//! - `dispatch`: from a number to a handler; [`run`]: the loop of a thread.
//! - [`compat`]: the calls of 32-bit programs, which convert and call the former.
//! - [`unsupported`]: the file that names refused calls and options.

pub(crate) mod compat;
mod dispatch;
mod run;
pub mod syscall;
pub mod unsupported;

pub use run::run;
