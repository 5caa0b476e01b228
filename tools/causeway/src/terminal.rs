//! The user's terminal, raw while a guest has it.

use std::io::{self, IsTerminal};

use rustix::termios::{
    self, InputModes, LocalModes, OptionalActions, OutputModes, Termios, tcgetwinsize,
};
use session::{Terminal, Window};

use crate::signals::{self, Guard};

/// The terminal on standard input in raw mode; dropping this, or a signal that ends this program,
/// restores it.
pub struct Raw {
    before: Termios,
    _undo: Guard,
}

/// Whether the host's terminal still turns a newline into carriage return and newline.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Newlines {
    /// The guest does it.
    Guest,
    /// The host does it.
    Host,
}

/// Returns the terminal that a guest's program gets in place of this program's: those of standard
/// input, output and error that are one. Input alone stays a stream, with the host's own echo and
/// editing: the guest's terminal would have nothing to show them on.
pub fn of_streams() -> Option<Terminal> {
    let streams = [
        io::stdin().is_terminal(),
        io::stdout().is_terminal(),
        io::stderr().is_terminal(),
    ];
    let [keys, screen, errors] = streams;
    if !screen && !errors {
        return None;
    }
    Some(Terminal {
        window: window()?,
        streams,
        newlines: keys && screen,
    })
}

/// Returns the size of this program's terminal, if it has one.
pub fn window() -> Option<Window> {
    let size = tcgetwinsize(io::stdout())
        .or_else(|_| tcgetwinsize(io::stdin()))
        .or_else(|_| tcgetwinsize(io::stderr()))
        .ok()?;
    Some(Window {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

impl Raw {
    /// Makes the terminal on standard input raw for a program with this terminal.
    pub fn enter_for(terminal: Option<Terminal>) -> Option<Self> {
        let terminal = terminal.filter(|terminal| terminal.streams[0])?;
        Self::enter(if terminal.newlines {
            Newlines::Guest
        } else {
            Newlines::Host
        })
    }

    /// Makes the terminal raw; `None` when standard input is no terminal.
    pub fn enter(newlines: Newlines) -> Option<Self> {
        let before = termios::tcgetattr(io::stdin()).ok()?;
        signals::watch().ok()?;
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
        let cooked = before.clone();
        let undo = signals::undo(move || {
            // Output that the terminal does not take must not hold up the end.
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &cooked);
        });
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self {
            before,
            _undo: undo,
        })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that has gone away needs no restoring.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
