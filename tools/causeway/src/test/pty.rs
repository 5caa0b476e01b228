//! A terminal whose user is a test.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The time for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal.
pub struct Pty {
    user: File,
    path: String,
    screen: Arc<Mutex<Vec<u8>>>,
    /// Bytes of the screen that were expected before.
    seen: usize,
}

impl Pty {
    /// Makes a terminal of a size.
    ///
    /// # Errors
    /// When the system has none.
    pub fn new(rows: u16, columns: u16) -> Result<Self> {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&pty)?;
        unlockpt(&pty)?;
        let path = ptsname(&pty, Vec::new())?.to_string_lossy().into_owned();
        let user = File::from(pty);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut from, shown) = (user.try_clone()?, Arc::clone(&screen));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                match from.read(&mut buffer) {
                    Ok(count @ 1..) => {
                        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
                        shown.extend_from_slice(&buffer[..count]);
                    }
                    // Nobody has the other side, now or any more.
                    _ => thread::sleep(Duration::from_millis(5)),
                }
                if Arc::strong_count(&shown) == 1 {
                    return;
                }
            }
        });
        let pty = Self {
            user,
            path,
            screen,
            seen: 0,
        };
        pty.resize(rows, columns)?;
        Ok(pty)
    }

    /// Changes the size.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn resize(&self, rows: u16, columns: u16) -> Result<()> {
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        Ok(tcsetwinsize(&self.user, size)?)
    }

    /// Opens the side of a program's.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn side(&self) -> Result<File> {
        let side = File::options().read(true).write(true).open(&self.path);
        side.with_context(|| self.path.clone())
    }

    /// Presses keys.
    ///
    /// # Errors
    /// When the terminal is gone.
    pub fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.user.write_all(keys.as_bytes())?)
    }

    /// The text on the screen behind the parts that were expected before.
    pub fn text(&self) -> String {
        let shown = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&shown[self.seen..]).into_owned()
    }

    /// Waits until the screen shows a text behind the parts that were expected before.
    ///
    /// # Errors
    /// When it does not.
    pub fn expect(&mut self, text: &str) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let shown = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
            let mut parts = shown[self.seen..].windows(text.len());
            if let Some(at) = parts.position(|part| part == text.as_bytes()) {
                self.seen += at + text.len();
                return Ok(());
            }
            drop(shown);
            thread::sleep(Duration::from_millis(5));
        }
        bail!("no {text:?} on the screen: {:?}", self.text())
    }
}
