//! Terminals.
//!
//! - `line`, `ring`, `output`, `erase`: the line discipline `N_TTY`, a state machine without
//!   locks or processes.
//! - `held`: typed bytes for which the line discipline has no room yet.
//! - [`Tty`] (`terminal`): a line discipline with readers, writers and a [`Driver`] that has the
//!   wire.
//! - `job`: the session that a terminal controls, its foreground group, the signals of job control.
//! - `settings`: the `ioctl`s.
//! - [`TtyFile`] (`file`): a terminal that was opened.
//! - [`pty`]: pseudo terminals, whose wire ends in a program.
//! - [`console`]: the terminal on the serial console, and the task that brings its input.
//!
//! Input passes `Driver` -> [`Tty::receive`] -> `Line::input` -> ring -> [`TtyFile`];
//! output [`TtyFile`] -> `Line::write` -> `Driver`.

pub mod console;
mod erase;
mod file;
mod held;
mod job;
mod line;
mod output;
pub mod pty;
mod ring;
mod settings;
mod terminal;

pub use file::{TtyFile, open};
pub use terminal::Tty;

#[cfg(test)]
mod tests;
