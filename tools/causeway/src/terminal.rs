//! The user's terminal, raw while a guest has it.

use std::io;

use rustix::termios::{self, InputModes, LocalModes, OptionalActions, OutputModes, Termios};

/// The terminal on standard input in raw mode; dropping this gives it back as it was.
pub struct Raw {
    before: Termios,
}

/// Whether the host's terminal still turns a newline into carriage return and newline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Newlines {
    /// The guest does it.
    Guest,
    /// The host does it.
    Host,
}

impl Raw {
    /// Makes the terminal raw; `None` when standard input is no terminal.
    pub fn enter(newlines: Newlines) -> Option<Self> {
        let before = termios::tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.input_modes -= InputModes::BRKINT
            | InputModes::ICRNL
            | InputModes::INLCR
            | InputModes::IGNCR
            | InputModes::ISTRIP
            | InputModes::IXON;
        raw.local_modes -=
            LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
        if newlines == Newlines::Guest {
            raw.output_modes -= OutputModes::OPOST;
        }
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has gone away needs no restoring.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
