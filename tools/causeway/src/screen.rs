//! The text on a guest's console, read up to an expected part.

use std::io::Read;
use std::process::ChildStdout;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::guest::Killer;

/// The console of a guest.
pub struct Screen {
    from: ChildStdout,
    /// Output behind the last part that was expected.
    shown: Vec<u8>,
}

impl Screen {
    pub fn new(from: ChildStdout) -> Self {
        Self {
            from,
            shown: Vec::new(),
        }
    }

    /// Reads all up to and with `text`, which is not empty.
    ///
    /// # Errors
    /// When the console ends before.
    pub fn read_until(&mut self, text: &str) -> Result<String> {
        let mut buffer = [0; 4096];
        let mut looked = 0;
        loop {
            let mut parts = self.shown[looked..].windows(text.len());
            if let Some(at) = parts.position(|part| part == text.as_bytes()) {
                let rest = self.shown.split_off(looked + at + text.len());
                let all = std::mem::replace(&mut self.shown, rest);
                return Ok(String::from_utf8_lossy(&all).into_owned());
            }
            looked = (self.shown.len() + 1).saturating_sub(text.len());
            let count = self.from.read(&mut buffer)?;
            if count == 0 {
                bail!(
                    "no {text:?} on the console: {:?}",
                    String::from_utf8_lossy(&self.shown)
                );
            }
            self.shown.extend_from_slice(&buffer[..count]);
        }
    }
}

/// Kills a guest that takes too long, which ends its console; does nothing after it was dropped.
pub struct Watch {
    _done: Sender<()>,
}

impl Watch {
    pub fn new(killer: Killer, patience: Duration) -> Self {
        let (done, waiting) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            if waiting.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                killer.kill();
            }
        });
        Self { _done: done }
    }
}
