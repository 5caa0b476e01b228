//! A terminal whose user is a test.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};

use super::wait_for;

/// A pseudo-terminal, whose screen a thread keeps.
pub struct Terminal {
    user: File,
    side: PathBuf,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    pub fn new() -> Result<Self> {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&pty)?;
        unlockpt(&pty)?;
        let side = ptsname(&pty, Vec::new())?.to_string_lossy().into_owned();
        let user = File::from(pty);
        let screen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let mut from = user.try_clone()?;
        let kept = Arc::clone(&screen);
        // Open on this side, the terminal has no end before the test's.
        let held = File::options().read(true).write(true).open(&side)?;
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..count]);
            }
            drop(held);
        });
        let terminal = Self {
            user,
            side: side.into(),
            screen,
        };
        terminal.resize(24, 80)?;
        Ok(terminal)
    }

    /// The terminal as a program's stream.
    fn side(&self) -> Result<File> {
        Ok(File::options().read(true).write(true).open(&self.side)?)
    }

    pub fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        tcsetwinsize(
            &self.user,
            Winsize {
                ws_row: rows,
                ws_col: columns,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )?;
        Ok(())
    }

    pub fn modes(&self) -> Result<Termios> {
        Ok(tcgetattr(self.side()?)?)
    }

    pub fn is_cooked(&self) -> Result<bool> {
        let modes = self.modes()?.local_modes;
        Ok(modes.contains(LocalModes::ICANON | LocalModes::ECHO))
    }

    pub fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.user.write_all(keys.as_bytes())?)
    }

    pub fn text(&self) -> String {
        let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&screen).into_owned()
    }

    pub fn expect(&self, text: &str) -> Result<()> {
        let seen = wait_for(text, || self.text().contains(text));
        seen.with_context(|| format!("{:?}", self.text()))
    }

    /// Starts a command whose chosen streams are this terminal.
    pub fn start(&self, command: &mut Command, streams: [bool; 3]) -> Result<Child> {
        let [input, output, errors] = streams;
        if input {
            command.stdin(self.side()?);
        }
        if output {
            command.stdout(self.side()?);
        }
        if errors {
            command.stderr(self.side()?);
        }
        Ok(command.spawn()?)
    }
}
