//! The guest's console: its first serial port, on the user's terminal or between the user's pipes.

use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::guest::{Control, Guest, Up};
use crate::input::{Bytes, Keys, Wish};
use crate::outcome::{self, explain};
use crate::qemu::Machine;
use crate::signals;
use crate::terminal::{Newlines, Raw};

/// Starts `machine`, connects its console to this program's standard input and output until it
/// ends, and returns the exit status.
///
/// # Errors
/// When QEMU cannot be started.
pub fn attend(
    machine: &Machine,
    kernel: &Path,
    console: Console,
    timeout: Option<Duration>,
    show_log: bool,
) -> Result<u8> {
    signals::watch()?;
    let (mut guest, input, output) = Guest::start(machine, show_log)?;
    // QEMU runs from here on.
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let raw = console.terminal.and_then(Raw::enter);
    let control = Control::of(&guest);
    control.end_by_signal(|| ());
    {
        let (control, keys) = (control.clone(), raw.is_some());
        let up = guest.up();
        // This thread ends with the program: nothing can interrupt its read.
        thread::spawn(move || {
            let wish = if keys {
                relay_keys(input)
            } else {
                relay_bytes(input, &up)
            };
            if wish == Wish::Kill {
                control.kill();
            }
        });
    }
    let relay = {
        let control = control.clone();
        thread::spawn(move || {
            if relay_output(output).is_err() {
                // The reader has closed the output, so the guest is of no use any more.
                control.kill();
            }
        })
    };
    let ending = guest.wait(deadline);
    let _ = relay.join();
    drop(raw);
    if let Some(signal) = signals::received() {
        return Ok(outcome::SIGNAL + signal as u8);
    }
    let ending = control.ending(ending?);
    explain(&ending, &guest.log(), kernel, show_log);
    Ok(outcome::status(&ending))
}

/// How the guest's console is used.
#[derive(Clone, Copy)]
pub struct Console {
    /// Whether the guest gets a terminal as its standard input, and which side makes newlines.
    terminal: Option<Newlines>,
    /// Whether the output is for a program: no carriage returns.
    plain: bool,
    /// Whether the input is from a program: no echo.
    quiet: bool,
}

impl Console {
    /// The console for a guest that runs one command, or an interactive one.
    pub fn of(command: bool) -> Self {
        let (keys, screen) = (io::stdin().is_terminal(), io::stdout().is_terminal());
        let plain = command && !(keys && screen);
        let newlines = if plain {
            Newlines::Host
        } else {
            Newlines::Guest
        };
        Self {
            terminal: keys.then_some(newlines),
            plain,
            quiet: command && !keys,
        }
    }

    /// The console of a person at a terminal.
    pub fn person() -> Self {
        Self {
            terminal: Some(Newlines::Guest),
            plain: false,
            quiet: false,
        }
    }

    /// The console of a command between pipes.
    pub fn pipes() -> Self {
        Self {
            terminal: None,
            plain: true,
            quiet: true,
        }
    }

    /// The kernel's command line for this console, the user's options and command.
    pub fn command_line(self, append: &[String], command: &[String]) -> String {
        let mut words: Vec<String> = Vec::new();
        if self.plain {
            words.push("onlcr=0".into());
        }
        if self.quiet {
            words.push("echo=0".into());
        }
        words.extend(append.iter().cloned());
        if !command.is_empty() {
            words.push("--".into());
            words.extend(command.iter().map(|word| quote(word)));
        }
        words.join(" ")
    }
}

/// A word as the kernel's command line wants it.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn relay_keys(mut guest: ChildStdin) -> Wish {
    let (mut keys, mut buffer, mut passed) = (Keys::default(), [0; 1024], Vec::new());
    loop {
        let count = match io::stdin().read(&mut buffer) {
            Ok(0) | Err(_) => return Wish::Kill, // The terminal has gone away.
            Ok(count) => count,
        };
        passed.clear();
        if keys.pass(&buffer[..count], &mut passed) == Wish::Kill {
            return Wish::Kill;
        }
        if guest.write_all(&passed).is_err() {
            return Wish::Nothing; // The guest has ended.
        }
    }
}

fn relay_bytes(mut guest: ChildStdin, up: &Up) -> Wish {
    up.wait();
    let (mut bytes, mut buffer, mut passed) = (Bytes::default(), [0; 4096], Vec::new());
    loop {
        let count = io::stdin().read(&mut buffer).unwrap_or(0);
        passed.clear();
        if count == 0 {
            bytes.end(&mut passed);
        } else {
            bytes.pass(&buffer[..count], &mut passed);
        }
        if guest.write_all(&passed).is_err() {
            return Wish::Nothing;
        }
        if count == 0 {
            // Closed, QEMU would take the pipe for a hang-up again and again.
            std::mem::forget(guest);
            return Wish::Nothing;
        }
    }
}

fn relay_output(mut guest: ChildStdout) -> io::Result<()> {
    let mut buffer = [0; 1 << 16];
    let mut out = io::stdout().lock();
    loop {
        let count = guest.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        out.write_all(&buffer[..count])?;
        out.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_when_they_must_be() {
        assert_eq!(quote("ls"), "ls");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!(quote(""), "''");
    }
}
